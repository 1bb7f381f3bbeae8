package policydoc

import (
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// texts say what each field means, by "OBJECT.FIELD": the schema and the
// reference print them.
var texts = map[string]string{
	"policy.name": "Name of the policy, if a control plane has several.",
	"policy.proxies": "Selects proxies; all conditions must match. Other proxies get the policy named default. In " +
		"patterns * stands for any characters.",
	"proxies.node":    "Pattern of the node id.",
	"proxies.cluster": "Pattern of the node's cluster. The proxy itself chooses its cluster.",
	"proxies.metadata": "Patterns of texts of up to 256 bytes in the node's metadata. The proxy itself chooses its " +
		"metadata. outer.inner is a field inside a struct.",
	"proxies.san":   "Pattern of the name in the proxy's certificate that allows its node id.",
	"proxies.trust": "Required with metadata: says that you trust the metadata that proxies send.",

	"policy.version":  "Version of this format.",
	"policy.revision": "Set by the control plane; rejected in a file.",
	"policy.domain":   "Namespace of the counters.",
	"policy.headers":  "Rate-limit headers on responses.",
	"policy.quota":    "How rules of scope cluster ask the quota service.",
	"policy.rules":    "A request must be allowed by all rules that match it.",
	"policy.exempt":   "Requests that all rules skip: they are neither decided nor counted.",
	"policy.manage":   "Lets operators read and change counters.",
	"policy.usage":    "Lets clients ask how much of their limits they have used.",
	"policy.report_keys": "How sluice counters top shows keys. hash: 64 bits of an HMAC-SHA-256. plain: the key " +
		"itself. off: no keys. Credentials are never shown: cookies, values after an authentication scheme, and headers " +
		"with a name such as x-api-key.",
	"policy.report_secret": "Set by the control plane; rejected in a file.",

	"rule.name": "Unique. Names the rule in metrics and messages.",
	"rule.counter": "Identity of the counters; default is the name. Keep it when you rename a rule. Rules with the " +
		"same counter count together.",
	"rule.scope": "proxy: the limits hold for each Envoy process. cluster: they hold over all Envoys that ask the " +
		"same quota service.",
	"rule.match":  "Selects the requests that the rule applies to; by default all.",
	"rule.exempt": "Requests that the rule skips: they are neither decided nor counted.",
	"rule.key": "Parts of the key, in order. " + bareKeys() + " may be written without an object. Without a key all " +
		"requests count together.",
	"rule.missing_key": `What happens to a request that lacks a part of the key. skip: the rule ignores it. deny: it ` +
		`is denied. share: it counts under its other parts and "missing".`,
	"rule.algorithm": "How windows count, unless a limit says otherwise. concurrency limits how many requests " +
		"run at once.",
	"rule.limits":       "A request must fit in every window; an empty list always allows.",
	"rule.overrides":    "Other limits for some keys. The first override that matches a key applies.",
	"rule.cost":         "Units that a request takes. In a list, the first item that matches decides.",
	"rule.count_denied": "Requests that this rule denies count too. A client that keeps sending stays denied.",
	"rule.block": "Blocks a key: the first request that the rule denies because of its limits begins the block, and " +
		"until its end every request of the key is denied. 1s to 30d.",
	"rule.usage": "Whether clients that ask for their usage are told of the rule. Only enforced rules are.",
	"rule.mode": "shadow: the rule denies nothing, but reports what it would do with requests that the enforced rules " +
		"allow. off: it does nothing.",
	"rule.settle": "What a request is charged when its answer, the upstream's response, is known. Until then the " +
		"request holds its cost.",
	"rule.hold": "With settle or concurrency: how long a hold lasts if its request does not renew it, 10s to 1d. A " +
		"running request renews its hold. A lost hold is charged if the rule has windows.",
	"rule.max_hold": "With settle or concurrency: a request holds nothing any more after this time; by default " +
		"unlimited.",
	"rule.linger": "For concurrency: how long a slot stays taken after the request was reset, because the upstream " +
		"may still work on it: 0s to 1m.",
	"rule.enforce_percent": "Share of the keys for which the rule is enforced. These are the same keys on every " +
		"Envoy. For other keys the rule is in shadow.",
	"rule.capacity": "How many live keys the counter has room for.",
	"rule.on_full": "What happens to a new key if there is no room. inherit: it replaces the key that has used the " +
		"smallest share of its limit. deny: denied. allow: allowed, not counted.",
	"rule.on_error": "What happens to a request if a call of the filter fails or a counter cannot be read. allow: " +
		"allowed, not counted. deny: denied with Retry-After 1.",
	"rule.on_contention": "What happens to a request if other workers changed the counter first, 256 times in a row. " +
		"The values mean the same as for on_error.",
	"rule.lease": "For scope cluster: how many units a grant may give in advance. auto: up to a quarter of what is " +
		"left; none in a rule with block. off: each request asks.",
	"rule.on_unavailable": "For scope cluster: what happens while the quota service does not answer. For rules with " +
		"settle or concurrency also while its store has no state yet. local: each Envoy counts by itself, up to its " +
		"share of the limit. allow: allowed, not counted. deny: only leased units are used.",
	"rule.response": "The response to a denied client.",

	"quota.cluster": "Envoy's cluster for the quota service.",
	"quota.timeout": "How long a request waits for the quota service, 1ms to 10s.",

	"match.hosts": `Hosts, in upper or lower case, without user, final dots and port: exact, or "*.example.com" for ` +
		`every host below example.com.`,
	"match.methods": "Methods, in upper case.",
	"match.paths": `Paths as Envoy has normalised them, without query, escapes resolved: exact ("=" before it makes a ` +
		`* literal), prefix*, "*" for all, or "~" and an RE2 expression that matches the whole path.`,
	"match.headers": `All headers must match: exact ("=" before it makes signs literal), prefix*, *suffix, "~" and an ` +
		`RE2 expression that matches the whole value, "*" for present, "!" for absent. If a header is repeated, one ` +
		`value must match, or all joined by ","; in exempt every value must match.`,
	"match.client_ips": "Addresses and networks of the client's address, as Envoy trusts it.",

	"key.header":    "This request header; the first if it is repeated. An empty header is not missing.",
	"key.client_ip": "The client's address as Envoy trusts it, cut to a prefix.",
	"key.host":      "The host, in lower case, without user, final dots and port.",
	"key.method":    "The method, in upper case.",
	"key.path": `The path without query and parameters, escapes resolved: "full", or {segment: 2}, which is b of ` +
		`/a/b/c.`,
	"key.query": "This query parameter; the first if it is repeated. If there is none, a parameter with a similar " +
		"name, such as Q or q[], that an upstream may read as this one.",
	"key.cookie": `This cookie; the first if it is repeated. If servers read the header in different ways, because ` +
		`quotes go on over ";", the value is empty, so that such requests count together.`,
	"key.route":    "The route that Envoy chose, if it has a name.",
	"key.jwt":      "A claim that Envoy's jwt_authn filter, placed before this one, has verified.",
	"key.property": `An attribute of Envoy, by the segments of its path: ["connection", "uri_san_peer_certificate"].`,
	"key.address": "The address in this request header, the first of a list, cut to a prefix. Use it only for a " +
		"header that a proxy in front of Envoy sets.",
	"key.first_of": "The first of these parts that the request has.",

	"header.name":   "Name of the header.",
	"header.scheme": "Authentication scheme before the credential, such as bearer. Only the credential is the key.",

	"address.header":    "Name of the header, such as cf-connecting-ip.",
	"address.v4_prefix": "Bits of an IPv4 address that count.",
	"address.v6_prefix": "Bits of an IPv6 address that count.",

	"client_ip.v4_prefix": "Bits of an IPv4 address that count.",
	"client_ip.v6_prefix": "Bits of an IPv6 address that count.",

	"path.segment": "Number of the segment, from 1.",

	"jwt.provider": "Name under which jwt_authn stores the claims: its payload_in_metadata; in Istio payload; in " +
		"Envoy Gateway the provider's name.",
	"jwt.claim": `Name of the claim, or the names on the way to a nested claim, such as [org, id] or [groups, "0"].`,

	"limit.requests": "Units allowed in the window, or tokens that a token_bucket gains in it; 0 always denies. At " +
		"most 512 for a sliding_window_log. An object says where in a request the number is.",
	"limit.per": "Length of the window, 1ms to 366d. Months and years are the calendar's: 1, 2, 3, 4, 6 or 12 " +
		"months from January on.",
	"limit.name":       "Name of the window in answers of counters and in headers; default is its index from 0.",
	"limit.algorithm":  "How this window counts; default is the rule's algorithm.",
	"limit.burst":      "For token_bucket: the most tokens that it holds; default is its requests.",
	"limit.offset":     "For fixed_window: moves the start of the windows by this time, less than per.",
	"limit.utc_offset": "For months and years: how far their clock is ahead of UTC, without daylight saving time.",
	"limit.jitter":     "For fixed_window: moves the windows of each key by a constant time below this percentage of per.",
	"limit.elastic": "Deprecated. For fixed_window_per_key: every counted hit moves the end of the window to per from " +
		"now.",

	"cost.header":            "Request header with the cost.",
	"cost.query":             "Query parameter with the cost.",
	"cost.default":           "Cost of a request without it.",
	"slots.requests":         "Requests that may run at once; 0 always denies.",
	"slots.name":             "Name of the limit in output of counters and in headers; default is 0.",
	"cost.request_bytes":     "The cost is the length of the request's body, in units.",
	"request_bytes.per_unit": "Bytes in one unit; a part of a unit counts as one.",
	"request_bytes.min":      "The lowest cost.",
	"request_bytes.max": "The highest cost; also the cost of a body without content-length. A request without a body " +
		"has 0 bytes.",
	"settle.to": "What is charged. cost: what was held. tokens, input_tokens, output_tokens: the tokens that the " +
		"answer names. price: what these tokens cost. request_bytes, response_bytes: bytes of the bodies. " +
		"milliseconds: the time until the answer's end. Or a number in a header or trailer of the answer.",
	"settle.prices": "With to: price, what tokens cost. The first item whose model fits counts. If the model is not " +
		"known, or none fits, the item by which the answer costs most.",
	"settle.when": "Selects the answers that are charged; all conditions must hold. Others cost 0.",
	"settle.unknown": "What is charged if the answer does not name its cost. estimate, the default for tokens and " +
		"price: an estimate by the lengths of the bodies. cost, the default otherwise: what was held. 0: nothing.",
	"settle.max": "The most that one answer is charged, even if more was held; by default unlimited.",
	"settle.identity": "Removes accept-encoding from the request, because a compressed answer cannot be read. By " +
		"default only for tokens and price.",
	"price.model": "The model that the answer names: a text, a prefix such as gpt-5*, a suffix such as *-mini, a " +
		"regular expression after ~, or * for all.",
	"price.input":       "Units for a million tokens of the input that no cache had.",
	"price.cached":      "Units for a million tokens of the input that were read from a cache; default is input.",
	"price.cache_write": "Units for a million tokens of the input that were written to a cache; default is input.",
	"price.output":      "Units for a million tokens of the output, reasoning included.",
	"settle_to.header":  "Name of a header of the answer that has a whole number.",
	"settle_to.trailer": "Name of a trailer of the answer that has a whole number.",
	"block.for":         "How long a key is blocked: 1s to 30d.",
	"block.prolong":     "Each denied request begins the block anew. A client that keeps sending stays blocked.",

	"answer.status":      "The client must get one of these statuses.",
	"answer.grpc_status": "The answer must have one of these gRPC statuses.",
	"answer.headers":     "Headers of the answer, written as in match. All must match.",
	"answer.no_answer":   "Whether a request without an answer is charged.",
	"cost.min":           "The lowest cost. If it is 0, a client can switch its limit off.",
	"cost.max":           "The highest cost; also the cost if a value cannot be read.",

	"requests.jwt":      "A claim that jwt_authn has verified.",
	"requests.property": "An attribute of Envoy, by the segments of its path, such as dynamic metadata or filter state.",
	"requests.header":   "A request header.",
	"requests.trusted": "Says that a proxy in front of Envoy sets or removes the header or attribute. Required if a " +
		"client could choose it.",
	"requests.default": "Limit of a request without a whole number there.",
	"requests.max":     "The highest limit. A sliding_window_log remembers this many requests of each key.",

	"matched_cost.match": "Selects the requests with this cost; by default all. If a request can be read in several " +
		"ways that match several items, the highest cost counts.",
	"matched_cost.cost": "Cost of these requests.",

	"override.key": `A pattern for each part of the key, written as in the headers of match. A missing part matches ` +
		`only "*".`,
	"override.name": "Name of the override in headers, access logs and explain; for a rule's first 16 overrides also " +
		"in metrics.",
	"override.limits": "Windows of the rule, with other requests or burst. A window of the rule that is not listed is " +
		"unlimited for these keys, and still counts.",
	"override.unlimited": "Write it in place of limits: requests are allowed and not counted.",

	"missing_key.deny": `The response to the client; fields left out are those of the rule's response. The default ` +
		`body is "missing %MISSING%".`,

	"response.status":       "HTTP status. gRPC requests get 200 and grpc_status.",
	"response.body":         `Text with placeholders as in headers; default is "rate limit exceeded".`,
	"response.content_type": "Content type of the body.",
	"response.headers": "Headers to add. Placeholders: %RULE%, %RETRY_AFTER% (seconds), %LIMIT%, %REMAINING% and " +
		"%MISSING%; %% is a percent sign.",
	"response.grpc_status": "gRPC status of a denial.",
	"response.grpc_retry_info": "Whether grpc-status-details-bin has the wait as google.rpc.RetryInfo, if the wait is " +
		"known. OpenTelemetry's exporters only retry with it. HTTP clients get the header too.",

	"usage.path": "Path at which the proxy answers GET and HEAD with the client's usage, such as " +
		"/.well-known/ratelimit. Only rules that name it in match.paths count these requests. Up to 256 bytes, " +
		"without query, escapes and patterns.",
	"manage.path":         "Path of management requests, such as /.sluice/. Requests below it never reach the upstream.",
	"manage.token_sha256": "SHA-256 of the bearer token, in hexadecimal.",
	"manage.port": "The only local port on which management requests are answered; by default they are answered on " +
		"every port.",
}

// bareKeys lists the key parts that may be written as a word alone.
func bareKeys() string {
	words := policy.BareKeys()
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
