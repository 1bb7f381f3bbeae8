package main

import (
	"fmt"
	"strings"

	"github.com/sluice-ratelimit/sluice/build/bench/performance"
	"github.com/sluice-ratelimit/sluice/envoy"
)

// subject is one case: what stands before the router, and how it is asked.
type subject struct {
	name, title string
	filter      func(b *bench) (string, error) // JSON objects, each followed by a comma; nil = no filter, unless there is a policy
	policy      string                         // of our filter, where it is the case
	workers     int                            // threads of Envoy; 0 = one
	keys        int                            // that requests carry in turn; 0 = one
	direct      bool                           // Envoy answers what is let through, no upstream
	limit       int                            // most that one key may be admitted; 0 = more than is ever sent
	service     bool                           // starts the rate limit service and its store
	proof       string                         // counter of Envoy that says how many requests the filter saw to; "" = none
}

// A window that no run sees the end of, and limits: one that no key reaches, and
// one that every key has reached soon.
const (
	far    = "366d"
	plenty = "1000000000/" + far
	few    = 1000
	// manyKeys is a table at its capacity.
	manyKeys = 100_000
)

// one is a policy of a rule keyed by the header.
func one(fields string) string { return policyOf("", byHeader("per-user", fields)) }

func byHeader(name, fields string) string {
	return fmt.Sprintf(`{"name":%q,"key":[{"header":%q}],%s}`, name, keyHeader, fields)
}

func policyOf(fields string, rules ...string) string {
	return `{"version":1,` + fields + `"rules":[` + strings.Join(rules, ",") + `]}`
}

func limits(list ...string) string { return `"limits":["` + strings.Join(list, `","`) + `"]` }

// paths is a policy of n rules for as many paths, of which the last is the one
// that is asked for.
func paths(n int) string {
	var rules []string
	for i := range n - 1 {
		rules = append(rules, byHeader(fmt.Sprint("r", i), fmt.Sprintf(`"match":{"paths":["/r%d/*"]},`, i)+limits(plenty)))
	}
	return policyOf("", append(rules, byHeader("last", `"match":{"paths":["/v1/*"]},`+limits(plenty)))...)
}

// subjects are all cases. The names are what CASES matches; performance knows those
// that the targets are about.
func subjects() []subject {
	simple := one(limits(plenty))
	reached := one(limits(fmt.Sprintf("%d/%s", few, far)))
	return []subject{
		{name: performance.None, title: "no filter (twice the same: noise)"},
		{name: "local", title: "local_ratelimit, one bucket", filter: localOneBucket, proof: "local.http_local_rate_limit.ok"},
		{name: "local-keys", title: "local_ratelimit, dynamic descriptor", filter: localDynamic, proof: "local.http_local_rate_limit.ok"},
		{name: "lua", title: "Lua that reads a header", filter: luaHeader},
		{name: "ratelimit", title: "envoyproxy/ratelimit and Redis", filter: rateLimit, service: true, proof: "cluster.upstream.ratelimit.ok"},
		{name: performance.Floor, title: "floor: the same four host calls, nothing else", filter: (*bench).floorFilter},
		{name: "go", title: "bare Go module", filter: (*bench).bareFilter},
		{name: "empty", title: "empty policy", policy: envoy.EmptyPolicy},
		{name: performance.Header, title: "key: a header, one window", policy: simple},
		{name: "client-ip", title: "key: client_ip", policy: policyOf("", `{"name":"per-address","key":["client_ip"],`+limits(plenty)+`}`)},
		{name: "three-windows", title: "three windows", policy: one(limits(plenty, "100000000/30d", "10000000/1d"))},
		{name: "per-key", title: "fixed_window_per_key", policy: one(`"algorithm":"fixed_window_per_key",` + limits(plenty))},
		// A log of one key would be full, so that many clients ask, each below its limit.
		{name: "log", title: "sliding_window_log, 2,000 keys", keys: 2000, policy: one(`"algorithm":"sliding_window_log",` + limits("20/1s"))},
		{name: "counter", title: "sliding_window_counter", policy: one(`"algorithm":"sliding_window_counter",` + limits("1000000000/1h"))},
		{name: "bucket", title: "token_bucket", policy: one(`"algorithm":"token_bucket",` + limits("1000000/1s"))},
		{name: "three-rules", title: "three rules", policy: policyOf("", byHeader("a", limits(plenty)), byHeader("b", limits(plenty)), byHeader("c", limits(plenty)))},
		{name: "fields", title: "key: a header, response headers", policy: policyOf(`"headers":"both",`, byHeader("per-user", limits(plenty)))},
		{name: performance.Denied, title: "denied", policy: reached, limit: few},
		{name: "denied-fields", title: "denied, response headers", limit: few,
			policy: policyOf(`"headers":"both",`, byHeader("per-user", limits(fmt.Sprintf("%d/%s", few, far))))},
		{name: performance.DirectAllowed, title: "allowed, no upstream", direct: true, policy: simple},
		{name: performance.DirectDenied, title: "denied, no upstream", direct: true, policy: reached, limit: few},
		{name: "rules-10", title: "10 rules, one matches", policy: paths(10)},
		{name: "rules-1000", title: "1,000 rules, one matches", policy: paths(1000)},
		{name: performance.Leased, title: "leased, lease: 100", policy: one(`"lease":100,` + limits(plenty))},
		{name: performance.ManyKeys, title: "key: a header, 100,000 keys", keys: manyKeys, policy: one(fmt.Sprintf(`"capacity":%d,`, manyKeys) + limits(plenty))},
		{name: "workers-2", title: "key: a header, 2 workers", workers: 2, policy: simple},
		{name: "workers-4", title: "key: a header, 4 workers", workers: 4, policy: simple},
		{name: "denied-4", title: "denied, 4 workers", workers: 4, policy: reached, limit: few},
		{name: "leased-4", title: "leased, 4 workers", workers: 4, policy: one(`"lease":100,` + limits(plenty))},
		{name: "leased-denied-4", title: "leased, denied, 4 workers", workers: 4, limit: few, policy: one(fmt.Sprintf(`"lease":100,"limits":["%d/%s"]`, few, far))},
	}
}
