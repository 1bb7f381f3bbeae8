package console

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/chart"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/shared/answer"
)

// counted is what a proxy answers: allowed, denied and shadow denials of the rule r.
func counted(proxy string, counts ...uint64) manage.Row {
	return manage.Row{Asked: manage.Asked{Proxy: proxy}, Answer: answer.Answer{Stats: []answer.Stats{{
		Rule: "r", Metrics: map[string]uint64{"allowed": counts[0], "denied": counts[1], "shadow_denied": counts[2]},
	}}}}
}

func TestSamples(t *testing.T) {
	now := time.Unix(1000, 0)
	s := newSamples(func() time.Time { return now })
	failed := manage.Row{Asked: manage.Asked{Proxy: "b", Error: "gone"}}
	for i, step := range []struct {
		rows  []manage.Row
		total Counts
		rates []Counts
	}{
		{[]manage.Row{counted("a", 100, 10, 1)}, Counts{100, 10, 1}, nil},
		// A proxy that has not been asked before counts from now on.
		{[]manage.Row{counted("a", 110, 15, 2), counted("b", 1000, 0, 0)}, Counts{1110, 15, 2}, []Counts{{2, 1, 0.2}}},
		{[]manage.Row{counted("a", 110, 15, 2), counted("b", 1005, 0, 0)}, Counts{1115, 15, 2}, []Counts{{2, 1, 0.2}, {1, 0, 0}}},
		// One that counts anew has begun at 0, and one that is silent adds nothing.
		{[]manage.Row{counted("a", 5, 0, 0), failed}, Counts{5, 0, 0}, []Counts{{2, 1, 0.2}, {1, 0, 0}, {1, 0, 0}}},
	} {
		require.True(t, s.due(), i)
		s.add(&api.Counters{Proxies: step.rows})
		require.False(t, s.due(), i)
		rules, times, _, _ := s.list()
		require.Len(t, times, i)
		require.Len(t, rules, 1)
		require.Equal(t, step.total, rules[0].Total, i)
		require.Equal(t, step.rates, rules[0].Rates, i)
		now = now.Add(5 * time.Second)
	}
	rules, _, silent, _ := s.list()
	require.Equal(t, []chart.Line[float64]{
		{Name: "allowed", Points: "0,0 1,500 2,500 ", Most: 2}, {Name: "denied", Points: "0,500 1,1000 2,1000 ", Most: 1},
		{Name: "shadow", Points: "0,900 1,1000 2,1000 ", Most: 0.2},
	}, rules[0].Lines())
	require.Equal(t, []policyfile.Problem{{Path: "b", Message: "gone"}}, silent)

	// Keys are shown with a rule that is sampled.
	keys := make([]answer.DeniedKey, 2*maxKeys)
	s.addKeys([]answer.Denials{{Rule: "r", Keys: keys}, {Rule: "unknown", Keys: keys}})
	rules, _, _, _ = s.list()
	require.Len(t, rules, 1)
	require.Len(t, rules[0].Keys, maxKeys)

	// Samples are few, and those from before a pause do not count.
	for range 2 * maxSamples {
		s.add(&api.Counters{Proxies: []manage.Row{counted("a", 5, 0, 0)}})
		now = now.Add(sampleEvery)
	}
	rules, times, _, _ := s.list()
	require.Len(t, rules[0].Rates, maxSamples)
	require.Len(t, times, maxSamples)
	now = now.Add(forgetAfter)
	s.add(&api.Counters{Proxies: []manage.Row{counted("a", 5000, 0, 0)}})
	rules, times, _, _ = s.list()
	require.Empty(t, rules[0].Rates)
	require.Empty(t, times)
	s.add(&api.Counters{})
	rules, _, _, _ = s.list()
	require.Empty(t, rules, "a rule that no proxy has any more")

	// Many rules are not plotted.
	many := counted("a", 1, 0, 0)
	for i := range maxPlotted + 6 {
		many.Stats = append(many.Stats, answer.Stats{Rule: fmt.Sprint("r", i)})
	}
	s.add(&api.Counters{Proxies: []manage.Row{many}})
	rules, _, _, more := s.list()
	require.Len(t, rules, maxPlotted)
	require.Equal(t, 7, more)
}
