package engine

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// allocated is how many bytes f allocates.
func allocated(f func()) int64 {
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
		bytes = allocated(func() {
			var err error
			e, err = New(p, s, Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
			require.NoError(t, err)
		})
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
