package engine

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	leased = `{"name":"r","key":[{"header":"u"}],"limits":["1000/1h"],"lease":8,"cost":{"header":"c"}}`
	// aligned is the beginning of an hour.
	aligned = int64(277_778) * 3_600_000_000_000
	msNs    = int64(1_000_000)
)

// hits decides n requests of a user, each a millisecond after the one before,
// and returns how many were allowed and the calls of the last one.
func hits(e *Engine, p *proxy, user string, n int) (allowed int, calls []string) {
	p.with("u", user)
	for range n {
		p.calls = nil
		p.now += msNs
		if e.Decide().Allowed {
			allowed++
		}
	}
	return allowed, p.calls
}

// recorded is what the record says that a user has used, leases included.
func recorded(t *testing.T, p *proxy, rules, user string) string {
	t.Helper()
	answer := operate(t, compileJSON(t, p, rules), Operation{Name: "get", Rule: "r", Key: []string{user}})
	value, _, found := strings.Cut(strings.TrimPrefix(answer, `{"value":`), ",")
	require.True(t, found, answer)
	return value
}

// A busy key takes leases of 1, 2, 4 and then 8 units; what is served from one
// touches no shared data.
func TestALeaseGrows(t *testing.T) {
	p := newProxy()
	p.now = aligned
	e := compileJSON(t, p, leased)
	hits(e, p, "a", 1) // registers the table
	for i, want := range []struct {
		recorded string
		sets     bool
	}{
		{"3", true}, {"3", false},
		{"7", true}, {"7", false}, {"7", false}, {"7", false},
		{"15", true}, {"15", false}, {"15", false}, {"15", false}, {"15", false}, {"15", false}, {"15", false}, {"15", false},
		{"23", true}, {"23", false},
	} {
		allowed, calls := hits(e, p, "a", 1)
		require.Equal(t, 1, allowed)
		if want.sets {
			require.Equal(t, []string{"header u", "joined c", "get", "set"}, calls, i)
		} else {
			require.Equal(t, []string{"header u", "joined c"}, calls, i)
		}
		require.Equal(t, want.recorded, recorded(t, p, leased, "a"), i)
	}
	require.EqualValues(t, 12, e.rules[0].metrics.Leased)
}

// A key that comes now and then takes no leases, and one that becomes rare
// takes smaller ones.
func TestALeaseFitsTheNeed(t *testing.T) {
	p := newProxy()
	p.now = aligned
	e := compileJSON(t, p, leased)
	for i := range 10 {
		hits(e, p, "rare", 1)
		p.now += leaseNs
		require.Equal(t, strconv.Itoa(i+1), recorded(t, p, leased, "rare"))
	}
	hits(e, p, "busy", 1+2+4+3)
	require.Equal(t, "15", recorded(t, p, leased, "busy"))
	p.now += leaseNs
	hits(e, p, "busy", 1) // 5 of 8 were not served: they go back, and 3 are taken
	require.Equal(t, "13", recorded(t, p, leased, "busy"))
	p.now += leaseRestNs
	hits(e, p, "busy", 1)
	require.Equal(t, "12", recorded(t, p, leased, "busy"))
	require.EqualValues(t, 7, e.rules[0].metrics.LeaseReturned)
	require.Zero(t, e.rules[0].metrics.LeaseLost)
}

// Near the limit every hit is counted by itself, and what is counted is served.
func TestALeaseShrinks(t *testing.T) {
	const rules = `{"name":"r","key":[{"header":"u"}],"limits":["100/1h"],"lease":50}`
	p := newProxy()
	p.now = aligned
	e := compileJSON(t, p, rules)
	largest := uint32(0)
	allowed := 0
	for range 150 {
		n, _ := hits(e, p, "a", 1)
		allowed += n
		if l := e.tries[0].loan.lease; l.left > 0 {
			largest = max(largest, l.size)
		}
	}
	require.Equal(t, 100, allowed)
	require.EqualValues(t, 5, largest)
	require.Equal(t, "100", recorded(t, p, rules, "a"))
}

