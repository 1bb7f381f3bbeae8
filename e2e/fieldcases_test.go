package e2e

// fieldCases are the fields whose effect two policies and a few requests can show: see fieldCase.
const fieldCases = `
- {name: ⟦gold|silver⟧, match: {@}, limits: [0/1h], response: {headers: {x-rule: "%RULE%"}}}
rule.name x-rule: / → gold|silver
- {name: $, match: {@, paths: [/a]}, ⟦counter: both⟧, limits: [1/FAR]}
- {name: $2, match: {@, paths: [/b]}, ⟦counter: both⟧, limits: [1/FAR]}
rule.counter: /a → 200; /b → 429|200; /b → 429
- {name: $, match: {@}, ⟦exempt: [{headers: {x-probe: "1"}}, {paths: [/health]}]⟧, limits: [0/1h]}
rule.exempt: / → 429; / x-probe=1 → 200|429; /health → 200|429
- {name: $, match: {@}, ⟦key: [{header: u}]⟧, missing_key: share, limits: [1/FAR]}
rule.key: / u=a → 200; / u=b → 200|429; / u=b → 429
- {name: $, match: {@}, key: [{header: u}], ⟦missing_key: deny⟧, limits: [9/FAR]}
rule.missing_key: / u=a → 200; / → 429|200
- {name: $, match: {@}, key: [{header: u}, {header: v}], missing_key: ⟦{deny: {body: "no %MISSING%"}}|deny⟧, limits: [9/FAR], response: {headers: {x-missing: "%MISSING%"}}}
missing_key.deny body: / u=a → no header v|missing header v; / → no header u, header v|missing header u, header v
- {name: $, match: {@}, ⟦algorithm: fixed_window_per_key|algorithm: token_bucket⟧, limits: [9/FAR]}
rule.algorithm ratelimit: / → "rule.algorithm";r=8;t=31622400|"rule.algorithm";r=8;t=3513600
- {name: $, match: {@}, limits: ⟦[0/1h]|[]⟧}
rule.limits: / → 429|200
- {name: $, match: {@}, key: [{header: u}], limits: [0/1h], ⟦overrides: [{key: [vip], unlimited: true}]⟧}
rule.overrides: / u=a → 429; / u=vip → 200|429
- {name: $, match: {@}, key: [{header: u}], algorithm: fixed_window_per_key, limits: [9/FAR], overrides: [{⟦name: gold⟧, key: [a], limits: [5/FAR]}]}
override.name ratelimit: / u=a → "override.name:gold";r=4;t=31622400|"override.name";r=4;t=31622400; / u=b → "override.name";r=8;t=31622400
- {name: $, match: {@}, ⟦cost: 2⟧, limits: [3/FAR]}
rule.cost: / → 200; / → 429|200
- {name: $, match: {@}, cost: [{⟦match: {paths: [/search]}|match: {paths: [/other]}⟧, cost: 2}], limits: [3/FAR]}
matched_cost.match: /search → 200; /search → 429|200; / → 200
- {name: $, match: {@}, cost: [{match: {paths: [/search]}, ⟦cost: 2|cost: 1⟧}], limits: [3/FAR]}
matched_cost.cost: /search → 200; /search → 429|200; / → 200
- {name: $, match: {@}, ⟦count_denied: true⟧, cost: {header: c}, limits: [2/FAR]}
rule.count_denied: / c=3 → 429; / c=1 → 429|200
- {name: $, match: {@}, ⟦mode: shadow⟧, limits: [0/1h]}
- {name: $2, match: {@, paths: [/off]}, ⟦mode: "off"⟧, limits: [0/1h]}
rule.mode: / → 200|429; /off → 200|429
- {name: $, match: {@}, ⟦enforce_percent: 0⟧, limits: [0/1h]}
rule.enforce_percent: / → 200|429
- {name: $, match: {@}, key: [{header: u}], limits: [9/FAR], on_full: deny, ⟦capacity: 1⟧}
rule.capacity: / u=a → 200; / u=b → 429|200; / u=a → 200
- {name: $, match: {@}, key: [{header: u}], limits: [9/FAR], capacity: 1, ⟦on_full: deny⟧}
rule.on_full: / u=a → 200; / u=b → 429|200
- {name: $, match: {@}, limits: [0/1h], ⟦response: {status: 503}⟧}
rule.response: / → 503|429

- {name: $, match: {paths: [/$], ⟦hosts: ["*.shop.example"]⟧}, limits: [0/1h]}
match.hosts: /match.hosts :host=a.shop.example:80 → 429; /match.hosts → 200|429
- {name: $, match: {@, ⟦methods: [PUT, POST]⟧}, limits: [0/1h]}
match.methods: POST / → 429; / → 200|429
- {name: $, match: {@, ⟦paths: ["/v1/*"]⟧}, limits: [0/1h]}
match.paths: /v1/x → 429; /v2/x → 200|429
- {name: $, match: {@, ⟦headers: {x-tenant: "acme-*"}⟧}, limits: [0/1h]}
match.headers: / x-tenant=acme-1 → 429; / x-tenant=other → 200|429
- {name: $, match: {@, ⟦client_ips: [127.0.0.2/31]⟧}, limits: [0/1h]}
match.client_ips: / :from=127.0.0.3 → 429; / → 200|429

- {name: $, match: {@}, key: [⟦{header: U}|host⟧], limits: [1/FAR]}
key.header: / u=a → 200; / u=b → 200|429; / → 200|429
- {name: $, match: {@}, key: [⟦client_ip|host⟧], limits: [1/FAR]}
key.client_ip: / → 200; / → 429; / :from=127.0.0.2 → 200|429
- {name: $, match: {paths: [/$]}, key: [⟦host|method⟧], limits: [1/FAR]}
key.host: /key.host :host=a.example → 200; /key.host :host=A.example:80 → 429; /key.host :host=b.example → 200|429
- {name: $, match: {@}, key: [⟦method|host⟧], limits: [1/FAR]}
key.method: / → 200; POST / → 200|429
- {name: $, match: {@}, key: [⟦{path: full}|host⟧], limits: [1/FAR]}
key.path: /a?x → 200; /a?y → 429; /a/b → 200|429
- {name: $, match: {@}, key: [⟦{query: q}|host⟧], limits: [1/FAR]}
key.query: /?q=a → 200; /?q=b → 200|429; /?x=1&q=%61 → 429
- {name: $, match: {@}, key: [⟦{cookie: s}|host⟧], limits: [1/FAR]}
key.cookie: / cookie=s=1 → 200; / cookie=s=2 → 200|429; / cookie=t=0;s=2 → 429; / cookie=t=0 cookie=s=2 → 429
- {name: $, match: {@}, key: [⟦{property: [request, headers, u]}|host⟧], limits: [1/FAR]}
key.property: / u=a → 200; / u=b → 200|429
- {name: $, match: {@}, key: [⟦{first_of: [{header: u}, {header: v}]}|{header: u}⟧], limits: [1/FAR]}
key.first_of: / v=a → 200; / v=a → 429|200; / u=a → 200
- {name: $, match: {@}, key: [⟦address: {header: a}|header: a⟧], limits: [1/FAR]}
key.address: / a=192.0.2.7:80 → 200; / a=192.0.2.7 → 429|200
- {name: $, match: {@}, key: [address: {⟦header: a|header: b⟧}], missing_key: deny, limits: [1/FAR]}
address.header: / a=192.0.2.7 → 200|429
- {name: $, match: {@}, key: [address: {header: a, ⟦v4_prefix: 24⟧}], limits: [1/FAR]}
address.v4_prefix: / a=192.0.2.7 → 200; / a=192.0.2.8 → 429|200
- {name: $, match: {@}, key: [address: {header: a, ⟦v6_prefix: 48⟧}], limits: [1/FAR]}
address.v6_prefix: / a=2001:db8:0:1::1 → 200; / a=2001:db8:0:2::1 → 429|200
- {name: $, match: {@}, key: [header: {⟦name: authorization|name: other⟧, scheme: bearer}], missing_key: deny, limits: [1/FAR]}
header.name: / authorization=Bearer␣k → 200|429; / authorization=bearer␣␣k → 429; / authorization=Bearer␣other → 200|429
- {name: $, match: {@}, key: [header: {name: authorization, ⟦scheme: bearer|scheme: basic⟧}], missing_key: deny, limits: [1/FAR]}
header.scheme: / authorization=Bearer␣k → 200|429
- {name: $, match: {@}, key: [{client_ip: {⟦v4_prefix: 24⟧}}], limits: [1/FAR]}
client_ip.v4_prefix: / → 200; / :from=127.0.0.200 → 429|200; / :from=127.0.1.1 → 200
- {name: $, match: {@}, key: [{path: {segment: ⟦2|1⟧}}], limits: [1/FAR]}
path.segment: /a/x → 200; /b/x → 429|200; /b/y → 200|429

- {name: $, match: {@}, limits: [{requests: ⟦0|1⟧, per: 1h}]}
limit.requests: / → 429|200
- {name: $, match: {@}, limits: [{requests: 1, per: ⟦1h|90m⟧}]}
limit.per ratelimit-policy: / → "limit.per";q=1;w=3600|"limit.per";q=1;w=5400
- {name: $, match: {@}, limits: [9/1h, {requests: 9, per: 1d, ⟦name: daily⟧}]}
limit.name ratelimit-policy: / → "limit.name/0";q=9;w=3600, "limit.name/daily";q=9;w=86400|"limit.name/0";q=9;w=3600, "limit.name/1";q=9;w=86400
- {name: $, match: {@}, limits: [{requests: 9, per: FAR, algorithm: ⟦fixed_window_per_key|token_bucket⟧}]}
limit.algorithm ratelimit: / → "limit.algorithm";r=8;t=31622400|"limit.algorithm";r=8;t=3513600
- {name: $, match: {@}, algorithm: token_bucket, limits: [{requests: 1, per: FAR, ⟦burst: 2⟧}]}
limit.burst: / → 200; / → 200|429; / → 429
- {name: $, match: {@}, limits: [{requests: 9, per: FAR, algorithm: fixed_window_per_key, ⟦elastic: true⟧}]}
limit.elastic ratelimit: / → ~t=31622400; / :wait=1100ms → ~t=31622400|~t=3162239

- {name: $, match: {@}, limits: [{requests: {⟦header: l|header: m⟧, trusted: true, default: 1, max: 9}, per: FAR}]}
requests.header ratelimit-policy: / l=7 → ~q=7;|~q=1;
- {name: $, match: {@}, limits: [{requests: {⟦property: [request, headers, l]|property: [filter_state, l]⟧, ⟦trusted: true⟧, default: 1, max: 9}, per: FAR}]}
requests.property ratelimit-policy: / l=7 → ~q=7;|~q=1;
- {name: $, match: {@}, limits: [{requests: {header: l, trusted: true, default: ⟦5|4⟧, max: 9}, per: FAR}]}
requests.default ratelimit-policy: / → ~q=5;|~q=4;; / l=x → ~q=5;|~q=4;; / l=6 → ~q=6;
- {name: $, match: {@}, limits: [{requests: {header: l, trusted: true, default: 1, max: ⟦8|9⟧}, per: FAR}]}
requests.max ratelimit-policy: / l=10 → ~q=8;|~q=9;; / l=7 → ~q=7;

- {name: $, match: {@}, cost: {⟦header: c|header: d⟧}, limits: [3/FAR]}
cost.header: / c=3 → 200; / c=1 → 429|200
- {name: $, match: {@}, cost: {⟦query: n|query: m⟧}, limits: [3/FAR]}
cost.query: /?n=3 → 200; /?n=1 → 429|200
- {name: $, match: {@}, cost: {header: c, ⟦default: 3⟧}, limits: [3/FAR]}
cost.default: / → 200; / c=1 → 429|200
- {name: $, match: {@}, cost: {header: c, default: 2, ⟦min: 2⟧}, limits: [3/FAR]}
cost.min: / c=0 → 200; / c=0 → 429|200; / c=1 → 429|200
- {name: $, match: {@}, cost: {header: c, ⟦max: 2⟧}, limits: [3/FAR]}
cost.max: / c=99999999999999999999 → 200|429
- {name: $, match: {@}, cost: {⟦request_bytes: {max: 3}|header: d⟧}, limits: [3/FAR]}
cost.request_bytes: / → 200; POST / → 429|200
- {name: $, match: {@}, cost: {request_bytes: {⟦per_unit: 100⟧}}, limits: [3/FAR]}
request_bytes.per_unit: POST / :body=301 → 429; POST / :body=201 → 200|429; POST / → 429|200
- {name: $, match: {@}, cost: {request_bytes: {⟦min: 3⟧}}, limits: [3/FAR]}
request_bytes.min: POST / → 200; POST / → 429|200
- {name: $, match: {@}, cost: {request_bytes: {⟦max: 2⟧}}, limits: [3/FAR]}
request_bytes.max: POST / :body=9 → 200|429

- {name: $, match: {@}, key: [{header: u}], limits: [0/1h], overrides: [{key: [⟦"vip-*"|other⟧], unlimited: true}]}
override.key: / u=vip-1 → 200|429; / u=other → 429|200
- {name: $, match: {@}, key: [{header: u}], limits: [1/FAR], overrides: [{key: [vip], ⟦limits: [2/FAR]|unlimited: true⟧}]}
override.limits: / u=vip → 200; / u=vip → 200; / u=vip → 429|200; / u=a → 200; / u=a → 429
- {name: $, match: {@}, key: [{header: u}], limits: [1/FAR], overrides: [{key: [vip], ⟦unlimited: true|limits: [1/FAR]⟧}]}
override.unlimited: / u=vip → 200; / u=vip → 200|429

- {name: $, match: {@}, limits: [0/1h], response: {⟦status: 420⟧}}
response.status: / → 420|429
- {name: $, match: {@}, limits: [0/1h], response: {⟦body: "%RULE% says no\n"⟧}}
response.body body: / → response.body says no\n|rate limit exceeded
- {name: $, match: {@}, limits: [0/1h], response: {⟦content_type: text/html⟧}}
response.content_type content-type: / → text/html|text/plain
- {name: $, match: {@}, limits: [0/1h], response: {⟦headers: {x-left: "%REMAINING% of %LIMIT%"}⟧}}
response.headers x-left: / → 0 of 0|~
- {name: $, match: {@}, limits: [0/1h], response: {⟦grpc_status: unavailable⟧}}
response.grpc_status grpc-status: POST / content-type=application/grpc → 14|8

- {name: $, match: {@}, limits: [1/FAR], ⟦settle: {when: {status: [401]}}⟧}
rule.settle: / → 200; / :wait=300ms → 200|429
- {name: $, match: {@}, limits: [5/FAR], settle: {⟦to: request_bytes|to: cost⟧}}
settle.to: POST / :body=5 → 200; / :wait=300ms → 429|200
- {name: $, match: {@}, limits: [1/FAR], settle: {⟦when: {status: [401]}⟧}}
settle.when: / → 200; / :wait=300ms → 200|429
- {name: $, match: {@}, limits: [1/FAR], settle: {to: {header: x-cost}, ⟦unknown: 0⟧}}
settle.unknown: / → 200; / :wait=300ms → 200|429
- {name: $, match: {@}, limits: [3/FAR], settle: {to: {header: x-cost}, ⟦max: 2⟧}}
settle.max: / x-send=x-cost:3 → 200; / :wait=300ms → 200|429
- {name: $, match: {@}, limits: [1000/FAR], settle: {to: tokens, ⟦identity: false⟧}}
settle.identity x-accepted: / accept-encoding=br → br|none
- {name: $, match: {@}, limits: [3/FAR], settle: {to: ⟦{header: x-cost}|{header: x-other}⟧}}
settle_to.header: / x-send=x-cost:3 → 200; / :wait=300ms → 429|200
- {name: $, match: {@}, limits: [3/FAR], settle: {to: ⟦{trailer: x-cost}|{header: x-cost}⟧}}
settle_to.trailer: / x-send=x-cost:3 → 200; / :wait=300ms → 200|429
- {name: $, match: {@}, limits: [1/FAR], settle: {when: {⟦status: [401]|status: ["2xx"]⟧}}}
answer.status: / x-status=401 → 401; / :wait=300ms → 429|200
- {name: $, match: {@}, limits: [1/FAR], settle: {when: {⟦grpc_status: [permission_denied]⟧}}}
answer.grpc_status: / x-send=grpc-status:0 → 200; / :wait=300ms x-send=grpc-status:7 → 200|429; / :wait=300ms → 429
- {name: $, match: {@}, limits: [1/FAR], settle: {when: {⟦headers: {x-kind: paid}⟧}}}
answer.headers: / x-send=x-kind:free → 200; / :wait=300ms x-send=x-kind:paid → 200|429; / :wait=300ms → 429
- {name: $, match: {@}, algorithm: concurrency, limits: [{⟦requests: 0|requests: 1⟧}]}
slots.requests: / → 429|200
`
