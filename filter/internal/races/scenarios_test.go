package races

import (
	"cmp"
	"fmt"
	"strings"
)

// scenario is a small race.
type scenario struct {
	name    string
	rules   string
	start   int64 // time after the beginning of an hour
	before  [workers][]request
	rounds  int   // of before, 1 if 0
	pause   int64 // between before and scripts
	scripts [workers][]request
	times   []int64 // that may pass at any point
	faults  bool    // messages may be lost or repeated, and streams cut
	// keeps says that a window is open at the end, so that what it admitted can be
	// compared with what is counted.
	keeps bool
	// strands is how many units may stay counted although no request has spent them: a refund
	// may come when the stream that got the units has ended.
	strands int

	// Of rules that hold units until answers are known:

	slots  uint32 // how many units some execution has to hold at once
	most   uint32 // how many were
	quiet  int64  // after this time nothing is held; 0 = quietNs
	prompt bool   // time passes only if nothing else can happen

	// Of rules that block keys:

	blocks  bool                    // some request has to be denied because its key is blocked
	blocked int                     // how many were
	fates   func(w *world) []action // what else may happen to workers and the service
}

// all returns scripts in which each worker gets n times the requests, in turn.
func all(n int, r ...request) (scripts [workers][]request) {
	for i := range scripts {
		for range n {
			scripts[i] = append(scripts[i], r[i%len(r)])
		}
	}
	return scripts
}

func clusterRule(name, header, limits string) string {
	return fmt.Sprintf(`{"name":%q,"scope":"cluster","key":[{"header":%q}],"missing_key":"skip","limits":[%s],`+
		`"on_unavailable":"deny"}`, name, header, limits)
}

var (
	a, b     = request{user: "a"}, request{user: "b"}
	at, bt   = request{user: "a", tenant: "t"}, request{user: "b", tenant: "t"}
	someTime = []int64{15 * ms, 120 * ms}
)

const (
	log20s    = `{"requests":40,"per":"20s","algorithm":"sliding_window_log"}`
	bucket1s  = `{"requests":40,"per":"1s","algorithm":"token_bucket","burst":20}`
	perKey    = `{"requests":40,"per":"1s","algorithm":"fixed_window_per_key"}`
	bucket20s = `{"requests":40,"per":"20s","algorithm":"token_bucket"}`
)

// spent are the races for units that a request spends when it is admitted.
var spent = []scenario{
	{
		name:    "hot key",
		rules:   clusterRule("r", "u", `"40/1h"`),
		before:  all(4, a),
		scripts: all(8, a),
		times:   someTime,
		keeps:   true,
	},
	{
		name:    "hot key, messages lost",
		rules:   clusterRule("r", "u", `"40/1h"`),
		before:  all(4, a),
		scripts: all(8, a),
		times:   someTime,
		keeps:   true,
		faults:  true,
	},
	{
		name:    "idle units",
		rules:   clusterRule("r", "u", `"40/1h"`),
		before:  all(4, a),
		scripts: all(2, a),
		times:   []int64{6 * second, 11 * second},
		keeps:   true,
	},
	{
		name:    "idle units, a message twice",
		rules:   clusterRule("r", "u", `"40/1h"`),
		before:  all(4, a),
		scripts: all(2, a),
		times:   []int64{6 * second, 11 * second},
		keeps:   true,
		faults:  true,
	},
	{
		name: "idle units of two keys", keeps: true, faults: true, before: all(4, a), rounds: 3, pause: 4500 * ms,
		scripts: all(8, b), times: []int64{500 * ms}, rules: clusterRule("r", "u", `"90/1h"`),
	},
	{
		name:    "a window ends",
		rules:   clusterRule("r", "u", `"40/1s"`),
		start:   700 * ms,
		before:  all(4, a),
		scripts: all(16, a),
		times:   []int64{20 * ms, 160 * ms},
		faults:  true,
	},
	{
		name:    "an hour ends",
		rules:   clusterRule("r", "u", `"40/1h"`),
		start:   hour - 11*second,
		before:  all(4, a),
		scripts: all(10, a),
		times:   []int64{ms, 6 * second},
		keeps:   true,
	},
	{
		name:    "log",
		rules:   clusterRule("r", "u", log20s),
		before:  all(1, a),
		rounds:  4,
		pause:   150 * ms,
		scripts: all(14, a),
		times:   []int64{20*second - 100*ms},
	},
	{
		name:    "bucket",
		rules:   clusterRule("r", "u", bucket20s),
		before:  all(5, a),
		scripts: all(14, a),
		times:   []int64{150 * ms, second},
	},
	{
		name:    "two windows",
		rules:   clusterRule("r", "u", `"20/1s","60/1h"`),
		start:   940 * ms,
		before:  all(3, a),
		scripts: all(12, a),
		times:   []int64{20 * ms, 55 * ms},
		faults:  true,
	},
	{
		name:    "group",
		rules:   clusterRule("r", "u", `"40/1h"`) + "," + clusterRule("q", "t", `"10/1h"`),
		before:  all(2, at, bt),
		scripts: all(4, at, bt),
		times:   someTime,
		keeps:   true,
		strands: 2,
	},
	{
		name:    "refund",
		keeps:   true,
		strands: 2,
		times:   someTime,
		before:  all(3, a),
		scripts: all(4, at),
		rules: clusterRule("r", "u", `"40/1h"`) +
			`,{"name":"q","key":[{"header":"t"}],"missing_key":"skip","limits":["3/1h"]}`,
	},
	{
		name: "a worker stands still", before: all(1, a), scripts: all(3, a), times: []int64{second, 30 * second},
		rules: `{"name":"r","key":[{"header":"u"}],"limits":[{"requests":4,"per":"20s","algorithm":"sliding_window_log"}]}`,
	},
	{
		name:    "per key",
		rules:   clusterRule("r", "u", perKey),
		before:  all(4, a),
		scripts: all(20, a),
		times:   []int64{20 * ms, 160 * ms, 900 * ms},
		faults:  true,
	},
	{
		name:    "small bucket",
		rules:   clusterRule("r", "u", bucket1s),
		before:  all(3, a),
		scripts: all(8, a),
		times:   []int64{15 * ms, 200 * ms},
		faults:  true,
	},
	{
		name: "nothing leased", keeps: true, faults: true, before: all(2, a), scripts: all(8, a, b), times: someTime,
		rules: strings.Replace(clusterRule("r", "u", `"20/1h"`), `"deny"`, `"deny","lease":"off"`, 1),
	},
	{
		name:    "two keys",
		rules:   clusterRule("r", "u", `"24/1h"`),
		before:  all(3, a, b),
		scripts: all(6, b, a),
		times:   someTime,
		keeps:   true,
		faults:  true,
	},
}