// What ends a lease: its time, its window, a clock that steps back, another
// layout, a new policy. Its units go back, or go with the window.
func TestWhatEndsALease(t *testing.T) {
	const more = `{"name":"r","key":[{"header":"u"}],"limits":["1000/1h",{"requests":5,"per":"1d","algorithm":"sliding_window_log"}],"lease":"off"}`
	for _, c := range []struct {
		name         string
		end          func(p *proxy, e *Engine)
		returned     uint64
		lost         uint64
		served, used string // after one hit more
	}{
		{"nothing", func(*proxy, *Engine) {}, 0, 0, "served", "15"},
		{"100 ms", func(p *proxy, _ *Engine) { p.now += leaseNs - 3*msNs }, 5, 0, "", "13"},
		{"just not 100 ms", func(p *proxy, _ *Engine) { p.now += leaseNs - 4*msNs }, 0, 0, "served", "15"},
		{"the window", func(p *proxy, _ *Engine) { p.now = aligned + 3600_000*msNs - msNs }, 5, 0, "", "1"},
		{"a step back", func(p *proxy, _ *Engine) { p.now -= 100 * msNs }, 0, 5, "", "16"},
		{"a tick", func(p *proxy, e *Engine) { p.now += leaseNs; e.EndLeases() }, 5, 0, "", "13"},
		{"no tick", func(_ *proxy, e *Engine) { e.EndLeases() }, 0, 0, "served", "15"},
		{"a new policy", func(_ *proxy, e *Engine) { e.StopLeases() }, 5, 0, "", "11"},
		{"a reset", func(p *proxy, e *Engine) {
			_, err := e.Operate(nil, Operation{Name: "reset", Rule: "r", Key: []string{"a"}})
			require.NoError(t, err)
		}, 5, 0, "", "6"},
		{"a set", func(p *proxy, e *Engine) {
			_, err := e.Operate(nil, Operation{Name: "set", Rule: "r", Key: []string{"a"}, N: 3})
			require.NoError(t, err)
		}, 5, 0, "", "9"},
		{"a reset elsewhere, once it is noticed", func(p *proxy, _ *Engine) {
			_, err := compileJSON(t, p, leased).Operate(nil, Operation{Name: "reset", Rule: "r", Key: []string{"a"}})
			require.NoError(t, err)
			p.now += leaseNs
		}, 0, 5, "", "3"},
		{"a set elsewhere, once it is noticed", func(p *proxy, _ *Engine) {
			_, err := compileJSON(t, p, leased).Operate(nil, Operation{Name: "set", Rule: "r", Key: []string{"a"}, N: 40})
			require.NoError(t, err)
			p.now += leaseNs
		}, 0, 5, "", "43"},
		{"another layout, once it is known", func(p *proxy, e *Engine) {
			q := compileJSON(t, p, more)
			q.tables = nil
			later := New(q.policy, p, Identity{Owner: 1, ConfiguredNs: p.now, Random: func(b []byte) { clear(b) }})
			hits(later, p, "b", 1)
			e.Confirm()
		}, 0, 5, "", "16"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newProxy()
			p.now = aligned
			e := compileJSON(t, p, leased)
			hits(e, p, "a", 1+2+4+3) // 3 of 8 are served
			require.EqualValues(t, 5, e.tries[0].loan.lease.left)
			c.end(p, e)
			allowed, calls := hits(e, p, "a", 1)
			require.Equal(t, 1, allowed)
			require.Equal(t, c.served != "", len(calls) == 2, "%v", calls)
			m := &e.rules[0].metrics
			require.Equal(t, []uint64{c.returned, c.lost}, []uint64{m.LeaseReturned, m.LeaseLost})
			require.Equal(t, c.used, recorded(t, p, leased, "a"))
		})
	}
}

