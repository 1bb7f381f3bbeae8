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

// manyRules is a policy whose every rule is for another host and path.
func manyRules(n int) []byte {
	var rules []string
	for i := range n {
		rules = append(rules, fmt.Sprintf(`{"name":"r%d","match":{"hosts":["h%d.example"],"paths":["/v1/r%d/*"]},
			"key":[{"header":"x-user-id"}],"limits":["4000000000/1h"],"capacity":16}`, i, i, i))
	}
	return policy(strings.Join(rules, ","))
}

// spent is the processor time that f takes, one of n times. Others that run on the
// machine do not count, apart from what their use of the caches costs.
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

// What the filter adds to a request that matches the last rule is less than
// twice as much with a thousand rules as with ten. What it takes with no rule,
// which is the same for both, is left out of the comparison.
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
		for _, s := range subjects { // in turn, so that a quiet moment is everybody's
			s.times = append(s.times, spent(t, 20, func() {
				res, err := s.Serve(0, s.request)
				require.NoError(t, err)
				require.Equal(t, 200, res.Status)
			}))
		}
	}
	var quiet []time.Duration // what others on the machine take is only ever added
	for _, s := range subjects {
		quiet = append(quiet, slices.Min(s.times))
	}
	ratio := float64(quiet[2]-quiet[0]) / float64(quiet[1]-quiet[0])
	t.Logf("a request takes %v without rules, %v with 10, %v with 1,000: %.2f times as much added", quiet[0], quiet[1], quiet[2], ratio)
	require.Less(t, ratio, 2.0)
	require.Positive(t, subjects[2].Shared().Len(), "the last rule counted")
}
