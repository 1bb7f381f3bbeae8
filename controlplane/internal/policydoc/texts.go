package policydoc

// texts say what each field means, by "OBJECT.FIELD": the schema and the
// reference print them.
var texts = map[string]string{
	"policy.version":       "Version of this format.",
	"policy.revision":      "Set by the control plane; refused in a file.",
	"policy.domain":        "Namespace of the counters.",
	"policy.headers":       "Rate-limit fields on responses: RateLimit and RateLimit-Policy, or X-RateLimit-*.",
	"policy.quota":         "How rules of scope cluster ask the quota service.",
	"policy.rules":         "All that match a request must allow it.",
	"policy.exempt":        "Requests that no rule decides or counts.",
	"policy.manage":        "Lets operators read and change counters.",
	"policy.report_keys":   "How sluice counters top shows keys: by 64 bits of an HMAC-SHA-256, as they are, or not at all. Keys that may hold a credential are never shown: of a cookie, an authentication scheme, or a header, parameter, attribute or claim with a name such as authorization, x-api-key or access_token.",
	"policy.report_secret": "Set by the control plane; refused in a file.",

	"rule.name":            "Unique; names the rule in metrics and messages.",
	"rule.counter":         "Identity of the counters; default is the name. Keep it when you rename a rule. Rules with the same counter count together; they must have the same key parts, windows, capacity, scope and lease, and with leases the same limits and overrides.",
	"rule.scope":           "What the limits hold over: each Envoy process, or all Envoys of the domain that ask one quota service.",
	"rule.match":           "Which requests the rule is for; by default all.",
	"rule.exempt":          "Matching requests that the rule neither decides nor counts.",
	"rule.key":             "The parts of the key, in order; client_ip, host, method, path and route may stand alone. Without a key the rule has one counter for all.",
	"rule.missing_key":     `What becomes of a request that lacks a part of the key. skip: the rule ignores it. deny: it is denied, without Retry-After. share: it counts under its other parts and "missing", which differs from empty.`,
	"rule.algorithm":       "How the windows count.",
	"rule.limits":          "A request must fit in every window; an empty list always allows.",
	"rule.overrides":       "Other limits for some keys; the first that matches holds.",
	"rule.cost":            "How many units a request takes. Of a list the first whose match holds decides.",
	"rule.count_denied":    "Requests that this rule denies add their cost to all its windows, so that a client that does not stop stays denied; not for token_bucket.",
	"rule.mode":            "shadow: the rule never denies. It decides only requests that the enforced rules allow, counts what it would let through, and reports the rest. off: it does nothing.",
	"rule.enforce_percent": "Share of the keys for which the rule is enforced; for the others it is in shadow. The keys are the same on every Envoy, and stay when the share grows. Not with mode shadow.",
	"rule.capacity":        "Live keys that the counter has room for.",
	"rule.on_full":         "A new key without room. inherit: takes the place of the key that has used the smallest share of its limit. deny: is denied until there is room. allow: is allowed and not counted.",
	"rule.on_error":        "The verdict when Envoy refuses a call of the filter, or a stored counter cannot be read. allow: not counted. deny: with Retry-After 1.",
	"rule.on_contention":   "The same when other workers were faster at the counter 256 times in a row.",
	"rule.lease":           "For scope cluster: the units that one grant gives ahead of need. auto: at most a quarter of what is left. A number: at most this many. off: each request asks.",
	"rule.on_unavailable":  "For scope cluster, while the quota service is silent. local: each Envoy counts by itself, up to its share of the limit. allow: not counted. deny: only what a lease covers is allowed.",
	"rule.response":        "What a denied client gets.",

	"quota.cluster": "Envoy's cluster that leads to the quota service, at most 256 bytes.",
	"quota.timeout": "How long a request waits for the quota service, 1ms to 10s.",

	"match.hosts":      `Hosts in any case, without user, final dots and port: exact, or "*.example.com" for every host below example.com. An IPv6 address stands in brackets.`,
	"match.methods":    "In upper case. A request's get is GET in match, and another method in exempt.",
	"match.paths":      `Paths as Envoy normalised them, without query, escapes resolved: exact ("=" before it takes a * literally), prefix*, "*" for all, or "~" and an RE2 expression that matches in full.`,
	"match.headers":    `All must hold: exact ("=" before it takes signs literally), prefix*, *suffix, "~" and an RE2 expression that matches in full, "*" for present, "!" for absent. Of a repeated header one value must match, or all joined by ","; in exempt every one.`,
	"match.client_ips": "Addresses and networks (10.0.0.0/8) of the client, as Envoy trusts it. A client on a Unix socket has none.",

	"key.header":    "Value of this request header, the first if it is repeated, without blanks around it. An empty value is not missing.",
	"key.client_ip": "The client's address as Envoy trusts it, cut to a prefix. Missing on a Unix socket.",
	"key.host":      "The host in lower case, without user, final dots and port.",
	"key.method":    "The method in upper case.",
	"key.path":      `The path without query and parameters, escapes resolved: "full", or {segment: n}: the second of /a/b/c is b. Missing where the segment is empty or beyond the last.`,
	"key.query":     "Value of this query parameter, the first if it is repeated, with escapes and + resolved. ?q is empty, not missing. If there is none, one that an upstream takes for it counts, such as Q or q[].",
	"key.cookie":    "Value of this cookie, the first if it is repeated, without quotes and with escapes resolved.",
	"key.route":     "The name of the route that Envoy chose, if it has one.",
	"key.jwt":       "A claim that Envoy's jwt_authn filter, placed before this one, has verified: a text, a number, true or false.",
	"key.property":  `An attribute of Envoy, by the segments of its path: ["connection", "uri_san_peer_certificate"].`,
	"key.address":   "The address in this request header, cut to a prefix: the first of a list, without port, brackets and quotes. Use it only for a header that a proxy in front of Envoy sets.",
	"key.first_of":  "The first of these that the request has. A header never counts as an address of the same text.",

	"header.name":   "The header.",
	"header.scheme": "Authentication scheme before the credential, such as bearer, in any case. The credential alone counts; with another scheme the header is missing.",

	"address.header":    "The header, such as cf-connecting-ip.",
	"address.v4_prefix": "Bits of an IPv4 address that count.",
	"address.v6_prefix": "Bits of an IPv6 address that count.",

	"client_ip.v4_prefix": "Bits of an IPv4 address that count.",
	"client_ip.v6_prefix": "Bits of an IPv6 address that count.",

	"path.segment": "Which segment of the path, from 1.",

	"jwt.provider": "Where jwt_authn puts the claims: its payload_in_metadata. It is payload in Istio, the provider's name in Envoy Gateway.",
	"jwt.claim":    `The claim: its name, or a list of names that lead into others, such as [org, id] or [groups, "0"].`,

	"limit.requests":   "Units allowed in the window, or that a token_bucket gains in it; 0 always denies. At most 512 for a sliding_window_log. An object says where each request says the number; not for token_bucket, nor in overrides.",
	"limit.per":        "Length of the window, 1ms to 366d: a duration such as 1h30m or 2w, or a count of seconds, minutes, hours, days, weeks, months or years. Months and years, for fixed_window only, are the calendar's: 1, 2, 3, 4, 6 or 12 months from January on.",
	"limit.name":       "The window's name in answers and headers, not only digits; default is its index from 0.",
	"limit.algorithm":  "Default is the rule's.",
	"limit.burst":      "For token_bucket only: the most tokens it holds, at least 1; default is its requests.",
	"limit.offset":     "For fixed_window only: shifts the windows on the clock, by less than per, and less than 28d for months: 7d with offset 4d starts on Mondays UTC.",
	"limit.utc_offset": "For months and years only: how far the clock on which they start is ahead of UTC, from -12:00 to +14:00, without daylight saving time.",
	"limit.jitter":     "For fixed_window only, not months: shifts each key's windows by a constant below that percentage of per.",
	"limit.elastic":    "Deprecated, for fixed_window_per_key only: every counted hit moves the window's end to per from now.",

	"cost.header":  "Request header with the cost; this or query.",
	"cost.query":   "Query parameter with the cost; this or header.",
	"cost.default": "Cost where the request lacks it; from min to max.",
	"cost.min":     "A smaller number counts as this. With 0 a client can switch its limit off.",
	"cost.max":     "A larger number counts as this, and so does a value that cannot be read.",

	"requests.jwt":      "A claim that Envoy's jwt_authn filter has verified.",
	"requests.property": "An attribute of Envoy, by the segments of its path: dynamic metadata, filter state and what else Envoy or its filters set. One that the client chooses needs trusted.",
	"requests.header":   "A request header, with trusted: true. Two different values are no number.",
	"requests.trusted":  "Says that a proxy in front sets or removes this header, or attribute of the client's. Without it such a place is refused, as clients would choose their own limit.",
	"requests.default":  "The limit of a request that says none: nothing is there, or no whole number in digits.",
	"requests.max":      "A larger number counts as this. A log remembers so many requests of each key.",

	"matched_cost.match": "Which requests have this cost. The last item may be without match: it is for all others, which otherwise cost 1. If a request may be read in several ways, the highest cost counts.",
	"matched_cost.cost":  "Their cost.",

	"override.key":       `One pattern for each part of the key, in order, as in the headers of match, without "!". A missing part matches only "*".`,
	"override.name":      "Its name in fields, access logs, explain and, for a rule's first 16, metrics. Overrides may share a name.",
	"override.limits":    "Windows of the rule with other requests or burst. A window left out is unlimited for these keys, and still counts.",
	"override.unlimited": "In place of limits: allowed and not counted.",

	"missing_key.deny": `What the client gets. What it leaves out is as in the rule's response; without a body in either it is "missing %MISSING%".`,

	"response.status":       "HTTP status of a denial. gRPC requests get 200 and grpc_status.",
	"response.body":         `Body of a denial, at most 4096 bytes, with placeholders as in headers; default is "rate limit exceeded". A gRPC client gets it as grpc-message.`,
	"response.content_type": "Content-Type of the body.",
	"response.headers":      "Headers of a denial, at most 32, with placeholders: %RULE%, %RETRY_AFTER%, %LIMIT%, %REMAINING% and %MISSING%, %% for a percent sign. Headers of the connection or the filter, such as Content-Length, Retry-After and RateLimit, cannot be set.",
	"response.grpc_status":  "gRPC status of a denial.",

	"manage.path":         "Path of management requests, such as /.sluice/, from / to /. Requests under it never reach the upstream.",
	"manage.token_sha256": "SHA-256 of the bearer token, in hexadecimal.",
	"manage.port":         "Answer only requests that came in on this local port; others get 404. Without it every port answers.",
}
