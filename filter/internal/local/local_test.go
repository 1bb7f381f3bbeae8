package local_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

const (
	ms   = int64(1_000_000)
	hour = 3_600_000 * ms

	settles = `"settle":{},"hold":"10s","block":"3s","limits":["9/1h"]`
	slots   = `"algorithm":"concurrency","limits":["9"]`
)

// worker is one worker of a proxy. It decides nothing: each call is one of a source.
type worker struct {
	*testing.T
	proxy   *hosttest.Proxy
	tables  *state.Tables
	rules   []decide.Rule
	subject decide.Subject // of the last request, whatever its rule, as in a verdict's memory
	holds   map[string]*hold.Hold
}

// newWorker is a worker that is configured an hour after the one before on the proxy: the first one at the hour 1.
func newWorker(t *testing.T, proxy *hosttest.Proxy, rules ...string) *worker {
	proxy.Clock += hour
	p := hosttest.Policy(t, strings.Join(rules, ","))
	w := &worker{T: t, proxy: proxy, rules: make([]decide.Rule, len(rules)), holds: map[string]*hold.Hold{}}
	w.tables = state.NewTables(proxy, func(b []byte) { clear(b) }, 1, proxy.Clock)
	for i := range w.rules {
		r := &w.rules[i]
		*r = decide.NewRule(p, &p.Rules[i])
		def := state.Definition{Counter: r.Finder.Counter("", 1), Windows: r.Finder.Windows, Capacity: 1}
		table := w.tables.Table(def)
		r.SetSource(local.New(r, table, new(state.Scratch)), table)
	}
	return w
}

func (w *worker) source(rule int) *local.Source { return w.rules[rule].Source.(*local.Source) }

// check is what the rule's source finds of a request.
func (w *worker) check(rule int, key string, cost, units uint32) decide.Finding {
	w.subject.Key.Bytes = []byte(key)
	w.subject.Begin(&w.rules[rule], decide.Reading{Cost: cost})
	w.subject.Units = units
	return w.source(rule).Check(&w.subject, w.proxy.Clock)
}

// take checks a request, and takes it whatever was found.
func (w *worker) take(rule int, key string, cost uint32) state.Status {
	w.check(rule, key, cost, cost)
	return w.source(rule).Take(&w.subject)
}

func (w *worker) deny(rule int, key string) state.Status {
	w.check(rule, key, 1, 1)
	_, status := w.source(rule).KeepDenied(&w.subject, decide.Keep{Block: true})
	return status
}

func (w *worker) operate(rule int, o decide.Operation, key string, n uint32) (value int64, known bool, err error) {
	w.check(rule, key, 1, 1)
	return w.source(rule).Operate(&w.subject, o, state.AllWindows, n, w.proxy.Clock)
}

// stands is what the subject's key has used in the first window, and what is held of it.
func (w *worker) stands(rule int) [2]uint32 {
	return [2]uint32{w.source(rule).Usage(&w.subject, 0).Used, w.source(rule).Held(&w.subject)}
}

// play does steps by the first rule: each has a word, a key and a number of units or milliseconds.
func (w *worker) play(steps string) {
	for step := range strings.SplitSeq(steps, ", ") {
		var word, key string
		var n int64
		_, err := fmt.Sscan(step, &word, &key, &n)
		switch word {
		case "hold":
			require.Equal(w, state.OK, w.take(0, key, uint32(n)))
			w.holds[key] = &hold.Hold{Hold: w.subject.Hold, Windows: w.subject.KeepWindows()}
		case "settle":
			require.Equal(w, hold.CostCharged, w.source(0).Settle(w.holds[key], uint32(n), w.proxy.Clock))
		case "end": // by max_hold
			w.holds[key].EndNs = w.proxy.Clock + n*ms
		case "block":
			require.Equal(w, state.OK, w.deny(0, key))
		case "reset":
			_, _, err = w.operate(0, decide.Reset, key, 0)
		case "replace": // a newer policy holds nothing, and another worker has it already
			require.Equal(w, state.OK, newWorker(w.T, w.proxy, rule("r", "c", `"limits":["9/1h"]`)).take(0, key, 0))
		case "wait": // while the proxy runs
			for range n {
				w.proxy.Clock += ms
				w.tables.HoldClock()
			}
		case "late": // this worker's clock
			w.proxy.Clock -= n * ms
		default:
			require.Fail(w, step)
		}
		require.NoError(w, err, step)
	}
}

