package engine

import (
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// allocated is how many bytes f allocates. Meanwhile the runtime starts no thread,
// which takes 5 kB.
func allocated(f func()) int64 {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// The memory for leases is taken with the first lease of a table, once, and is
// what the policy says of it. Keys that are rare take none.
func TestMemoryIsTakenWithTheFirstLease(t *testing.T) {
	const n = 500
	rules := func(lease string) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(`{"name":"r%d","key":[{"header":"u"}],"match":{"paths":["=/%d"]},"limits":["900000/1h","900000/1d"],"lease":%s}`, i, i, lease))
		}
		return strings.Join(list, ",")
	}
	s := &quietProxy{proxy: newProxy(), cells: map[string]*cell{}}
	s.now = aligned
	made := func(lease string) (e *Engine, bytes int64) {
		p := compileJSON(t, s, rules(lease)).policy
		bytes = allocated(func() { e = New(p, s, Identity{Owner: 1, Random: func(b []byte) { clear(b) }}) })
		return e, bytes
	}
	_, without := made(`"off"`)
	e, with := made(`8`)
	require.Less(t, (with-without)/n, int64(600), "bytes for each rule that leases")

	s.now += msNs
	s.with("u", "a", ":path", "/7")
	rare := func() {
		s.now += 2 * leaseNs
		require.True(t, e.Decide().Allowed)
	}
	for range 10 {
		rare()
	}
	require.Zero(t, testing.AllocsPerRun(100, rare))
	s.now += msNs
	took := allocated(func() { e.Decide() })
	require.EqualValues(t, 3, e.tries[0].loan.lease.size+e.tries[0].loan.lease.left, "a lease of two, one of them left")
	require.InDelta(t, policy.LeaseBytes(2), took, 100)
	require.EqualValues(t, policy.LeaseBytes(1), leaseSlots*(reflect.TypeFor[lease]().Size()+8))
	for range 10 {
		s.now += msNs
		e.Decide()
	}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		s.now += 7 * msNs
		e.Decide()
	}))
}

// Until a table's first lease a worker watches a few keys, each for as long as
// it may come again: a busy key among many is found.
func TestABusyKeyIsFoundAmongManyRareOnes(t *testing.T) {
	p := newProxy()
	p.now = aligned
	e := compileJSON(t, p, leased)
	for i := range 2000 {
		user := fmt.Sprint("rare", i)
		if i%10 == 0 {
			user = "busy"
		}
		hits(e, p, user, 1)
	}
	require.Greater(t, e.rules[0].metrics.Leased, uint64(50))
}

// crowd is an engine with leases of one unit left for many keys of a few
// counters, more than go back at once.
func crowd(t *testing.T, p *proxy, counters int) (e *Engine, leases uint64) {
	var rules []string
	for i := range counters {
		rules = append(rules, fmt.Sprintf(`{"name":"r%d","key":[{"header":"u"}],"limits":["900000/1h"],"lease":2}`, i))
	}
	p.now = aligned
	e = compileJSON(t, p, strings.Join(rules, ","))
	for i := range 600 {
		p.with("u", fmt.Sprint(i))
		for range 2 { // the first is counted by itself, the second takes two
			require.True(t, e.Decide().Allowed)
		}
	}
	return e, outstanding(e)
}

// outstanding is how many leases have units left.
func outstanding(e *Engine) (leases uint64) {
	for _, b := range e.lending.books {
		for i := range b.slots {
			if b.slots[i].left > 0 {
				leases++
			}
		}
	}
	return leases
}

// sum adds up what all rules have counted.
func sum(e *Engine, of func(m *Metrics) uint64) (n uint64) {
	for i := range e.rules {
		n += of(&e.rules[i].metrics)
	}
	return n
}

func returned(m *Metrics) uint64 { return m.LeaseReturned }
func lost(m *Metrics) uint64     { return m.LeaseLost }

