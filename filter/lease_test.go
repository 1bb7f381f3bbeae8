package main_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

const leasing = `{"name":"r","key":[{"header":"x-user-id"}],"limits":["1000/1h","2000/1d"],"lease":8}`

// A request that is served from a lease asks Envoy for what its key is made of
// and the time, and for nothing else.
func TestHostCallsOfALease(t *testing.T) {
	b := start(t)
	require.NoError(t, b.Configure(policy(leasing)))
	read := []string{"get_header_map_value", "get_current_time_nanoseconds", "get_shared_data", "set_shared_data"}
	served, taken := 0, 0
	for i := range 31 {
		require.Equal(t, 200, b.serve(t, 0, alice).Status)
		if i == 0 {
			continue // registers the table
		}
		if len(b.calls) == 2 {
			require.Equal(t, read[:2], b.calls)
			served++
		} else {
			require.Equal(t, read, b.calls)
			taken++
		}
	}
	require.Equal(t, 5, taken, "2, 4, 8, 8 and 8")
	require.Equal(t, 25, served)
}

// What a worker holds goes back on a tick, with a new policy, and when a
// configuration ends.
func TestLeasesGoBack(t *testing.T) {
	for _, c := range []struct {
		name     string
		end      func(b *bench)
		returned uint64
	}{
		{"nothing has ended", func(*bench) {}, 0},
		{"a tick after 100 ms", func(b *bench) { b.now += 100_000_000; b.tick(t) }, 5},
		{"a new policy", func(b *bench) {
			require.NoError(t, b.Configure(policy(`{"name":"r","key":[{"header":"x-user-id"}],"limits":["1000/1h","2001/1d"],"lease":8}`)))
		}, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := start(t, func(o *sim.Options) { o.Workers = 2 })
			require.NoError(t, b.Configure([]byte(`{"version":1,"headers":"x-ratelimit","rules":[`+leasing+`]}`)))
			for range 1 + 2 + 4 + 3 {
				require.Equal(t, 200, b.serve(t, 0, alice).Status)
			}
			c.end(b)
			b.tick(t)
			require.Equal(t, c.returned, b.Metrics()["rule=.=r;.;rate_limit_lease_returned_total"])
			require.EqualValues(t, 6, b.Metrics()["rule=.=r;.;rate_limit_leased_total"])
			require.Zero(t, b.Metrics()["rule=.=r;.;rate_limit_lease_lost_total"])
		})
	}
}

// Four workers with leases on one key admit exactly the limit: what one holds
// when the record is full it serves itself.
func TestWorkersThatLeaseShareCounters(t *testing.T) {
	b := start(t, func(o *sim.Options) { o.Workers, o.OnCall = 4, nil })
	require.NoError(t, b.Configure(policy(`{"name":"r","limits":["5000/366d"],"lease":100}`)))
	var passed [4]int
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for range 5000 { // nobody is done while there is room: units that one still holds would be missing
				if res, err := b.Serve(w, alice); err == nil && res.Status == 200 {
					passed[w]++
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, 5000, passed[0]+passed[1]+passed[2]+passed[3])
	b.tick(t)
	require.Greater(t, b.Metrics()["rule=.=r;.;rate_limit_leased_total"], uint64(4000))
}

// What the filter adds to a request of a busy key is less with a lease.
func TestALeaseCostsLess(t *testing.T) {
	const hot = `{"name":"r","key":[{"header":"x-user-id"}],"limits":["4000000000/1h"]`
	var benches []*bench
	times := make([][]time.Duration, 3)
	for _, rules := range []string{"", hot + `}`, hot + `,"lease":100}`} {
		b := start(t, func(o *sim.Options) { o.OnCall = nil })
		require.NoError(t, b.Configure(policy(rules)))
		benches = append(benches, b)
	}
	for range 201 {
		for i, b := range benches { // in turn, so that a quiet moment is everybody's
			times[i] = append(times[i], spent(t, 100, func() {
				res, err := b.Serve(0, alice)
				require.NoError(t, err)
				require.Equal(t, 200, res.Status)
			}))
		}
	}
	none, exact, leased := slices.Min(times[0]), slices.Min(times[1]), slices.Min(times[2])
	require.Less(t, leased-none, (exact-none)*3/4)
	buildtest.Figure(t, "a rule adds %s to a request on wazero, with a lease %s", exact-none, leased-none)
}

// A tick gives back a bounded number of leases, whatever clients have made the
// worker take, so that requests wait no longer than that takes; the next ticks go
// on. Meanwhile nothing is served from them.
func TestATickGivesBackSoManyLeases(t *testing.T) {
	const counters, users, most = 6, 200, 256
	b := start(t)
	var rules []string
	for i := range counters {
		rules = append(rules, fmt.Sprintf(`{"name":"r%d","key":[{"header":"x-user-id"}],"limits":["900000/1d"],"lease":8}`, i))
	}
	require.NoError(t, b.Configure(policy(strings.Join(rules, ","))))
	total := func(metric string) (sum uint64) {
		for i := range counters {
			sum += b.Metrics()[fmt.Sprintf("rule=.=r%d;.;rate_limit_%s_total", i, metric)]
		}
		return sum
	}
	calls := func(name string) (n int) {
		for _, c := range b.calls {
			if c == name {
				n++
			}
		}
		return n
	}
	user := func(i int) *sim.Request {
		return &sim.Request{Headers: [][2]string{{"x-user-id", fmt.Sprint("user-", i)}}}
	}
	for i := range users {
		for range 4 { // the last one takes four, and three of them stay
			require.Equal(t, 200, b.serve(t, 0, user(i)).Status)
		}
	}
	require.NoError(t, b.Tick(0))
	require.Zero(t, total("lease_returned"), "none is over")
	leased := total("leased")
	b.now += 100_000_000
	ticks, took := 0, []time.Duration(nil)
	for before := total("lease_returned"); ; ticks++ {
		b.now, b.calls = b.now+1_000_000_000, nil
		began := time.Now()
		require.NoError(t, b.Tick(0))
		spent := time.Since(began)
		require.LessOrEqual(t, calls("set_shared_data"), most+1, "and the owner that shows itself")
		returned := total("lease_returned")
		if returned == before {
			break
		}
		if returned-before == 3*most {
			took = append(took, spent)
		}
		before = returned
	}
	require.EqualValues(t, 3*leased, total("lease_returned"), "one served of each lease of two")
	require.Zero(t, total("lease_lost"))
	require.EqualValues(t, (leased+most-1)/most, ticks)
	require.Greater(t, ticks, 2)
	b.serve(t, 0, user(0))
	require.Equal(t, counters, calls("set_shared_data"))
	buildtest.Figure(t, "a tick that gives back %d leases takes %s on wazero", most, slices.Min(took))
}
