package decide

import (
	"crypto/rand"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/cluster"
	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

const (
	one       = `{"name":"r","limits":["100/1h"]}`
	counts    = `{"name":"r","limits":["100/1h"],"count_denied":true}`
	blocks    = `{"name":"r","limits":["100/1h"],"block":"1h"}`
	ofCluster = `{"name":"r","limits":["100/1h"],"block":"1h","scope":"cluster","on_unavailable":"local"}`
)

const nowhere = cluster.Nowhere

// deniedHits are what a rule keeps of a hit that it denies, if other workers write in between and calls into the
// proxy fail.
var deniedHits = map[string]struct {
	rule   string
	purse  purse
	from   cluster.From
	kept   []Keep
	passNs int64
	known  bool
	counts metrics.Counts // beside those of any denial
}{
	"nothing is kept":           {one, purse{}, nowhere, nil, limit.Never, true, metrics.Counts{}},
	"its cost is counted":       {counts, purse{}, nowhere, []Keep{{Units: 2}}, limit.Never, true, metrics.Counts{}},
	"it begins a block":         {blocks, purse{}, nowhere, []Keep{{Block: true}}, limit.Never, true, metrics.Counts{}},
	"only held units are short": {counts, purse{heldBack: true}, nowhere, nil, 0, true, metrics.Counts{}},
	"another worker was faster": {
		blocks, purse{keeps: []state.Status{state.Mismatch}, finds: []Found{Denied}}, nowhere,
		[]Keep{{Block: true}}, limit.Never, true, metrics.Counts{CASRetries: 1},
	},
	"another worker has begun the block": {
		blocks, purse{keeps: []state.Status{state.Mismatch}, finds: []Found{Blocked}}, nowhere,
		nil, 2, true, metrics.Counts{CASRetries: 1},
	},
	"another worker has made room: no block": {
		blocks, purse{keeps: []state.Status{state.Mismatch}, finds: []Found{HasRoom}}, nowhere,
		nil, limit.Never, true, metrics.Counts{CASRetries: 1},
	},
	"another worker has made room: it counts": {
		counts, purse{keeps: []state.Status{state.Mismatch}, finds: []Found{HasRoom}}, nowhere,
		[]Keep{{Units: 2}}, limit.Never, true, metrics.Counts{CASRetries: 1},
	},
	"others are faster each time": {
		counts, purse{keeps: slices.Repeat([]state.Status{state.Mismatch}, state.MaxRetries)}, nowhere,
		nil, limit.Never, false, metrics.Counts{CASRetries: state.MaxRetries, Contention: 1},
	},
	"the key cannot be read again": {
		counts, purse{keeps: []state.Status{state.Mismatch}, finds: []Found{Failed}}, nowhere,
		nil, limit.Never, false, metrics.Counts{Errors: 1},
	},
	"the page is full": {
		counts, purse{keeps: []state.Status{state.Full}}, nowhere,
		nil, limit.Never, true, metrics.Counts{Full: 1},
	},
	"it cannot be written": {
		counts, purse{keeps: []state.Status{state.Failed}}, nowhere,
		nil, limit.Never, false, metrics.Counts{Errors: 1},
	},
	"the quota service keeps it": {ofCluster, purse{}, nowhere, nil, limit.Never, true, metrics.Counts{}},
	"the service is silent": {
		ofCluster, purse{}, cluster.OwnShare, []Keep{{Block: true}}, limit.Never, true, metrics.Counts{},
	},
}

func TestDeniedHitsThatAreKept(t *testing.T) {
	for name, tc := range deniedHits {
		t.Run(name, func(t *testing.T) {
			v := begin(t, tc.rule, &tc.purse)
			s := v.Subjects[0]
			s.Cluster.From = tc.from
			v.Decide(1)
			require.False(t, v.Allowed)
			require.Equal(t, tc.kept, tc.purse.kept)
			require.Equal(t, tc.passNs, s.finding.PassNs)
			require.Equal(t, tc.known, s.finding.Known)
			movesOn := tc.known && tc.kept == nil
			require.Equal(t, movesOn, tc.purse.persisted == 1, "what is not kept has moved to the present")
			m := &s.Rule.Metrics
			got := metrics.Counts{CASRetries: m.CASRetries, Contention: m.Contention, Errors: m.Errors, Full: m.Full}
			require.Equal(t, tc.counts, got)
		})
	}
}

// A block is prolonged if it is the key's own. The block of its page's floor is not: other keys share that.
func TestWhoseBlockIsProlonged(t *testing.T) {
	const prolongs = `{"name":"r","limits":["100/1h"],"block":{"for":"1h","prolong":true}}`
	counted := strings.Replace(prolongs, `"limits"`, `"count_denied":true,"limits"`, 1)
	for name, tc := range map[string]struct {
		rule      string
		hasRecord bool
		kept      []Keep
	}{
		"the key's":              {prolongs, true, []Keep{{Block: true}}},
		"the floor's":            {prolongs, false, nil},
		"the key gets a record":  {counted, false, []Keep{{Units: 2}}},
		"it has got its record":  {counted, true, []Keep{{Units: 2, Block: true}}},
		"the rule prolongs none": {blocks, true, nil},
	} {
		p := &purse{}
		s := begin(t, tc.rule, p).Subjects[0]
		random := func(b []byte) { _, _ = rand.Read(b) }
		tables := state.NewTables(hosttest.New(), random, 1, 1)
		table := tables.Table(state.Definition{Windows: s.Rule.Finder.Windows, Capacity: 9})
		require.Equal(t, state.OK, table.Read(&s.Record, s.CountedKey, 1))
		if tc.hasRecord {
			require.Equal(t, state.OK, table.Commit(&s.Record, 1, true))
			require.Equal(t, state.OK, table.Read(&s.Record, s.CountedKey, 1))
		}
		require.Equal(t, tc.hasRecord, s.Record.HasRecord(), name)
		s.finding.Found = Blocked
		s.storeUntaken(1)
		require.Equal(t, tc.kept, p.kept, name)
	}
}

// A hit that costs nothing is not kept, also if a limit of 0 denies it.
func TestADeniedHitThatCostsNothingIsNotKept(t *testing.T) {
	for _, rule := range []string{counts, blocks} {
		p := &purse{}
		s := begin(t, rule, p).Subjects[0]
		s.Cost = 0
		s.finding.Found = Denied
		s.storeUntaken(1)
		require.Empty(t, p.kept)
	}
}