// What a configuration counts must be seen at once where another of its name
// reads it. Once they count apart it leases again, also in workers that only
// followed the first one to part, until StopLeases is called anew.
func TestLeasesAfterParting(t *testing.T) {
	p := newProxy()
	p.now = aligned
	configure := func(apart uint64, rules string) *Engine {
		p.now += msNs
		return New(compileJSON(t, p, rules).policy, p, Identity{Owner: 1, Apart: apart, ConfiguredNs: p.now, Random: func(b []byte) { clear(b) }})
	}
	workers := []*Engine{configure(2, leased), configure(2, leased)}
	for _, e := range workers {
		hits(e, p, "a", 1)
	}
	sibling := configure(3, `{"name":"s","key":[{"header":"u"}],"limits":["1000/1h"]}`)
	for _, e := range workers {
		e.StopLeases()
	}
	hits(sibling, p, "a", 1)
	workers[0].Confirm()
	require.True(t, workers[0].Rivals())
	workers[0].Part()
	for i, e := range workers {
		hits(e, p, "a", 1)
		sibling.Confirm()
		e.Confirm()
		hits(e, p, "a", 10)
		require.Positive(t, e.rules[0].metrics.Leased, "worker %d", i)
	}
	for i, e := range workers {
		e.StopLeases()
		e.Confirm()
		served := e.rules[0].metrics.Leased
		hits(e, p, "a", 10)
		require.Equal(t, served, e.rules[0].metrics.Leased, "worker %d", i)
	}
}

// Management requests see what the worker that answers them has not served as
// not used.
func TestOperationsOnALease(t *testing.T) {
	p := newProxy()
	p.now = aligned
	e := compileJSON(t, p, leased)
	hits(e, p, "a", 1+2+4+3)
	key := []string{"a"}
	before := p.cas
	require.Contains(t, operate(t, e, Operation{Name: "get", Rule: "r", Key: key}), `{"value":10,`)
	require.Contains(t, operate(t, e, Operation{Name: "peek", Rule: "r", Key: key, N: 5}), `"allowed":true,"remaining":990`)
	require.Contains(t, operate(t, e, Operation{Name: "peek", Rule: "r", Key: key, N: 6}), `"allowed":true,"remaining":990`)
	require.Contains(t, operate(t, e, Operation{Name: "peek", Rule: "r", Key: key, N: 991}), `"allowed":false`)
	require.Contains(t, operate(t, e, Operation{Name: "expires_at", Rule: "r", Key: key}), `{"value":`)
	explained := string(e.Explain(nil, &Described{Method: "GET", Path: "/", Host: "h", Headers: map[string][]string{"u": {"a"}}}))
	require.Contains(t, explained, `"used":10,"remaining":990`)
	require.Equal(t, before, p.cas, "none of them writes")
	require.Equal(t, "15", recorded(t, p, leased, "a"))
	require.Contains(t, operate(t, e, Operation{Name: "hit", Rule: "r", Key: key, N: 1}), `"used":11,"remaining":989`)
	require.Contains(t, operate(t, e, Operation{Name: "inc", Rule: "r", Key: key, N: 100}), `{"value":111,`)
	require.Equal(t, "111", recorded(t, p, leased, "a"))
	require.Contains(t, operate(t, e, Operation{Name: "clean"}), `{"value":0}`)
}

// A worker whose table is closed, because it has followed others into parting in
// the middle of a request, ends a lease by an operation all the same: its units
// are not given back and served as well.
func TestAnOperationOnAClosedTable(t *testing.T) {
	for name, c := range map[string]struct {
		op   Operation
		used string
	}{
		"inc": {Operation{Name: "inc", N: 100}, "115"},
		"set": {Operation{Name: "set", N: 100}, "105"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy()
			p.now = aligned
			e := compileJSON(t, p, leased)
			hits(e, p, "a", 1+2+4+3) // 5 of 8 are left
			e.tables.Part()
			c.op.Rule, c.op.Key = "r", []string{"a"}
			operate(t, e, c.op)
			allowed, _ := hits(e, p, "a", 5)
			require.Equal(t, 5, allowed)
			require.Contains(t, operate(t, e, Operation{Name: "get", Rule: "r", Key: []string{"a"}}), `{"value":`+c.used+`,`)
		})
	}
}

// A key whose place another key's lease has is counted hit by hit, and takes
// the place when that lease is over: what it has left goes back.
func TestALeaseIsDisplacedWhenItIsOver(t *testing.T) {
	p := newProxy()
	p.now = aligned
	e := compileJSON(t, p, leased)
	hits(e, p, "a", 1+2+4+3)
	b := e.rules[0].leases
	slot := e.tries[0].loan.lease
	other := ""
	for i := 0; other == ""; i++ {
		p.with("u", "other"+strconv.Itoa(i))
		p.now += msNs / 1000
		require.True(t, e.Decide().Allowed)
		if b.slot(b.table.Hash(&e.tries[0].entry)) == slot {
			other = p.headers["u"][0]
		}
	}
	require.EqualValues(t, 5, slot.left, "a live lease stays")
	_, calls := hits(e, p, other, 3)
	require.Contains(t, calls, "set")
	p.now += leaseNs
	hits(e, p, other, 1)
	require.Zero(t, slot.left)
	require.EqualValues(t, 5, b.metrics.LeaseReturned)
	require.Equal(t, "10", recorded(t, p, leased, "a"))
	_, calls = hits(e, p, other, 2)
	require.Equal(t, []string{"header u", "joined c"}, calls)
}

