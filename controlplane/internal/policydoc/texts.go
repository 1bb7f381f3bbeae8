package policydoc

// texts say what each field means, by "OBJECT.FIELD": the schema and the
// reference print them.
var texts = map[string]string{
	"policy.name": "Its name, if a control plane has several.",
	"policy.proxies": "Selects proxies; all conditions must match. The policy default gets the others. In patterns " +
		"* stands for any characters.",
	"proxies.node":    "Pattern of the node id.",
	"proxies.cluster": "Pattern of the node's cluster, which the proxy itself chooses.",
	"proxies.metadata": "Patterns of texts of up to 256 bytes in the node's metadata, which the proxy itself chooses; " +
		"outer.inner is inside a struct.",
	"proxies.san":   "Pattern of the name in the proxy's certificate that grants its node id.",
	"proxies.trust": "Required with metadata: trust what a proxy says there.",

	"policy.version":  "Version of this format.",
	"policy.revision": "Set by the control plane; refused in a file.",
	"policy.domain":   "Namespace of the counters.",
	"policy.headers":  "Rate-limit fields on responses.",
	"policy.quota":    "How rules of scope cluster ask the quota service.",
	"policy.rules":    "All that match a request must allow it.",
	"policy.exempt":   "Requests that no rule decides or counts.",
	"policy.manage":   "Lets operators read and change counters.",
	"policy.report_keys": "How sluice counters top shows keys: by 64 bits of an HMAC-SHA-256, as they are, or not " +
		"at all. Credentials are never shown: cookies, values after an authentication scheme, and headers with a name " +
		"such as x-api-key.",
	"policy.report_secret": "Set by the control plane; refused in a file.",

	"rule.name": "Unique; names the rule in metrics and messages.",
	"rule.counter": "Identity of the counters; default is the name. Keep it when you rename a rule. Rules of " +
		"one counter count together.",
	"rule.scope":  "The limits hold for each Envoy process, or over all Envoys that ask one quota service.",
	"rule.match":  "Selects the requests that the rule is for; by default all.",
	"rule.exempt": "Requests that the rule neither decides nor counts.",
	"rule.key": "Parts of the key, in order; client_ip, host, method, path and route may stand alone. " +
		"Without a key all requests count together.",
	"rule.missing_key": `For a request that lacks a part of the key. skip: the rule ignores it. deny: it is ` +
		`denied. share: it counts under its other parts and "missing".`,
	"rule.algorithm": "How windows count, unless a limit says otherwise. concurrency limits how many requests " +
		"run at once.",
	"rule.limits":       "A request must fit in every window; an empty list always allows.",
	"rule.overrides":    "Other limits for some keys; the first that matches holds.",
	"rule.cost":         "Units that a request takes. In a list the first item whose match holds decides.",
	"rule.count_denied": "Requests that this rule denies count too, so a client that goes on stays denied.",
	"rule.mode": "shadow: the rule decides only requests that the enforced rules allow, and reports " +
		"instead of denying. off: it does nothing.",
	"rule.settle": "What a request is charged once its answer is known. Until then it holds its cost.",
	"rule.hold": "With settle or concurrency: how long a hold lasts that its request does not renew, 10s " +
		"to 1d. A running request renews it. A lost hold is charged if the rule has windows.",
	"rule.max_hold": "With settle or concurrency: a request that runs for longer holds nothing any more; by " +
		"default unlimited.",
	"rule.linger": "For concurrency: how long a slot stays taken after the upstream was reset, because it " +
		"may still work: 0s to 1m.",
	"rule.enforce_percent": "Share of the keys for which the rule is enforced, the same on every Envoy; for others it " +
		"is in shadow.",
	"rule.capacity": "Live keys that the counter has room for.",
	"rule.on_full": "For a new key without room. inherit: it takes the place of the key that has used the " +
		"smallest share of its limit. allow: not counted.",
	"rule.on_error": "If a call of the filter fails, or a counter cannot be read. allow: not counted. deny: " +
		"with Retry-After 1.",
	"rule.on_contention": "The same if other workers changed the counter first, 256 times in a row.",
	"rule.lease": "For scope cluster: the most units that one grant gives ahead of need. auto: a quarter of " +
		"what is left. off: each request asks.",
	"rule.on_unavailable": "For scope cluster, while the quota service is silent or, for rules with settle or " +
		"concurrency, its store has no state yet. local: each Envoy counts by itself, up to its share of the limit. " +
		"allow: not counted. deny: only what is leased.",
	"rule.response": "What a denied client gets.",

	"quota.cluster": "Envoy's cluster for the service.",
	"quota.timeout": "How long a request waits for it, 1ms to 10s.",

	"match.hosts": `Upper or lower case, without user, final dots and port: exact, or "*.example.com" for every ` +
		`host below example.com.`,
	"match.methods": "In upper case.",
	"match.paths": `As Envoy normalised them, without query, escapes resolved: exact ("=" before it makes a * ` +
		`literal), prefix*, "*" for all, or "~" and an RE2 expression that matches in full.`,
	"match.headers": `All must hold: exact ("=" before it makes signs literal), prefix*, *suffix, "~" and an RE2 ` +
		`expression that matches in full, "*" for present, "!" for absent. Of a repeated header one value must match, or ` +
		`all joined by ","; in exempt every one.`,
	"match.client_ips": "Addresses and networks of the client, as Envoy trusts it.",

	"key.header":    "This request header, the first if it is repeated. Empty is not missing.",
	"key.client_ip": "The client's address as Envoy trusts it, cut to a prefix.",
	"key.host":      "Lower case, without user, final dots and port.",
	"key.method":    "Upper case.",
	"key.path":      `Without query and parameters, escapes resolved: "full", or {segment: 2}, which is b of /a/b/c.`,
	"key.query": "This query parameter, the first if it is repeated. If there is none, one that an upstream may " +
		"read as it counts, such as Q or q[].",
	"key.cookie": "This cookie, the first if it is repeated. " +
		"Empty where servers disagree because quotes go on over \";\", so that such requests count together.",
	"key.route":    "The route that Envoy chose, if it has a name.",
	"key.jwt":      "A claim that Envoy's jwt_authn filter, placed before this one, has verified.",
	"key.property": `An attribute of Envoy, by the segments of its path: ["connection", "uri_san_peer_certificate"].`,
	"key.address": "The address in this request header, the first of a list, cut to a prefix. Only for a header that " +
		"a proxy in front of Envoy sets.",
	"key.first_of": "The first of these that the request has.",

	"header.name":   "The header.",
	"header.scheme": "Authentication scheme, such as bearer, before the credential. Only the credential counts.",

	"address.header":    "The header, such as cf-connecting-ip.",
	"address.v4_prefix": "Bits of an IPv4 address that count.",
	"address.v6_prefix": "Bits of an IPv6 address that count.",

	"client_ip.v4_prefix": "Bits of an IPv4 address that count.",
	"client_ip.v6_prefix": "Bits of an IPv6 address that count.",

	"path.segment": "Which segment, from 1.",

	"jwt.provider": "Where jwt_authn puts the claims: its payload_in_metadata; in Istio payload; in Envoy Gateway the " +
		"provider's name.",
	"jwt.claim": `Its name, or names that lead into others, such as [org, id] or [groups, "0"].`,

	"limit.requests": "Units allowed in the window, or that a token_bucket gains in it; 0 always denies. A " +
		"sliding_window_log takes at most 512. An object names the place where a request has the number.",
	"limit.per": "Length of the window, 1ms to 366d. Months and years are the calendar's: 1, 2, 3, 4, 6 or 12 " +
		"months from January on.",
	"limit.name":       "Its name in answers and headers; default is its index from 0.",
	"limit.algorithm":  "Default is the rule's.",
	"limit.burst":      "For token_bucket: the most tokens it holds; default is its requests.",
	"limit.offset":     "For fixed_window: shifts the windows on the clock, by less than per.",
	"limit.utc_offset": "For months and years: how far their clock is ahead of UTC, without daylight saving time.",
	"limit.jitter":     "For fixed_window: shifts each key's windows by a constant below that percentage of per.",
	"limit.elastic":    "Deprecated: for fixed_window_per_key, every counted hit moves the window's end to per from now.",

	"cost.header":            "Request header with the cost.",
	"cost.query":             "Query parameter with the cost.",
	"cost.default":           "For a request without it.",
	"slots.requests":         "Requests that may run at once; 0 always denies.",
	"slots.name":             "Its name in answers and headers; default is 0.",
	"cost.request_bytes":     "By the length of the request's body.",
	"request_bytes.per_unit": "Bytes of one unit; a part counts whole.",
	"request_bytes.min":      "The least.",
	"request_bytes.max":      "The most, and for a body without content-length. A request without a body has 0 bytes.",
	"settle.to": "cost: what was held. tokens, input_tokens, output_tokens: what the answer says. " +
		"request_bytes, response_bytes: of the bodies. milliseconds: until the answer's end. Or a number in a header or " +
		"trailer.",
	"settle.when": "Selects the answers that are charged; all conditions must hold. Others cost 0.",
	"settle.unknown": "What is charged if the answer does not say it. estimate, the default for tokens: by " +
		"the lengths of the bodies. cost, the default otherwise: what was held.",
	"settle.max": "The most that one answer is charged, even if more was held; by default unlimited.",
	"settle.identity": "Removes accept-encoding from the request, because a compressed answer is not read. By " +
		"default only for tokens.",
	"settle_to.header":   "Header of the answer with a whole number.",
	"settle_to.trailer":  "Trailer of the answer with a whole number.",
	"answer.status":      "The client must get one of them.",
	"answer.grpc_status": "The answer must have one of them.",
	"answer.headers":     "Headers of the answer, as in match, all of which must hold.",
	"answer.no_answer":   "Whether a request without an answer is charged.",
	"cost.min":           "The least. With 0 a client can switch its limit off.",
	"cost.max":           "The most, and for a value that cannot be read.",

	"requests.jwt":      "A claim that jwt_authn has verified.",
	"requests.property": "An attribute of Envoy, by the segments of its path, such as dynamic metadata or filter state.",
	"requests.header":   "A request header.",
	"requests.trusted": "Says that a proxy in front sets or removes the header or attribute. Required if a client " +
		"could choose it.",
	"requests.default": "For a request without a whole number there.",
	"requests.max":     "The most. A log remembers this many requests of each key.",

	"matched_cost.match": "Selects the requests with this cost; by default all. If a request can be read in several " +
		"ways that match several items, the highest cost counts.",
	"matched_cost.cost": "Their cost.",

	"override.key": `A pattern for each part of the key, as in the headers of match. A missing part matches ` +
		`only "*".`,
	"override.name": "Its name in fields, access logs, explain and, for a rule's first 16, metrics.",
	"override.limits": "Windows of the rule with other requests or burst. One left out is unlimited for these " +
		"keys, and still counts.",
	"override.unlimited": "In place of limits: allowed and not counted.",

	"missing_key.deny": `What the client gets, otherwise the rule's response; the default body is "missing %MISSING%".`,

	"response.status":       "gRPC requests get 200 and grpc_status.",
	"response.body":         `With placeholders as in headers; default is "rate limit exceeded".`,
	"response.content_type": "Of the body.",
	"response.headers": "With placeholders: %RULE%, %RETRY_AFTER% (seconds), %LIMIT%, %REMAINING% and %MISSING%, " +
		"%% for a percent sign.",
	"response.grpc_status": "gRPC status of a denial.",
	"response.grpc_retry_info": "Whether grpc-status-details-bin has the wait as google.rpc.RetryInfo, if it is " +
		"known. OpenTelemetry's exporters only retry with it. HTTP clients get the header, too.",

	"manage.path":         "Path of management requests, such as /.sluice/. Requests under it never reach the upstream.",
	"manage.token_sha256": "SHA-256 of the bearer token, in hexadecimal.",
	"manage.port":         "Answers only requests that came in on this local port; by default on every port.",
}
