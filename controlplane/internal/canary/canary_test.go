package canary

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sight has looked twice at a proxy of the canary and at another one, which decided that
// much in between.
func sight(canary, others map[string]Count) *Sight {
	s, at := NewSight(), time.Unix(1_000_000, 0)
	for _, side := range []struct {
		proxy string
		n     Sample
	}{{"in", Sample{Revision: 2, InCanary: true, Rules: canary}}, {"out", Sample{Revision: 1, Rules: others}}} {
		before := side.n
		before.Rules = map[string]Count{}
		for rule := range side.n.Rules {
			before.Rules[rule] = Count{1000, 900} // what was before does not count
		}
		s.Add(Process{Node: side.proxy}, at, before)
		after := side.n
		after.Rules = map[string]Count{}
		for rule, c := range side.n.Rules {
			after.Rules[rule] = Count{1000 + c.Requests, 900 + c.Denied}
		}
		s.Add(Process{Node: side.proxy}, at.Add(time.Second), after)
	}
	return &s
}

func TestWhatACanaryIsJudgedBy(t *testing.T) {
	const (
		none30 = "r denies 3.0 % of 1000 requests in the canary, 0.0 % of 0 on other proxies"
		five80 = "r denies 80.0 % of 100 requests in the canary, 0.0 % of 5 on other proxies"
		one70  = "r denies 70.0 % of 1000 requests in the canary, 0.0 % of 1 on other proxies, " +
			"which are too few to compare with"
		ten13 = "r denies 13.0 % of 100 requests in the canary, 10.0 % of 100 on other proxies"
		b10   = "b denies 10.0 % of 500 requests in the canary, 0.0 % of 500 on other proxies"
		new25 = "new denies 2.5 % of 200 requests in the canary, 0.0 % of 0 on other proxies"
	)
	none := "no rule has decided 100 requests in the canary yet"
	type counts = map[string]Count
	for name, tc := range map[string]struct {
		canary, others counts
		bad, missing   string
	}{
		"nothing seen":             {nil, nil, "", none},
		"too few there":            {counts{"r": {99, 99}}, counts{"r": {1000, 0}}, "", none},
		"none elsewhere":           {counts{"r": {1000, 30}}, nil, none30, ""},
		"few elsewhere, as many":   {counts{"r": {100, 10}}, counts{"r": {99, 9}}, "", ""},
		"few elsewhere, a third":   {counts{"r": {100, 10}}, counts{"r": {33, 3}}, "", ""},
		"few elsewhere, far fewer": {counts{"r": {100, 80}}, counts{"r": {5, 0}}, five80, ""},
		"few elsewhere, in doubt":  {counts{"r": {1000, 700}}, counts{"r": {1, 0}}, "", one70},
		"in doubt beside a fine one": {
			counts{"r": {1000, 700}, "s": {100, 0}}, counts{"r": {1, 0}, "s": {100, 0}}, "", one70,
		},
		"few elsewhere, all denied": {counts{"r": {1000, 900}}, counts{"r": {9, 9}}, "", ""},
		"within":                    {counts{"r": {100, 12}}, counts{"r": {100, 10}}, "", ""},
		"beyond":                    {counts{"r": {100, 13}}, counts{"r": {100, 10}}, ten13, ""},
		"shares, not numbers":       {counts{"r": {100, 12}}, counts{"r": {100_000, 10_000}}, "", ""},
		"fewer denials are no harm": {counts{"r": {100, 0}}, counts{"r": {100, 90}}, "", ""},
		"one of several rules":      {counts{"a": {500, 0}, "b": {500, 50}}, counts{"a": {500, 0}, "b": {500, 0}}, b10, ""},
		"a quiet rule beside":       {counts{"a": {500, 0}, "b": {5, 5}}, counts{"a": {500, 0}, "b": {5, 0}}, "", ""},
		"a new rule":                {counts{"new": {200, 5}}, counts{"old": {200, 0}}, new25, ""},
		"a new rule that is mild":   {counts{"new": {200, 4}}, counts{"old": {200, 0}}, "", ""},
	} {
		bad, missing := sight(tc.canary, tc.others).Judge(2)
		require.Equal(t, []string{tc.bad, tc.missing}, []string{bad, missing}, name)
	}
}

func TestCountsOfProxiesAddUp(t *testing.T) {
	s, at := NewSight(), time.Unix(1_000_000, 0)
	p := Process{Node: "p"}
	add := func(after time.Duration, revision, starts uint64, c Count) {
		at = at.Add(after)
		s.Add(p, at, Sample{Revision: revision, InCanary: revision == 2, VMStarts: starts, Rules: map[string]Count{"r": c}})
	}
	add(0, 1, 5, Count{100, 10})
	add(time.Second, 2, 6, Count{150, 50}) // partly under the revision before
	require.Empty(t, s.Rules())
	add(time.Second/2, 2, 10, Count{160, 51})
	require.Equal(t, Count{10, 1}, s.Rules()[0].Canary)
	require.Empty(t, s.Ended, "its VMs were still to start")
	add(time.Second, 2, 10, Count{160, 51})
	add(time.Second, 2, 10, Count{170, 61})
	require.Equal(t, Count{20, 11}, s.Rules()[0].Canary)
	require.Empty(t, s.Ended)
	add(time.Second, 2, 11, Count{5, 1})
	require.Equal(t, Count{25, 12}, s.Rules()[0].Canary, "its counters began anew")
	require.Equal(t, p, s.Ended)
	require.Equal(t, Count{}, s.Rules()[0].Others)

	add(2*time.Minute, 2, 12, Count{95, 1})
	require.Equal(t, Count{25, 12}, s.Rules()[0].Canary, "it is not known any more")

	others := NewSight()
	for i := range uint64(4) {
		others.Add(Process{Node: "q"}, at.Add(time.Duration(i)*time.Minute), Sample{Revision: 1, VMStarts: i})
	}
	require.Empty(t, others.Ended, "one that is not in the canary")
}