// Fields tell a client what it has used, not what its worker holds.
func TestFieldsOfALease(t *testing.T) {
	p := newProxy()
	p.now = aligned
	e := compileJSON(t, p, leased)
	for i := range 40 {
		hits(e, p, "a", 1)
		require.Equal(t, uint32(i+1), used(&e.verdict)[0][0])
		w, u := e.verdict.tries[0].window(0)
		require.Equal(t, aligned+3600_000*msNs, w.Reset(u, p.now))
	}
}

// Costs, overrides, shadow rules and jittered or sliding windows lease as well.
func TestLeasesOfAllKinds(t *testing.T) {
	for name, c := range map[string]struct {
		rule    string
		allowed int
	}{
		"cost":     {`"limits":["900/1h"],"lease":20,"cost":3`, 300},
		"override": {`"limits":["10/1h","5000/1d"],"lease":20,"overrides":[{"key":["a"],"limits":["400/1h"]}]`, 400},
		"shadow":   {`"limits":["300/1h"],"lease":20,"mode":"shadow"`, 300},
		"percent":  {`"limits":["300/1h"],"lease":20,"enforce_percent":0`, 300},
		"jitter":   {`"limits":[{"requests":300,"per":"1h","jitter":50},"700/1d"],"lease":20`, 300},
		"sliding":  {`"limits":[{"requests":300,"per":"1h","algorithm":"sliding_window_counter"}],"lease":20`, 300},
		"layered":  {`"limits":["300/1h",{"requests":310,"per":"1d","algorithm":"sliding_window_counter"}],"lease":20`, 300},
		"huge":     {`"limits":["4000000000/1h"],"lease":1000000,"cost":10000000`, 400},
		"one":      {`"limits":["300/1h"],"lease":1`, 300},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy()
			p.now = aligned
			rules := `{"name":"r","key":[{"header":"u"}],` + c.rule + `}`
			e := compileJSON(t, p, rules)
			p.with("u", "a")
			allowed := 0
			for range 500 {
				p.now += msNs
				if v := e.Decide(); v.tries[0].allowed {
					allowed++
				}
				if allowed == 100 {
					p.now += leaseNs // what is left of a lease goes back
				}
			}
			require.Equal(t, c.allowed, allowed)
			leasing := name != "one" && name != "huge"
			m := &e.rules[0].metrics
			require.Equal(t, leasing, m.Leased > 100, "%d leased", m.Leased)
			require.Equal(t, leasing, m.LeaseReturned > 0)
			require.Zero(t, m.LeaseLost)
			w, u := e.verdict.tries[0].window(0)
			require.LessOrEqual(t, w.Count(u, p.now), w.Most())
		})
	}
}

// Nothing that has to do with leases allocates.
func TestLeasesAllocateNothing(t *testing.T) {
	s := &quietProxy{proxy: newProxy(), cells: map[string]*cell{}}
	s.now = aligned
	s.with("u", "a")
	e := compileJSON(t, s, `{"name":"r","key":[{"header":"u"}],"limits":["4000000000/1h"],"lease":8},{"name":"s","key":[{"header":"u"}],"limits":[{"requests":4000000000,"per":"1h","jitter":9}],"lease":50}`)
	step := func() {
		for range 10 {
			s.now += 7 * msNs
			e.Decide()
		}
		s.now += leaseNs
		e.EndLeases() // gives back with a write of its own
	}
	for range 10 {
		step()
	}
	require.Zero(t, testing.AllocsPerRun(100, step))
	require.Positive(t, e.rules[0].metrics.LeaseReturned+e.rules[1].metrics.LeaseReturned)
	require.Positive(t, e.rules[1].metrics.Leased)
}
