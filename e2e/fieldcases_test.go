package e2e

// fieldCases are the fields whose effect two policies and a few requests can show.
var fieldCases = map[string]fieldCase{
	"rule.name": {`
- {name: ⟦gold|silver⟧, match: {@}, limits: [0/1h], response: {headers: {x-rule: "%RULE%"}}}`, "x-rule", []fieldStep{
		{"/", "gold", "silver"},
	}},
	"rule.counter": {`
- {name: $, match: {@, paths: [/a]}, ⟦counter: both⟧, limits: [1/FAR]}
- {name: $2, match: {@, paths: [/b]}, ⟦counter: both⟧, limits: [1/FAR]}`, "", []fieldStep{
		{"/a", "200", "200"}, {"/b", "429", "200"}, {"/b", "429", "429"},
	}},
	"rule.exempt": {`
- {name: $, match: {@}, ⟦exempt: [{headers: {x-probe: "1"}}, {paths: [/health]}]⟧, limits: [0/1h]}`, "", []fieldStep{
		{"/", "429", "429"}, {"/ x-probe=1", "200", "429"}, {"/health", "200", "429"},
	}},
	"rule.key": {`
- {name: $, match: {@}, ⟦key: [{header: u}]⟧, missing_key: share, limits: [1/FAR]}`, "", []fieldStep{
		{"/ u=a", "200", "200"}, {"/ u=b", "200", "429"}, {"/ u=b", "429", "429"},
	}},
	"rule.missing_key": {`
- {name: $, match: {@}, key: [{header: u}], ⟦missing_key: deny⟧, limits: [9/FAR]}`, "", []fieldStep{
		{"/ u=a", "200", "200"}, {"/", "429", "200"},
	}},
	"missing_key.deny": {`
- {name: $, match: {@}, key: [{header: u}, {header: v}], missing_key: ⟦{deny: {body: "no %MISSING%"}}|deny⟧, limits: [9/FAR], response: {headers: {x-missing: "%MISSING%"}}}`, "body", []fieldStep{
		{"/ u=a", "no header v", "missing header v"}, {"/", "no header u, header v", "missing header u, header v"},
	}},
	"rule.algorithm": {`
- {name: $, match: {@}, ⟦algorithm: fixed_window_per_key|algorithm: token_bucket⟧, limits: [9/FAR]}`, "ratelimit", []fieldStep{
		{"/", `"rule.algorithm";r=8;t=31622400`, `"rule.algorithm";r=8;t=3513600`},
	}},
	"rule.limits": {`
- {name: $, match: {@}, limits: ⟦[0/1h]|[]⟧}`, "", []fieldStep{
		{"/", "429", "200"},
	}},
	"rule.overrides": {`
- {name: $, match: {@}, key: [{header: u}], limits: [0/1h], ⟦overrides: [{key: [vip], unlimited: true}]⟧}`, "", []fieldStep{
		{"/ u=a", "429", "429"}, {"/ u=vip", "200", "429"},
	}},
	"override.name": {`
- {name: $, match: {@}, key: [{header: u}], algorithm: fixed_window_per_key, limits: [9/FAR], overrides: [{⟦name: gold⟧, key: [a], limits: [5/FAR]}]}`, "ratelimit", []fieldStep{
		{"/ u=a", `"override.name:gold";r=4;t=31622400`, `"override.name";r=4;t=31622400`}, {"/ u=b", `"override.name";r=8;t=31622400`, `"override.name";r=8;t=31622400`},
	}},
	"rule.cost": {`
- {name: $, match: {@}, ⟦cost: 2⟧, limits: [3/FAR]}`, "", []fieldStep{
		{"/", "200", "200"}, {"/", "429", "200"},
	}},
	"matched_cost.match": {`
- {name: $, match: {@}, cost: [{⟦match: {paths: [/search]}|match: {paths: [/other]}⟧, cost: 2}], limits: [3/FAR]}`, "", []fieldStep{
		{"/search", "200", "200"}, {"/search", "429", "200"}, {"/", "200", "200"},
	}},
	"matched_cost.cost": {`
- {name: $, match: {@}, cost: [{match: {paths: [/search]}, ⟦cost: 2|cost: 1⟧}], limits: [3/FAR]}`, "", []fieldStep{
		{"/search", "200", "200"}, {"/search", "429", "200"}, {"/", "200", "200"},
	}},
	"rule.count_denied": {`
- {name: $, match: {@}, ⟦count_denied: true⟧, cost: {header: c}, limits: [2/FAR]}`, "", []fieldStep{
		{"/ c=3", "429", "429"}, {"/ c=1", "429", "200"},
	}},
	"rule.mode": {`
- {name: $, match: {@}, ⟦mode: shadow⟧, limits: [0/1h]}
- {name: $2, match: {@, paths: [/off]}, ⟦mode: "off"⟧, limits: [0/1h]}`, "", []fieldStep{
		{"/", "200", "429"}, {"/off", "200", "429"},
	}},
	"rule.enforce_percent": {`
- {name: $, match: {@}, ⟦enforce_percent: 0⟧, limits: [0/1h]}`, "", []fieldStep{
		{"/", "200", "429"},
	}},
	"rule.capacity": {`
- {name: $, match: {@}, key: [{header: u}], limits: [9/FAR], on_full: deny, ⟦capacity: 1⟧}`, "", []fieldStep{
		{"/ u=a", "200", "200"}, {"/ u=b", "429", "200"}, {"/ u=a", "200", "200"},
	}},
	"rule.on_full": {`
- {name: $, match: {@}, key: [{header: u}], limits: [9/FAR], capacity: 1, ⟦on_full: deny⟧}`, "", []fieldStep{
		{"/ u=a", "200", "200"}, {"/ u=b", "429", "200"},
	}},
	"rule.response": {`
- {name: $, match: {@}, limits: [0/1h], ⟦response: {status: 503}⟧}`, "", []fieldStep{
		{"/", "503", "429"},
	}},

	"match.hosts": {`
- {name: $, match: {paths: [/$], ⟦hosts: ["*.shop.example"]⟧}, limits: [0/1h]}`, "", []fieldStep{
		{"/match.hosts :host=a.shop.example:80", "429", "429"}, {"/match.hosts", "200", "429"},
	}},
	"match.methods": {`
- {name: $, match: {@, ⟦methods: [PUT, POST]⟧}, limits: [0/1h]}`, "", []fieldStep{
		{"POST /", "429", "429"}, {"/", "200", "429"},
	}},
	"match.paths": {`
- {name: $, match: {@, ⟦paths: ["/v1/*"]⟧}, limits: [0/1h]}`, "", []fieldStep{
		{"/v1/x", "429", "429"}, {"/v2/x", "200", "429"},
	}},
	"match.headers": {`
- {name: $, match: {@, ⟦headers: {x-tenant: "acme-*"}⟧}, limits: [0/1h]}`, "", []fieldStep{
		{"/ x-tenant=acme-1", "429", "429"}, {"/ x-tenant=other", "200", "429"},
	}},
	"match.client_ips": {`
- {name: $, match: {@, ⟦client_ips: [127.0.0.2/31]⟧}, limits: [0/1h]}`, "", []fieldStep{
		{"/ :from=127.0.0.3", "429", "429"}, {"/", "200", "429"},
	}},

	"key.header": {`
- {name: $, match: {@}, key: [⟦{header: U}|host⟧], limits: [1/FAR]}`, "", []fieldStep{
		{"/ u=a", "200", "200"}, {"/ u=b", "200", "429"}, {"/", "200", "429"},
	}},
	"key.client_ip": {`
- {name: $, match: {@}, key: [⟦client_ip|host⟧], limits: [1/FAR]}`, "", []fieldStep{
		{"/", "200", "200"}, {"/", "429", "429"}, {"/ :from=127.0.0.2", "200", "429"},
	}},
	"key.host": {`
- {name: $, match: {paths: [/$]}, key: [⟦host|method⟧], limits: [1/FAR]}`, "", []fieldStep{
		{"/key.host :host=a.example", "200", "200"}, {"/key.host :host=A.example:80", "429", "429"}, {"/key.host :host=b.example", "200", "429"},
	}},
	"key.method": {`
- {name: $, match: {@}, key: [⟦method|host⟧], limits: [1/FAR]}`, "", []fieldStep{
		{"/", "200", "200"}, {"POST /", "200", "429"},
	}},
	"key.path": {`
- {name: $, match: {@}, key: [⟦{path: full}|host⟧], limits: [1/FAR]}`, "", []fieldStep{
		{"/a?x", "200", "200"}, {"/a?y", "429", "429"}, {"/a/b", "200", "429"},
	}},
	"key.query": {`
- {name: $, match: {@}, key: [⟦{query: q}|host⟧], limits: [1/FAR]}`, "", []fieldStep{
		{"/?q=a", "200", "200"}, {"/?q=b", "200", "429"}, {"/?x=1&q=%61", "429", "429"},
	}},
	"key.cookie": {`
- {name: $, match: {@}, key: [⟦{cookie: s}|host⟧], limits: [1/FAR]}`, "", []fieldStep{
		{"/ cookie=s=1", "200", "200"}, {"/ cookie=s=2", "200", "429"}, {"/ cookie=t=0;s=2", "429", "429"}, {"/ cookie=t=0 cookie=s=2", "429", "429"},
	}},
	"key.property": {`
- {name: $, match: {@}, key: [⟦{property: [request, headers, u]}|host⟧], limits: [1/FAR]}`, "", []fieldStep{
		{"/ u=a", "200", "200"}, {"/ u=b", "200", "429"},
	}},
	"key.first_of": {`
- {name: $, match: {@}, key: [⟦{first_of: [{header: u}, {header: v}]}|{header: u}⟧], limits: [1/FAR]}`, "", []fieldStep{
		{"/ v=a", "200", "200"}, {"/ v=a", "429", "200"}, {"/ u=a", "200", "200"},
	}},
	"key.address": {`
- {name: $, match: {@}, key: [⟦address: {header: a}|header: a⟧], limits: [1/FAR]}`, "", []fieldStep{
		{"/ a=192.0.2.7:80", "200", "200"}, {"/ a=192.0.2.7", "429", "200"},
	}},
	"address.header": {`
- {name: $, match: {@}, key: [address: {⟦header: a|header: b⟧}], missing_key: deny, limits: [1/FAR]}`, "", []fieldStep{
		{"/ a=192.0.2.7", "200", "429"},
	}},
	"address.v4_prefix": {`
- {name: $, match: {@}, key: [address: {header: a, ⟦v4_prefix: 24⟧}], limits: [1/FAR]}`, "", []fieldStep{
		{"/ a=192.0.2.7", "200", "200"}, {"/ a=192.0.2.8", "429", "200"},
	}},
	"address.v6_prefix": {`
- {name: $, match: {@}, key: [address: {header: a, ⟦v6_prefix: 48⟧}], limits: [1/FAR]}`, "", []fieldStep{
		{"/ a=2001:db8:0:1::1", "200", "200"}, {"/ a=2001:db8:0:2::1", "429", "200"},
	}},
	"header.name": {`
- {name: $, match: {@}, key: [header: {⟦name: authorization|name: other⟧, scheme: bearer}], missing_key: deny, limits: [1/FAR]}`, "", []fieldStep{
		{"/ authorization=Bearer␣k", "200", "429"}, {"/ authorization=bearer␣␣k", "429", "429"}, {"/ authorization=Bearer␣other", "200", "429"},
	}},
	"header.scheme": {`
- {name: $, match: {@}, key: [header: {name: authorization, ⟦scheme: bearer|scheme: basic⟧}], missing_key: deny, limits: [1/FAR]}`, "", []fieldStep{
		{"/ authorization=Bearer␣k", "200", "429"},
	}},
	"client_ip.v4_prefix": {`
- {name: $, match: {@}, key: [{client_ip: {⟦v4_prefix: 24⟧}}], limits: [1/FAR]}`, "", []fieldStep{
		{"/", "200", "200"}, {"/ :from=127.0.0.200", "429", "200"}, {"/ :from=127.0.1.1", "200", "200"},
	}},
	"path.segment": {`
- {name: $, match: {@}, key: [{path: {segment: ⟦2|1⟧}}], limits: [1/FAR]}`, "", []fieldStep{
		{"/a/x", "200", "200"}, {"/b/x", "429", "200"}, {"/b/y", "200", "429"},
	}},

	"limit.requests": {`
- {name: $, match: {@}, limits: [{requests: ⟦0|1⟧, per: 1h}]}`, "", []fieldStep{
		{"/", "429", "200"},
	}},
	"limit.per": {`
- {name: $, match: {@}, limits: [{requests: 1, per: ⟦1h|90m⟧}]}`, "ratelimit-policy", []fieldStep{
		{"/", `"limit.per";q=1;w=3600`, `"limit.per";q=1;w=5400`},
	}},
	"limit.name": {`
- {name: $, match: {@}, limits: [9/1h, {requests: 9, per: 1d, ⟦name: daily⟧}]}`, "ratelimit-policy", []fieldStep{
		{"/", `"limit.name/0";q=9;w=3600, "limit.name/daily";q=9;w=86400`, `"limit.name/0";q=9;w=3600, "limit.name/1";q=9;w=86400`},
	}},
	"limit.algorithm": {`
- {name: $, match: {@}, limits: [{requests: 9, per: FAR, algorithm: ⟦fixed_window_per_key|token_bucket⟧}]}`, "ratelimit", []fieldStep{
		{"/", `"limit.algorithm";r=8;t=31622400`, `"limit.algorithm";r=8;t=3513600`},
	}},
	"limit.burst": {`
- {name: $, match: {@}, algorithm: token_bucket, limits: [{requests: 1, per: FAR, ⟦burst: 2⟧}]}`, "", []fieldStep{
		{"/", "200", "200"}, {"/", "200", "429"}, {"/", "429", "429"},
	}},
	"limit.elastic": {`
- {name: $, match: {@}, limits: [{requests: 9, per: FAR, algorithm: fixed_window_per_key, ⟦elastic: true⟧}]}`, "ratelimit", []fieldStep{
		{"/", "~t=31622400", "~t=31622400"}, {"/ :wait=1100ms", "~t=31622400", "~t=3162239"},
	}},

	"requests.header": {`
- {name: $, match: {@}, limits: [{requests: {⟦header: l|header: m⟧, trusted: true, default: 1, max: 9}, per: FAR}]}`, "ratelimit-policy", []fieldStep{
		{"/ l=7", `~q=7;`, `~q=1;`},
	}},
	"requests.property": {`
- {name: $, match: {@}, limits: [{requests: {⟦property: [request, headers, l]|property: [filter_state, l]⟧, ⟦trusted: true⟧, default: 1, max: 9}, per: FAR}]}`, "ratelimit-policy", []fieldStep{
		{"/ l=7", `~q=7;`, `~q=1;`},
	}},
	"requests.default": {`
- {name: $, match: {@}, limits: [{requests: {header: l, trusted: true, default: ⟦5|4⟧, max: 9}, per: FAR}]}`, "ratelimit-policy", []fieldStep{
		{"/", `~q=5;`, `~q=4;`}, {"/ l=x", `~q=5;`, `~q=4;`}, {"/ l=6", `~q=6;`, `~q=6;`},
	}},
	"requests.max": {`
- {name: $, match: {@}, limits: [{requests: {header: l, trusted: true, default: 1, max: ⟦8|9⟧}, per: FAR}]}`, "ratelimit-policy", []fieldStep{
		{"/ l=10", `~q=8;`, `~q=9;`}, {"/ l=7", `~q=7;`, `~q=7;`},
	}},

	"cost.header": {`
- {name: $, match: {@}, cost: {⟦header: c|header: d⟧}, limits: [3/FAR]}`, "", []fieldStep{
		{"/ c=3", "200", "200"}, {"/ c=1", "429", "200"},
	}},
	"cost.query": {`
- {name: $, match: {@}, cost: {⟦query: n|query: m⟧}, limits: [3/FAR]}`, "", []fieldStep{
		{"/?n=3", "200", "200"}, {"/?n=1", "429", "200"},
	}},
	"cost.default": {`
- {name: $, match: {@}, cost: {header: c, ⟦default: 3⟧}, limits: [3/FAR]}`, "", []fieldStep{
		{"/", "200", "200"}, {"/ c=1", "429", "200"},
	}},
	"cost.min": {`
- {name: $, match: {@}, cost: {header: c, default: 2, ⟦min: 2⟧}, limits: [3/FAR]}`, "", []fieldStep{
		{"/ c=0", "200", "200"}, {"/ c=0", "429", "200"}, {"/ c=1", "429", "200"},
	}},
	"cost.max": {`
- {name: $, match: {@}, cost: {header: c, ⟦max: 2⟧}, limits: [3/FAR]}`, "", []fieldStep{
		{"/ c=99999999999999999999", "200", "429"},
	}},
	"cost.request_bytes": {`
- {name: $, match: {@}, cost: {⟦request_bytes: {max: 3}|header: d⟧}, limits: [3/FAR]}`, "", []fieldStep{
		{"/", "200", "200"}, {"POST /", "429", "200"},
	}},
	"request_bytes.per_unit": {`
- {name: $, match: {@}, cost: {request_bytes: {⟦per_unit: 100⟧}}, limits: [3/FAR]}`, "", []fieldStep{
		{"POST / :body=301", "429", "429"}, {"POST / :body=201", "200", "429"}, {"POST /", "429", "200"},
	}},
	"request_bytes.min": {`
- {name: $, match: {@}, cost: {request_bytes: {⟦min: 3⟧}}, limits: [3/FAR]}`, "", []fieldStep{
		{"POST /", "200", "200"}, {"POST /", "429", "200"},
	}},
	"request_bytes.max": {`
- {name: $, match: {@}, cost: {request_bytes: {⟦max: 2⟧}}, limits: [3/FAR]}`, "", []fieldStep{
		{"POST / :body=9", "200", "429"},
	}},

	"override.key": {`
- {name: $, match: {@}, key: [{header: u}], limits: [0/1h], overrides: [{key: [⟦"vip-*"|other⟧], unlimited: true}]}`, "", []fieldStep{
		{"/ u=vip-1", "200", "429"}, {"/ u=other", "429", "200"},
	}},
	"override.limits": {`
- {name: $, match: {@}, key: [{header: u}], limits: [1/FAR], overrides: [{key: [vip], ⟦limits: [2/FAR]|unlimited: true⟧}]}`, "", []fieldStep{
		{"/ u=vip", "200", "200"}, {"/ u=vip", "200", "200"}, {"/ u=vip", "429", "200"}, {"/ u=a", "200", "200"}, {"/ u=a", "429", "429"},
	}},
	"override.unlimited": {`
- {name: $, match: {@}, key: [{header: u}], limits: [1/FAR], overrides: [{key: [vip], ⟦unlimited: true|limits: [1/FAR]⟧}]}`, "", []fieldStep{
		{"/ u=vip", "200", "200"}, {"/ u=vip", "200", "429"},
	}},

	"response.status": {`
- {name: $, match: {@}, limits: [0/1h], response: {⟦status: 420⟧}}`, "", []fieldStep{
		{"/", "420", "429"},
	}},
	"response.body": {`
- {name: $, match: {@}, limits: [0/1h], response: {⟦body: "%RULE% says no\n"⟧}}`, "body", []fieldStep{
		{"/", "response.body says no\n", "rate limit exceeded"},
	}},
	"response.content_type": {`
- {name: $, match: {@}, limits: [0/1h], response: {⟦content_type: text/html⟧}}`, "content-type", []fieldStep{
		{"/", "text/html", "text/plain"},
	}},
	"response.headers": {`
- {name: $, match: {@}, limits: [0/1h], response: {⟦headers: {x-left: "%REMAINING% of %LIMIT%"}⟧}}`, "x-left", []fieldStep{
		{"/", "0 of 0", "~"},
	}},
	"response.grpc_status": {`
- {name: $, match: {@}, limits: [0/1h], response: {⟦grpc_status: unavailable⟧}}`, "grpc-status", []fieldStep{
		{"POST / content-type=application/grpc", "14", "8"},
	}},
}
