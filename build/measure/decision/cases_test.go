//go:build linux

package decision

import (
	"fmt"
	"strings"

	"github.com/sluice-ratelimit/sluice/envoy"
)

// subject is a case before it is measured: what stands before the router, and how
// it is asked.
type subject struct {
	name, title string
	filter      string // JSON objects of filters, each followed by a comma; "" = no filter
	floor       bool   // the floor's module is the filter
	policy      string // of our filter, where it is the filter, or of the floor's
	base        string // policy of our filter on the other listener; "" = no filter there
	path        string // of the upstream's long answers; "" = a short one
	workers     int    // threads of Envoy; 0 = one
	keys        int    // that requests carry in turn; 0 = one
	direct      bool   // Envoy itself answers what is let through, no upstream
	limit       int    // most that one key may be admitted; 0 = more than is ever sent
	limiter     string // descriptor of the rate limit service; "" = it does not run
	proof       string // counter of Envoy that says how many requests the filter saw; "" = none
	loads       bool   // a running Envoy is given the filter; no requests are sent
	changed     string // policy that it then gets; "" = none
}

// The names that tables and targets speak of.
const (
	caseNone          = "none"
	caseFloor         = "floor"
	caseFloorFields   = "floor-fields"
	caseFields        = "fields"
	caseThreeRules    = "three-rules"
	caseHeader        = "header"
	caseService       = "ratelimit"
	caseDenied        = "denied"
	caseDirectAllowed = "direct-allowed"
	caseDirectDenied  = "direct-denied"
	caseManyKeys      = "keys-100000"
	caseSettled       = "settled"
	caseEvents        = "settled-events"
	caseJSON          = "settled-json"
	loadFloor         = "load-floor"
	loadOurs          = "load-sluice"
)

// A window that no run sees the end of, and two limits: one that no key reaches,
// and one that every key reaches soon.
const (
	far    = "366d"
	plenty = "1000000000/" + far
	few    = 1000
	// manyKeys is a table at its capacity.
	manyKeys = 100_000
)

// one is a policy with one rule, keyed by the header.
func one(fields string) string { return policyOf("", byHeader("per-user", fields)) }

func byHeader(name, fields string) string {
	return fmt.Sprintf(`{"name":%q,"key":[{"header":%q}],%s}`, name, keyHeader, fields)
}

func policyOf(fields string, rules ...string) string {
	return `{"version":1,` + fields + `"rules":[` + strings.Join(rules, ",") + `]}`
}

func limits(list ...string) string { return `"limits":["` + strings.Join(list, `","`) + `"]` }

// paths is a policy of n rules, each for a path of its own. Requests ask for the
// path of the last one.
func paths(n int) string {
	var rules []string
	for i := range n - 1 {
		rules = append(rules, byHeader(fmt.Sprint("r", i), fmt.Sprintf(`"match":{"paths":["/r%d/*"]},`, i)+limits(plenty)))
	}
	return policyOf("", append(rules, byHeader("last", `"match":{"paths":["/v1/*"]},`+limits(plenty)))...)
}

// subjects are all cases.
func subjects() []subject {
	simple := one(limits(plenty))
	tokens := one(limits(plenty) + `,"cost":100,"settle":{"to":"tokens"}`)
	soon := limits(fmt.Sprintf("%d/%s", few, far))
	const localOK = "local.http_local_rate_limit.ok"
	return []subject{
		{name: caseNone, title: "no filter (twice the same: noise)"},
		{name: "local", title: "local_ratelimit, one bucket", filter: localOneBucket, proof: localOK},
		{name: "local-keys", title: "local_ratelimit, dynamic descriptor", filter: localDynamic, proof: localOK},
		{name: "lua", title: "Lua that reads a header", filter: luaHeader},
		{name: caseService, title: "envoyproxy/ratelimit and Redis", filter: rateLimit, limiter: "user",
			proof: "cluster.upstream.ratelimit.ok"},
		{name: caseFloor, title: "floor: the same four host calls, nothing else", floor: true, policy: envoy.EmptyPolicy},
		{name: caseFloorFields, title: "floor with the host calls of response headers", floor: true,
			policy: policyOf(`"headers":"both",`)},
		{name: "empty", title: "empty policy", policy: envoy.EmptyPolicy},
		{name: caseHeader, title: "key: a header, one window", policy: simple},
		{name: "three-windows", title: "three windows", policy: one(limits(plenty, "100000000/30d", "10000000/1d"))},
		{name: "per-key", title: "fixed_window_per_key", policy: one(`"algorithm":"fixed_window_per_key",` + limits(plenty))},
		// One client's log would be full. So many clients ask, each below its limit.
		{name: "log", title: "sliding_window_log, 2,000 keys", keys: 2000,
			policy: one(`"algorithm":"sliding_window_log",` + limits("20/1s"))},
		{name: "counter", title: "sliding_window_counter",
			policy: one(`"algorithm":"sliding_window_counter",` + limits("1000000000/1h"))},
		{name: "bucket", title: "token_bucket", policy: one(`"algorithm":"token_bucket",` + limits("1000000/1s"))},
		{name: caseThreeRules, title: "three rules",
			policy: policyOf("", byHeader("a", limits(plenty)), byHeader("b", limits(plenty)), byHeader("c", limits(plenty)))},
		{name: caseFields, title: "key: a header, response headers",
			policy: policyOf(`"headers":"both",`, byHeader("per-user", limits(plenty)))},
		{name: caseDenied, title: "denied", policy: one(soon), limit: few},
		{name: caseDirectAllowed, title: "allowed, no upstream", direct: true, policy: simple},
		{name: caseDirectDenied, title: "denied, no upstream", direct: true, policy: one(soon), limit: few},
		{name: caseSettled, title: "settled by the status, beside the rule alone", base: simple,
			policy: one(limits(plenty) + `,"settle":{"when":{"status":["5xx"]}}`)},
		{name: caseEvents, title: "tokens of 500 streamed events", path: pathEvents, policy: tokens},
		{name: caseJSON, title: "tokens of 1 MB of JSON", path: pathJSON, policy: tokens},
		{name: "rules-1000", title: "1,000 rules, one matches", policy: paths(1000)},
		{name: caseManyKeys, title: "key: a header, 100,000 keys", keys: manyKeys,
			policy: one(fmt.Sprintf(`"capacity":%d,`, manyKeys) + limits(plenty))},
		{name: "workers-4", title: "key: a header, 4 workers", workers: 4, policy: simple},
		{name: "denied-4", title: "denied, 4 workers", workers: 4, policy: one(soon), limit: few},
		{name: loadFloor, title: "the floor's module", floor: true, policy: envoy.EmptyPolicy, workers: 4, loads: true},
		{name: loadOurs, title: "the filter with a policy of 10 rules", workers: 4, loads: true,
			policy: paths(10), changed: policyOf("", byHeader("another", limits("5/1h")))},
	}
}
