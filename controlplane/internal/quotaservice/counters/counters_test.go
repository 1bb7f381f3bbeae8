package counters_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/counters"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// TestPrepareRefuses: what is no operation on one key of a rule of scope cluster.
func TestPrepareRefuses(t *testing.T) {
	p, _, _, err := policyfile.Read("shop.yaml", []byte(shop+`
  - {name: own, key: [{header: x-user}], limits: [10/minute]}
  - {name: off, scope: cluster, mode: off, key: [{header: x-user}], limits: [10/minute]}
`))
	require.NoError(t, err)
	alice := []string{"alice"}
	for want, o := range map[string]counters.Request{
		`unknown operation "leased"`:          {Name: "leased", Rule: "per-user", Key: alice},
		`there is no rule "other"`:            {Name: "get", Rule: "other", Key: alice},
		`there is no rule "off"`:              {Name: "get", Rule: "off", Key: alice},
		`rule "own" is not of scope cluster`:  {Name: "get", Rule: "own", Key: alice},
		"key":                                 {Name: "get", Rule: "per-user"},
		`rule "per-user" has no window "day"`: {Name: "set", Rule: "per-user", Key: alice, Window: "day"},
	} {
		_, err := counters.Prepare(p, o)
		require.ErrorContains(t, err, want)
	}
	require.True(t, counters.IsOfCluster(p, counters.Request{Name: "get", Rule: "per-user"}))
	require.False(t, counters.IsOfCluster(p, counters.Request{Name: "get", Rule: "own"}))
	require.False(t, counters.IsOfCluster(p, counters.Request{Name: "stats", Rule: "per-user"}))
}

// TestEachOperation: what each answers, one after the other, on a rule whose first limit has the longer window.
func TestEachOperation(t *testing.T) {
	p, _, _, err := policyfile.Read("shop.yaml", []byte(strings.Replace(shop, "[10/minute, 100/hour]",
		`[100/hour, 10/minute]
    overrides:
      - {key: [staff], unlimited: true}
      - {key: [banned], limits: [100/hour, 0/minute]}`, 1)))
	require.NoError(t, err)
	store := swapstore.NewMemory(func() int64 { return int64(12 * time.Hour) })
	service, err := quotaservice.NewService(t.Context(), quotaservice.Options{Store: store, Clock: noon{}})
	require.NoError(t, err)
	const minuteEnds = int64(12*time.Hour + time.Minute)
	for _, step := range []struct {
		name, key, window string
		n                 uint32
		want              string // the value, or the verdict
		used              []uint32
	}{
		{name: "get", key: "alice", want: "0", used: []uint32{0, 0}},
		{name: "expires_at", key: "alice", want: fmt.Sprint(minuteEnds), used: []uint32{0, 0}},
		{name: "reset", key: "alice", want: "0", used: []uint32{0, 0}},
		{name: "hit", key: "alice", n: 3, want: "allowed", used: []uint32{3, 3}},
		{name: "get", key: "alice", n: 9, want: "3", used: []uint32{3, 3}},
		{name: "expires_at", key: "alice", want: fmt.Sprint(minuteEnds), used: []uint32{3, 3}},
		{name: "peek", key: "alice", n: 8, want: "denied", used: []uint32{3, 3}},
		{name: "hit", key: "alice", n: 8, want: "denied", used: []uint32{3, 3}},
		{name: "inc", key: "alice", n: 95, window: "0", want: "98", used: []uint32{98, 3}},
		{name: "get", key: "alice", want: "98", used: []uint32{98, 3}},
		{name: "set", key: "alice", n: 9, window: "1", want: "9", used: []uint32{98, 9}},
		{name: "inc", key: "alice", n: 1, want: "10", used: []uint32{99, 10}},
		{name: "peek", key: "alice", want: "allowed", used: []uint32{99, 10}},
		{name: "set", key: "alice", n: 4, want: "4", used: []uint32{4, 4}},
		{name: "peek", key: "bob", n: 10, want: "allowed", used: []uint32{0, 0}},
		{name: "reset", key: "alice", want: "1", used: []uint32{0, 0}},
		{name: "hit", key: "staff", n: 1000, want: "allowed", used: []uint32{}},
		{name: "peek", key: "banned", want: "denied", used: []uint32{0, 0}}, // a limit of 0 denies a cost of 0, too
		{name: "hit", key: "banned", want: "denied", used: []uint32{0, 0}},
	} {
		prepared, err := counters.Prepare(p, counters.Request{
			Name: step.name, Rule: "per-user", Key: []string{step.key}, N: step.n, Window: step.window,
		})
		require.NoError(t, err)
		r, err := prepared.Do(t.Context(), service)
		require.NoError(t, err)
		got, used := said(t, &r)
		require.Equal(t, step.want, got, "%+v", step)
		require.Equal(t, step.used, used, "%+v", step)
	}
	_, err = counters.Prepare(p, counters.Request{Name: "get", Rule: "per-user", Key: []string{"staff"}})
	require.ErrorContains(t, err, "counts nothing for this key")
}

// said is the value or the verdict of a result, and how much of each limit is used.
func said(t *testing.T, r *result.Result) (what string, used []uint32) {
	windows := r.Windows
	switch {
	case r.Value != nil:
		what = fmt.Sprint(*r.Value)
	case *r.Allowed:
		what, windows = "allowed", r.Rules[0].Windows
	default:
		what, windows = "denied", r.Rules[0].Windows
		require.Equal(t, "per-user", r.DeniedBy)
		require.Equal(t, "limit", r.Rules[0].Reason)
	}
	used = []uint32{}
	for _, w := range windows {
		used = append(used, w.Used)
	}
	return what, used
}
