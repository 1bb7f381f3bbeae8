package main_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// manyRules returns a policy of n rules, each for another host and path.
func manyRules(n int) []byte {
	var rules []string
	for i := range n {
		rules = append(rules, fmt.Sprintf(`{"name":"r%d","match":{"hosts":["h%d.example"],"paths":["/v1/r%d/*"]},
			"key":[{"header":"x-user-id"}],"limits":["4000000000/1h"],"capacity":16}`, i, i, i))
	}
	return policy(strings.Join(rules, ","))
}

// spent returns the mean processor time of n calls of f. Other processes do not count,
// except that they use the caches.
func spent(t *testing.T, n int, f func()) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := buildtest.ThreadTime()
	require.NoError(t, err)
	for range n {
		f()
	}
	after, err := buildtest.ThreadTime()
	require.NoError(t, err)
	return (after - before) / time.Duration(n)
}

// The filter adds less than twice as much time to a request that matches the last of
// a thousand rules as to one that matches the last of ten. The time without any rule
// is subtracted from both.
func TestThousandRulesCostLessThanTwiceTen(t *testing.T) {
	type subject struct {
		*bench
		request *sim.Request
		times   []time.Duration
	}
	subjects := make([]*subject, 0, 3)
	for _, n := range []int{0, 10, 1000} {
		b := start(t, func(o *sim.Options) { o.OnCall = nil })
		require.NoError(t, b.Configure(manyRules(n)))
		subjects = append(subjects, &subject{bench: b, request: &sim.Request{
			Host: fmt.Sprintf("h%d.example", n-1), Path: fmt.Sprintf("/v1/r%d/x", n-1), Headers: alice.Headers,
		}})
	}
	for range 101 {
		for _, s := range subjects { // in turn, so that all of them get quiet moments
			s.times = append(s.times, spent(t, 20, func() {
				res, err := s.Serve(0, s.request)
				require.NoError(t, err)
				require.Equal(t, 200, res.Status)
			}))
		}
	}
	var quiet []time.Duration // other processes only ever add time
	for _, s := range subjects {
		quiet = append(quiet, slices.Min(s.times))
	}
	ratio := float64(quiet[2]-quiet[0]) / float64(quiet[1]-quiet[0])
	t.Logf("a request takes %v without rules, %v with 10, %v with 1,000: %.2f times as much added", quiet[0], quiet[1],
		quiet[2], ratio)
	require.Less(t, ratio, 2.0)
	require.Positive(t, subjects[2].Shared().Len(), "the last rule counted")
}