func slotRule(name, header string, slots int) string {
	return fmt.Sprintf(`{"name":%q,"scope":"cluster","key":[{"header":%q}],"missing_key":"skip",`+
		`"algorithm":"concurrency","limits":["%d"],"hold":"10s","on_unavailable":"deny"}`, name, header, slots)
}

func settleRule(limits string) string {
	return `{"name":"r","scope":"cluster","key":[{"header":"u"}],` +
		`"limits":[` + limits + `],"settle":{},"hold":"10s","on_unavailable":"deny"}`
}

var (
	free   = request{user: "a"}
	paid   = request{user: "a", charged: 1}
	reset  = request{user: "a", reset: true}
	slots  = slotRule("r", "u", 2)
	logins = settleRule(`"3/1h"`)
)

// held returns the races for units that are held until answers are known.
func held() []scenario {
	list := statedEnds()
	for i := range list {
		list[i].times = []int64{15 * ms, 700 * ms}
		list[i].quiet = 5 * second
	}
	list = append(list, unstatedEnds()...)
	for i := range list {
		list[i].slots = cmp.Or(list[i].slots, map[bool]uint32{false: 2, true: 3}[list[i].keeps])
	}
	return list
}

// statedEnds returns races in which the proxies report each end of a hold.
func statedEnds() []scenario {
	ofOneCounter := slotRule("r", "u", 4) + "," + slotRule("s", "u", 4)
	ofOneCounter = strings.ReplaceAll(ofOneCounter, `"scope"`, `"counter":"c","scope"`)
	return []scenario{
		{name: "the last slot", rules: slots, scripts: all(3, free)},
		{name: "the last slot, messages lost", rules: slots, scripts: all(3, free), faults: true},
		{name: "an answer crosses asks", rules: logins, scripts: all(3, paid, free), keeps: true},
		{
			name:    "an answer crosses asks, messages lost",
			rules:   logins,
			scripts: all(3, paid, free),
			keeps:   true,
			faults:  true,
		},
		{name: "slots of two rules", rules: slots + "," + slotRule("q", "t", 1), scripts: all(2, at, free), faults: true},
		{
			name:    "two slots of a counter",
			rules:   ofOneCounter,
			scripts: all(2, request{user: "a", tenant: "a"}),
			faults:  true,
			slots:   4,
		},
		{
			name:    "a configuration hands over",
			rules:   slots,
			scripts: [workers][]request{{free, reset}, {free}, {reset, free}, {free}},
			faults:  true,
			fates:   (*world).handsOver,
		},
	}
}

// unstatedEnds returns races in which holds end without a report.
func unstatedEnds() []scenario {
	var asks []request
	for n := range 6 {
		asks = append(asks, request{user: "a", atNs: int64(n+1) * 2 * second})
	}
	return []scenario{
		{
			name:    "a VM traps",
			rules:   logins,
			scripts: all(2, free, paid),
			times:   []int64{15 * ms, 4 * second},
			keeps:   true,
			strands: 3,
			fates:   (*world).traps,
		},
		{
			name:    "a worker ends",
			rules:   slots,
			scripts: all(2, reset, free),
			times:   []int64{15 * ms, 1100 * ms},
			faults:  true,
			fates:   (*world).ends,
		},
		{
			name:   "a service loses its state",
			rules:  strings.Replace(slots, `"10s"`, `"80s"`, 1),
			times:  []int64{1300 * ms, 15 * ms},
			prompt: true,
			fates:  (*world).losesState,
			scripts: [workers][]request{
				{{user: "a", lastNs: 12 * second}}, {{user: "a", lastNs: 12 * second}}, asks, asks,
			},
		},
	}
}