// What has to go back goes back a bounded number of leases at a time, and all of
// it with the ticks that follow; where none will follow, the rest stays counted.
func TestLeasesGoBackInTurn(t *testing.T) {
	for name, c := range map[string]struct {
		begin func(p *proxy, e *Engine)
		first int
		final bool
	}{
		"ticks": {func(p *proxy, e *Engine) { p.now += leaseNs; e.EndLeases() }, leaseReturns, false},
		"stop":  {func(_ *proxy, e *Engine) { e.StopLeases() }, leaseReturns, false},
		"close": {func(_ *proxy, e *Engine) { e.CloseLeases() }, lastReturns, true},
		"part":  {func(_ *proxy, e *Engine) { e.Part() }, lastReturns, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy()
			e, leases := crowd(t, p, 6)
			require.Greater(t, leases, uint64(lastReturns))
			before := p.cas
			c.begin(p, e)
			require.EqualValues(t, c.first, sum(e, returned))
			require.EqualValues(t, c.first, p.cas-before, "writes")
			if c.final {
				require.Zero(t, outstanding(e))
				require.EqualValues(t, leases-lastReturns, sum(e, lost))
				return
			}
			for ticks := 1; outstanding(e) > 0; ticks++ {
				require.LessOrEqual(t, ticks, int(leases)/leaseReturns)
				e.EndLeases()
			}
			require.EqualValues(t, leases, sum(e, returned))
			require.Zero(t, sum(e, lost))
		})
	}
}

// Units of a lease that is over and did not get its turn are not served, and go
// back once: with the key's next write, also where leases have been stopped, or
// on a later tick. In the end exactly what was admitted is counted.
func TestALeaseThatAwaitsItsTurn(t *testing.T) {
	for name, stop := range map[string]bool{"over": false, "stopped": true} {
		t.Run(name, func(t *testing.T) {
			p := newProxy()
			e, _ := crowd(t, p, 4)
			if stop {
				e.StopLeases()
			} else {
				p.now += leaseNs
				e.EndLeases()
			}
			require.Greater(t, outstanding(e), uint64(leaseReturns))
			served := sum(e, func(m *Metrics) uint64 { return m.Leased })
			for i := range 300 {
				p.with("u", fmt.Sprint(i))
				require.True(t, e.Decide().Allowed)
			}
			require.Equal(t, served, sum(e, func(m *Metrics) uint64 { return m.Leased }))
			for outstanding(e) > 0 {
				p.now += leaseNs
				e.EndLeases()
			}
			for i := range 600 {
				for _, r := range e.rules {
					answer := operate(t, e, Operation{Name: "get", Rule: r.policy.Name, Key: []string{fmt.Sprint(i)}})
					want := `{"value":2,`
					if i < 300 {
						want = `{"value":3,`
					}
					require.True(t, strings.HasPrefix(answer, want), "%s of user %d: %s", r.policy.Name, i, answer)
				}
			}
		})
	}
}

// A clock that steps back does not bring a lease to life again that is long
// over: a set or reset of its key is exact by then.
func TestAClockThatStepsBackRevivesNoLease(t *testing.T) {
	p := newProxy()
	e, _ := crowd(t, p, 4)
	at := p.now
	for range 2 {
		p.now += 1000 * msNs
		e.EndLeases()
	}
	require.Greater(t, outstanding(e), uint64(leaseSlots/4), "they await their turn")
	p.now = at + msNs
	for i := range 600 {
		p.with("u", fmt.Sprint(i))
		v := e.Decide()
		require.True(t, v.Allowed)
		for j := range v.tries {
			require.False(t, v.tries[j].loan.served, "user %d, rule %d", i, j)
		}
	}
}

