package console

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
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
		rules, _, _, number := s.list()
		require.Equal(t, i+1, number)
		require.Len(t, rules, 1)
		require.Equal(t, step.total, rules[0].Total, i)
		require.Equal(t, step.rates, rules[0].Rates, i)
		now = now.Add(5 * time.Second)
	}
	_, silent, _, _ := s.list()
	require.Equal(t, []policyfile.Problem{{Path: "b", Message: "gone"}}, silent)

	// Keys are shown with a rule that is sampled.
	keys := make([]answer.DeniedKey, 2*maxKeys)
	s.addKeys([]answer.Denials{{Rule: "r", Keys: keys}, {Rule: "unknown", Keys: keys}})
	rules, _, _, _ := s.list()
	require.Len(t, rules, 1)
	require.Len(t, rules[0].Keys, maxKeys)

	// Samples are few, and those from before a pause do not count.
	for range 2 * maxSamples {
		s.add(&api.Counters{Proxies: []manage.Row{counted("a", 5, 0, 0)}})
		now = now.Add(sampleEvery)
	}
	rule, times, ok := s.rule("r")
	require.True(t, ok)
	require.Len(t, rule.Rates, maxSamples)
	require.Len(t, times, maxSamples)
	now = now.Add(forgetAfter)
	s.add(&api.Counters{Proxies: []manage.Row{counted("a", 5000, 0, 0)}})
	rule, times, _ = s.rule("r")
	require.Empty(t, rule.Rates)
	require.Empty(t, times)
	s.add(&api.Counters{})
	_, _, ok = s.rule("r")
	require.False(t, ok, "a rule that no proxy has any more")
}

func TestManyRulesAreNotPlotted(t *testing.T) {
	s := newSamples(time.Now)
	var stats []answer.Stats
	for i := range maxPlotted + 7 {
		stats = append(stats, answer.Stats{Rule: fmt.Sprint("r", i)})
	}
	s.add(&api.Counters{Proxies: []manage.Row{{Asked: manage.Asked{Proxy: "a"}, Answer: answer.Answer{Stats: stats}}}})
	rules, _, more, _ := s.list()
	require.Len(t, rules, maxPlotted)
	require.Equal(t, 7, more)
}

func TestPlot(t *testing.T) {
	rule := Rule{Name: "r", Rates: []Counts{{1, 2, 3}, {4, 5, 6}}}
	for dark, ground := range map[bool]string{false: "fill:white", true: "fill:rgb(22,27,34)"} {
		svg, err := draw(&rule, []string{"10:00:00", "10:00:03"}, dark)
		require.NoError(t, err)
		require.Contains(t, string(svg), ground)
		require.Contains(t, string(svg), "10:00:03")
		require.NotContains(t, string(svg), "<script")
	}
}