// rule is a policy's. Its table is a page of one slot.
func rule(name, counter, more string) string {
	return fmt.Sprintf(`{"name":%q,"counter":%q,"key":[{"header":"u"}],"capacity":1,%s}`, name, counter, more)
}

// Each request meets what two findings need. It is one of the second rule, which evicts nobody.
func TestWhichFindingDecides(t *testing.T) {
	const debt = "hold a 1, reset a 0, hold b 1, settle b 1, settle a " // which goes into the floor: b has the slot
	const blocked = "hold a 1, settle a 2, block a 0, hold "
	for name, tc := range map[string]struct {
		limit, before, key string
		cost, units        uint32
		found              decide.Found
		passNs             int64
	}{
		"room, but a full page":      {"2/1m", "hold a 1, settle a 1", "b", 1, 1, decide.Full, hour + 60_000*ms},
		"room, but never a slot":     {"2/1m", "hold a 1, hold b 1, reset b 0", "c", 1, 1, decide.Full, limit.Never},
		"no room for longer":         {"2/1m", debt + "7", "c", 1, 1, decide.Denied, hour + 180_000*ms},
		"no room for as long":        {"2/1m", debt + "2", "c", 1, 1, decide.Denied, hour + 60_000*ms},
		"no cost, so no slot":        {"2/1m", debt + "2", "c", 0, 0, decide.HasRoom, 0},
		"held back for less long":    {"2/1m", "hold a 2, hold b 1, settle b 1", "c", 1, 1, decide.Full, hour + 60_000*ms},
		"blocked for less long":      {"2/1s", blocked + "b 1", "c", 1, 1, decide.Full, hour + 11_250*ms},
		"held back, by its units":    {"2/1m", "hold a 1", "a", 1, 2, decide.HeldBack, hour + 1_000*ms},
		"held, and never room":       {"2/1m", "hold a 1", "a", 3, 3, decide.Denied, limit.Never},
		"held, but no room":          {"2/1m", "hold a 1, settle a 2, hold a 1", "a", 1, 1, decide.Denied, hour + 60_000*ms},
		"held, and blocked":          {"2/1s", blocked + "a 1, wait a 1000", "a", 2, 2, decide.Blocked, hour + 3_000*ms},
		"held, and blocked till now": {"2/1s", blocked + "a 1, wait a 3000", "a", 2, 2, decide.HeldBack, hour + 4_000*ms},
		"room, by a late clock":      {"2/1m", "hold a 1, settle a 1, late a 1", "a", 1, 1, decide.HasRoom, 0},
		"held, by a late clock":      {"2/1m", "hold a 2, late a 1", "a", 1, 1, decide.HeldBack, hour + 999*ms},
	} {
		both := strings.Replace(settles, "9/1h", tc.limit, 1)
		w := newWorker(t, hosttest.New(), rule("inherits", "c", both), rule("denies", "c", both+`,"on_full":"deny"`))
		w.play(tc.before)
		want := decide.Finding{Found: tc.found, Known: true, PassNs: tc.passNs}
		require.Equal(t, want, w.check(1, tc.key, tc.cost, tc.units), name)
	}
}