// A count that has reached the most there is may stand for more: units that go
// back to it are not taken off, or it would admit as many again.
func TestLeasesOfTheLargestLimit(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window_counter"} {
		rules := `{"name":"r","key":[{"header":"u"}],"limits":[{"requests":4294967295,"per":"1h","algorithm":"` + algorithm + `"}],"lease":8}`
		p := newProxy()
		p.now = aligned
		e, other := compileJSON(t, p, rules), compileJSON(t, p, rules)
		operate(t, other, Operation{Name: "set", Rule: "r", Key: []string{"a"}, N: math.MaxUint32 - 100})
		allowed, _ := hits(e, p, "a", 1+2+4+1)
		require.Equal(t, 8, allowed)
		require.Positive(t, outstanding(e))
		operate(t, other, Operation{Name: "inc", Rule: "r", Key: []string{"a"}, N: 200})
		p.now += leaseNs
		e.EndLeases()
		require.Equal(t, "4294967295", recorded(t, p, rules, "a"), algorithm)
		allowed, _ = hits(e, p, "a", 10)
		require.Zero(t, allowed, algorithm)
		require.Positive(t, sum(e, lost))

		// As long as nothing is cut off, all of the limit can be used.
		operate(t, other, Operation{Name: "set", Rule: "r", Key: []string{"b"}, N: math.MaxUint32 - 100})
		allowed, _ = hits(e, p, "b", 150)
		require.Equal(t, 100, allowed, algorithm)
	}
}

// A limit of 33 is the lowest that has room for a lease of two. That validate
// warns of a lower one, is true also of a key that has come and has used nothing:
// it was reset elsewhere, or its window has ended.
func TestTheLowestLimitThatLeases(t *testing.T) {
	for _, c := range []struct {
		limit  int
		leases bool
	}{{31, false}, {32, false}, {33, true}, {34, true}} {
		rules := fmt.Sprintf(`{"name":"r","key":[{"header":"u"}],"limits":["%d/1h"],"lease":8,"cost":{"header":"c"}}`, c.limit)
		for name, meanwhile := range map[string]func(p *proxy){
			"at once": func(*proxy) {},
			"after a reset": func(p *proxy) {
				operate(t, compileJSON(t, p, rules), Operation{Name: "reset", Rule: "r", Key: []string{"a"}})
			},
			"in the next window": func(p *proxy) { p.now = aligned + 3600_000*msNs },
		} {
			p := newProxy()
			p.now = aligned + 3600_000*msNs - 50*msNs
			e := compileJSON(t, p, rules)
			p.with("u", "a", "c", "2")
			if name == "at once" {
				p.with("u", "a")
			}
			require.True(t, e.Decide().Allowed)
			meanwhile(p)
			hits(e, p, "a", 1)
			require.Equal(t, c.leases, e.tries[0].loan.lease.left > 0, "%d %s", c.limit, name)
		}
	}
}

// No units are taken that no request could use: whatever its cost, a lease is for
// two of them at least, and as validate says from which lease and limit on.
func TestALeaseIsForWholeRequests(t *testing.T) {
	for _, c := range []struct {
		cost, limit, lease int
		leases             bool
	}{
		{5, 9000, 8, false}, {5, 9000, 9, false}, {5, 9000, 10, true}, {5, 9000, 19, true},
		{50, 9000, 99, false}, {50, 9000, 100, true}, {5, 164, 10, false}, {5, 165, 10, true},
	} {
		p := newProxy()
		p.now = aligned
		e := compileJSON(t, p, fmt.Sprintf(`{"name":"r","key":[{"header":"u"}],"limits":["%d/1h"],"lease":%d,"cost":%d}`, c.limit, c.lease, c.cost))
		leased := 0
		p.with("u", "a")
		for range 40 {
			e.Decide()
			if !e.verdict.Allowed {
				break
			}
			left := e.tries[0].loan.left
			require.Zero(t, int(left)%c.cost, "%+v", c)
			leased += int(left)
			p.now += 10 * msNs
		}
		require.Equal(t, c.leases, leased > 0, "%+v", c)
	}
	// The cheapest rule of a counter says what is of use.
	p := newProxy()
	e := compileJSON(t, p, `{"name":"r","match":{"paths":["/r"]},"key":[{"header":"u"}],"counter":"c","limits":["9000/1h"],"lease":30,"cost":20},`+
		`{"name":"s","match":{"paths":["/s"]},"key":[{"header":"u"}],"counter":"c","limits":["9000/1h"],"lease":30}`)
	p.with("u", "a", ":path", "/r")
	require.True(t, e.Decide().Allowed)
	require.True(t, e.Decide().Allowed)
	require.EqualValues(t, 10, e.tries[0].loan.left)
	p.with("u", "a", ":path", "/s")
	require.True(t, e.Decide().Allowed)
	require.True(t, e.tries[0].loan.served)
}
