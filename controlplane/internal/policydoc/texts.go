package policydoc

// texts say what each field means, by "OBJECT.FIELD": the schema and the
// reference print them.
var texts = map[string]string{
	"policy.version":  "Version of this format.",
	"policy.revision": "Set by the control plane when it pushes a policy; reserved in a file.",
	"policy.domain":   "Namespace of the counters.",
	"policy.headers":  "Rate-limit fields on responses: ietf is RateLimit and RateLimit-Policy (draft 10), x-ratelimit the older X-RateLimit-* (draft 03). Retry-After on a denial is separate.",
	"policy.quota":    "How the rules of scope cluster ask the quota service.",
	"policy.rules":    "The rules, in order. All that match a request must allow it.",
	"policy.manage":   "Answer management requests; absent means off.",

	"rule.name":            "Unique; names the rule in metrics and messages.",
	"rule.counter":         "Identity of the counters; default is the name. Rules with one counter share it, and a rule that keeps its counter can be renamed.",
	"rule.scope":           "What the limits hold over: proxy, each Envoy process by itself; cluster, all Envoys of the domain that ask one quota service.",
	"rule.match":           "Which requests the rule is for: all given conditions must hold; absent is every request.",
	"rule.exempt":          "Requests that the rule is not for, although they match: a list of objects like match; one that holds is enough.",
	"rule.key":             "The parts of the key, in order; absent or empty is one counter for all.",
	"rule.missing_key":     "What happens to a request that lacks a part of the key: the rule does not apply to it, it is denied, or all such requests share a counter.",
	"rule.algorithm":       "How the windows count, unless a limit says otherwise.",
	"rule.limits":          "The windows. A request must fit in every one; an empty list always allows.",
	"rule.overrides":       "Other limits for some keys; the first override that matches a key holds.",
	"rule.cost":            "How many units a request takes: a number, or read from a header or a query parameter.",
	"rule.count_denied":    "Whether a request that this rule denies is counted all the same; not for token_bucket.",
	"rule.mode":            "shadow: the rule decides, counts and reports, and never denies. off: it does nothing.",
	"rule.enforce_percent": "Share of the keys on which denials are enforced: the same keys on every Envoy. The others act as in mode shadow, with which this does not go.",
	"rule.capacity":        "Live keys the counter has room for.",
	"rule.on_full":         "What happens to a new key where there is no room: it takes the place of the key that uses least, without anyone gaining quota; it is denied; or it is allowed.",
	"rule.on_error":        "The verdict when a call to the host fails.",
	"rule.on_contention":   "The verdict when the compare-and-swap retries run out.",
	"rule.lease":           "For scope cluster: the most units that one grant gives a proxy ahead of need. auto follows the demand; off grants nothing ahead, so each request asks.",
	"rule.on_unavailable":  "For scope cluster, the verdict while the quota service is silent: local counts in this Envoy alone, up to its share of the limit; or every request is allowed or denied.",
	"rule.response":        "What a denied client gets: status, body and headers.",

	"quota.cluster": "Envoy's cluster of the quota service, at most 256 bytes.",
	"quota.timeout": "How long a request waits for the quota service, 1ms to 10s.",

	"match.hosts":      `Hosts without port, in any case: exact, or "*.example.com" for all below it.`,
	"match.methods":    "Methods, such as GET; in any case, but for exempt.",
	"match.paths":      `Paths without query, escapes such as %20 resolved: prefix*, exact ("=" before it takes a * literally), or "~" and an RE2 expression that matches in full.`,
	"match.headers":    `From header names to values: exact ("=" before it takes signs literally), prefix*, *suffix, "~" and an RE2 expression, "*" for present, "!" for absent.`,
	"match.client_ips": "Addresses and networks (10.0.0.0/8) of the client, as Envoy trusts it.",

	"key.header":    "Value of this request header.",
	"key.client_ip": "The client's address as Envoy trusts it, cut to a prefix.",
	"key.host":      "The host, without port.",
	"key.method":    "The method.",
	"key.path":      `The path without query: "full", or {segment: n} for its n-th segment from 1.`,
	"key.query":     "Value of this query parameter, the first if it is repeated, with escapes and + resolved.",
	"key.cookie":    "Value of this cookie, the first if it is repeated, without quotes around it.",
	"key.route":     "The name of the route that Envoy chose.",
	"key.jwt":       "A claim of the token that Envoy's jwt_authn filter has verified: a text, a number, true or false.",
	"key.property":  `An attribute of Envoy, by the segments of its path: ["connection", "uri_san_peer_certificate"].`,
	"key.first_of":  "The first of these parts that the request has. It is a key of its own: a header never counts as an address of the same text.",

	"client_ip.v4_prefix": "Bits of an IPv4 address that count.",
	"client_ip.v6_prefix": "Bits of an IPv6 address that count; one subscriber usually has 64.",

	"path.segment": "Which segment of the path, from 1.",

	"jwt.provider": "Where jwt_authn puts the claims: the provider's payload_in_metadata. Istio calls it payload, Envoy Gateway by the provider's name.",
	"jwt.claim":    "The claim: its name, or a list of names that lead to one inside another.",

	"limit.requests":  "Units allowed in the window, or that a token_bucket gains in it; 0 always denies.",
	"limit.per":       "Length of the window, 1ms to 366d.",
	"limit.name":      "Names the window in counters commands; default is its index.",
	"limit.algorithm": "How this window counts; default is the rule's algorithm.",
	"limit.burst":     "The most tokens a token_bucket holds; default is its requests.",
	"limit.offset":    "Shifts the windows of fixed_window on the clock: 7d with offset 4d starts on Mondays UTC. Less than per.",
	"limit.jitter":    "Shifts the windows of fixed_window by up to that percentage of per, each key's by its own constant, so that not all keys start anew at once.",
	"limit.elastic":   "Deprecated: every counted hit moves the end of a fixed_window_per_key to per from now.",

	"cost.header":  "Request header that holds the cost; this or query.",
	"cost.query":   "Query parameter that holds the cost; this or header.",
	"cost.default": "Cost where the header or parameter is missing, repeated or no whole number.",
	"cost.min":     "Smallest cost; with 0 a client can switch its limit off.",
	"cost.max":     "Largest cost.",

	"override.key":       `One pattern for each part of the rule's key: exact ("=" before it takes signs literally), prefix*, *suffix, "~" and an RE2 expression that matches in full, "*" for any.`,
	"override.limits":    "Windows of the rule with other numbers; one left out is unlimited for these keys.",
	"override.unlimited": "Every request with such a key is allowed and none counted; in place of limits.",

	"response.status":       "HTTP status of a denial, 400 to 599: anything less would pass for a success or send the client elsewhere. gRPC requests get 200 and grpc_status.",
	"response.body":         `Body of a denial, at most 4096 bytes, with the placeholders of headers; "" is none, and the default is a line that says "rate limit exceeded". A gRPC client gets it as grpc-message.`,
	"response.content_type": "Content-Type of the body.",
	"response.headers":      "Headers of a denial, from names to texts, at most 32. %RULE%, %RETRY_AFTER%, %LIMIT% and %REMAINING% stand for values, %% for a percent sign; a header whose value is not known is left out.",
	"response.grpc_status":  "gRPC status of a denial, by name or number; never ok.",

	"manage.path":         "Path under which management requests are answered, such as /.sluice/.",
	"manage.token_sha256": "SHA-256 of the bearer token, in hexadecimal.",
	"manage.port":         "Answer only on this local port; absent means on any.",
}