// Take takes the cost, whatever had to be free. Refund says whether that is back. The subject has the hold of another
// rule's request in its memory, which neither may take for its own.
func TestRefundGivesBackWhatTakeTook(t *testing.T) {
	w := newWorker(t, hosttest.New(), rule("settles", "c", settles), rule("slots", "d", slots),
		rule("counts", "e", `"limits":["9/1h"]`))
	for i, took := range [][2]uint32{{0, 3}, {3, 3}, {3, 0}} {
		for _, fail := range []string{"", "set"} {
			w.check(i, "a", 3, 5)
			require.Equal(t, state.OK, w.source(i).Take(&w.subject))
			require.Equal(t, took, w.stands(i))
			w.proxy.Fail = fail
			require.Equal(t, fail == "", w.source(i).Refund(&w.subject, w.proxy.Clock))
			w.proxy.Fail = ""
			w.check(i, "a", 1, 1)
			if fail == "" {
				require.Equal(t, [2]uint32{}, w.stands(i))
			} else {
				require.Equal(t, took, w.stands(i))
			}
		}
	}
}

// A hold of 2 units is renewed, and then settled at a cost of 3.
func TestRenewalsAndSettlements(t *testing.T) {
	for name, tc := range map[string]struct {
		before, fail string
		renewal      hold.Renewal
		settlement   hold.Settlement
		stands       [2]uint32
	}{
		"not due":         {"hold a 2, wait a 1249", "", hold.NotDue, hold.CostCharged, [2]uint32{3, 0}},
		"due":             {"hold a 2, wait a 1250", "", hold.Renewed, hold.CostCharged, [2]uint32{3, 0}},
		"due, but ended":  {"hold a 2, end a 1250, wait a 1250", "", hold.NotDue, hold.CostCharged, [2]uint32{3, 0}},
		"lapsed":          {"hold a 2, wait a 11250", "", hold.Lapsed, hold.HadLapsed, [2]uint32{3, 0}},
		"reset":           {"hold a 2, wait a 1250, reset a 0", "", hold.Gone, hold.CostCharged, [2]uint32{3, 0}},
		"charged at once": {"replace a 0, hold a 2, wait a 1250", "", hold.NotDue, hold.ChargedAtOnce, [2]uint32{3, 0}},
		"unwritable":      {"hold a 2, wait a 1250", "set", hold.Unknown, hold.Failed, [2]uint32{0, 2}},
	} {
		w := newWorker(t, hosttest.New(), rule("r", "c", settles))
		w.play(tc.before)
		w.proxy.Fail = tc.fail
		at := hold.Clocks{Now: w.proxy.Clock, MonotonicNs: w.proxy.Clock, HeldNs: w.tables.HoldClock()}
		require.Equal(t, tc.renewal, w.source(0).Renew(w.holds["a"], at), name)
		require.Equal(t, tc.settlement, w.source(0).Settle(w.holds["a"], 3, at.Now), name)
		w.proxy.Fail = ""
		w.check(0, "a", 1, 1)
		require.Equal(t, tc.stands, w.stands(0), name)
	}
}

// The tests of package engine have the other errors: of calls into the proxy, and of other operations on a full page.
func TestOperationsAndWritesThatAreRefused(t *testing.T) {
	w := newWorker(t, hosttest.New(), rule("inherits", "c", settles), rule("denies", "c", settles+`,"on_full":"deny"`),
		rule("slots", "d", slots))
	w.play("hold a 1, hold b 1") // the floor holds what a does. So c needs a record, also one that is reset
	_, _, err := w.operate(1, decide.Reset, "c", 0)
	require.EqualError(t, err, "the page of this key is full, and on_full does not evict")
	require.Equal(t, []state.Status{state.Full, state.Full}, []state.Status{w.take(1, "c", 1), w.deny(1, "c")})
	require.Equal(t, []state.Status{state.OK, state.OK}, []state.Status{w.take(0, "c", 1), w.deny(0, "d")})
	for _, o := range []decide.Operation{decide.Inc, decide.Set} {
		_, _, err = w.operate(0, o, string(o), 1) // which evicts
		require.NoError(t, err)
		_, _, err = w.operate(2, o, "a", 1)
		require.EqualError(t, err, `rule "slots" counts what runs, which no operation changes: reset forgets it`)
	}
	_, _, err = w.operate(2, decide.Reset, "a", 0)
	require.NoError(t, err)
}
