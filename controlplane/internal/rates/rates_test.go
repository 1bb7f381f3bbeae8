package rates

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	counted "github.com/sluice-ratelimit/sluice/shared/result"
)

// countedBy is what a proxy answers: allowed, denied and shadow denials of the rule r.
func countedBy(proxy string, counts ...uint64) manage.Row {
	return manage.Row{Asked: manage.Asked{Proxy: proxy}, Result: counted.Result{Stats: []counted.Stats{{
		Rule: "r", Metrics: map[string]uint64{"allowed": counts[0], "denied": counts[1], "shadow_denied": counts[2]},
	}}}}
}

func TestRatesOverTime(t *testing.T) {
	start := time.Unix(1000, 0)
	now := start
	var h history
	failed := manage.Row{Asked: manage.Asked{Proxy: "b", Error: "gone"}}
	grown, b := countedBy("a", 130, 15, 2), countedBy("b", 1000, 0, 0)
	for i, step := range []struct {
		after time.Duration
		rows  []manage.Row
		total Counts
		rates []Counts
	}{
		{0, []manage.Row{countedBy("a", 100, 10, 1)}, Counts{100, 10, 1}, []Counts{}},
		// A proxy that has not been asked before counts from now on.
		{5 * time.Second, []manage.Row{countedBy("a", 110, 15, 2), b}, Counts{1110, 15, 2}, []Counts{{2, 1, 0.2}}},
		// The newest point grows for ten seconds, and then there is another.
		{5 * time.Second, []manage.Row{grown, countedBy("b", 1010, 0, 0)}, Counts{1140, 15, 2}, []Counts{{4, 0.5, 0.1}}},
		{
			5 * time.Second, []manage.Row{grown, countedBy("b", 1015, 0, 0)},
			Counts{1145, 15, 2}, []Counts{{4, 0.5, 0.1}, {1, 0, 0}},
		},
		// That nobody answers says nothing.
		{5 * time.Second, []manage.Row{failed}, Counts{1145, 15, 2}, []Counts{{4, 0.5, 0.1}, {1, 0, 0}}},
		// One that counts anew has begun at 0, and one that is silent adds nothing.
		{
			5 * time.Second, []manage.Row{countedBy("a", 30, 0, 0), failed},
			Counts{30, 0, 0}, []Counts{{4, 0.5, 0.1}, {35.0 / 15, 0, 0}},
		},
	} {
		now = now.Add(step.after)
		age, _ := h.ages(now)
		require.Equal(t, i > 0, age == step.after, i)
		h.add(now, step.rows)
		age, _ = h.ages(now)
		require.Zero(t, age)
		list := h.list()
		require.Len(t, list.Rules, 1)
		require.Equal(t, step.total, list.Rules[0].Total, i)
		require.Equal(t, step.rates, append([]Counts{}, list.Rules[0].Rates...), i)
		require.Len(t, list.Times, len(step.rates), i)
	}
	list := h.list()
	require.Equal(t, []manage.Asked{failed.Asked}, list.Failed)
	require.Equal(t, []time.Time{start.Add(10 * time.Second), start.Add(25 * time.Second)}, list.Times)
}

// Two processes of one node id count apart.
func TestRatesOfOneNodeID(t *testing.T) {
	now := time.Unix(1000, 0)
	var h history
	one, two := countedBy("a", 1000, 0, 0), countedBy("a", 10, 0, 0)
	one.URL = "http://10.0.0.1:9902/.sluice/"
	two.URL = "http://10.0.0.2:9902/.sluice/"
	for range 2 {
		h.add(now, []manage.Row{one, two})
		now = now.Add(pointEvery)
	}
	list := h.list()
	require.Equal(t, Counts{1010, 0, 0}, list.Rules[0].Total)
	require.Equal(t, []Counts{{}}, list.Rules[0].Rates, "neither has decided anything meanwhile")
}

// What is kept is bounded, however long serve runs and however many rules and keys there are.
func TestRatesAreBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	var h history
	for range 2 * maxPoints {
		h.add(now, []manage.Row{countedBy("a", 5, 0, 0)})
		now = now.Add(pointEvery)
	}
	list := h.list()
	require.Len(t, list.Rules[0].Rates, maxPoints)
	require.Len(t, list.Times, maxPoints)

	keys := make([]counted.DeniedKey, 2*maxKeys)
	h.addKeys(now, []counted.Denials{{Rule: "r", Keys: keys}, {Rule: "unknown", Keys: keys}})
	list = h.list()
	require.Len(t, list.Rules, 1)
	require.Len(t, list.Rules[0].Keys, maxKeys)

	many := countedBy("a", 1, 0, 0)
	for i := range maxRated + 6 {
		many.Stats = append(many.Stats, counted.Stats{Rule: fmt.Sprint("r", i)})
	}
	h.add(now, []manage.Row{many})
	list = h.list()
	require.Len(t, list.Rules, maxRated)
	require.Equal(t, 7, list.More)
	require.Len(t, list.Rules[maxRated-1].Rates, maxPoints, "a new rule has decided nothing before")
	h.add(now, []manage.Row{{Asked: manage.Asked{Proxy: "a"}}})
	require.Empty(t, h.list().Rules, "rules that no proxy has any more")
}

// ofEachKind are rules whose limits are read in each way there is.
const ofEachKind = `version: 1
domain: shop
rules:
  - name: bucket
    algorithm: token_bucket
    limits: [{requests: 120, per: 1m, burst: 100}]
  - {name: slots, algorithm: concurrency, limits: [{requests: 5}], hold: 30s}
  - name: said
    key: [{header: x}]
    missing_key: skip
    limits: [{requests: {header: x-limit, default: 2, max: 9, trusted: true}, per: 1h}]
  - {name: dear, cost: 4, limits: [8/1s]}
  - {name: varying, cost: {header: x-cost, default: 1, max: 9}, limits: [8/1s]}
`

func TestLimitsInWords(t *testing.T) {
	p, _, _, err := policyfile.Read("p.yaml", []byte(ofEachKind))
	require.NoError(t, err)
	of := limitsOf(p)
	for rule, want := range map[string]Limit{
		"bucket": {"120 per 1m, burst 100", 2}, "slots": {"5 at once", 0},
		"dear": {"8 per 1s", 2}, "varying": {"8 per 1s", 0},
		"said": {"2 (default of header:x-limit) per 1h, up to 9", 9.0 / 3600},
	} {
		require.Equal(t, want, of[rule].limits[0], rule)
	}
	require.Equal(t, "proxy", of["slots"].each)
}
