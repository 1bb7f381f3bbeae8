package decide

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

const (
	one     = `{"name":"r","limits":["100/1h"]}`
	counts  = `{"name":"r","limits":["100/1h"],"count_denied":true}`
	blocks  = `{"name":"r","limits":["100/1h"],"block":"1h"}`
	cluster = `{"name":"r","limits":["100/1h"],"block":"1h","scope":"cluster","on_unavailable":"local"}`
)

// deniedHits are what a rule keeps of a hit that it denies, if other workers write in between and calls into the
// proxy fail.
var deniedHits = map[string]struct {
	rule   string
	purse  purse
	from   From
	kept   int
	passNs int64
	known  bool
	counts Metrics // beside those of any denial
}{
	"nothing is kept":           {one, purse{}, Nowhere, 0, limit.Never, true, Metrics{}},
	"its cost is counted":       {counts, purse{}, Nowhere, 1, limit.Never, true, Metrics{}},
	"it begins a block":         {blocks, purse{}, Nowhere, 1, limit.Never, true, Metrics{}},
	"only held units are short": {counts, purse{heldBack: true}, Nowhere, 0, 0, true, Metrics{}},
	"another worker was faster": {
		blocks, purse{keeps: []Outcome{Raced}, finds: []Outcome{Denied}}, Nowhere,
		1, limit.Never, true, Metrics{CASRetries: 1},
	},
	"another worker has begun the block": {
		blocks, purse{keeps: []Outcome{Raced}, finds: []Outcome{Blocked}}, Nowhere,
		0, 2, true, Metrics{CASRetries: 1},
	},
	"another worker has made room: no block": {
		blocks, purse{keeps: []Outcome{Raced}, finds: []Outcome{HasRoom}}, Nowhere,
		0, limit.Never, true, Metrics{CASRetries: 1},
	},
	"another worker has made room: it counts": {
		counts, purse{keeps: []Outcome{Raced}, finds: []Outcome{HasRoom}}, Nowhere,
		1, limit.Never, true, Metrics{CASRetries: 1},
	},
	"others are faster each time": {
		counts, purse{keeps: slices.Repeat([]Outcome{Raced}, state.MaxRetries)}, Nowhere,
		0, limit.Never, false, Metrics{CASRetries: state.MaxRetries, Contention: 1},
	},
	"the key cannot be read again": {
		counts, purse{keeps: []Outcome{Raced}, finds: []Outcome{Failed}}, Nowhere,
		0, 2, false, Metrics{Errors: 1},
	},
	"the page is full": {
		counts, purse{keeps: []Outcome{Full}}, Nowhere,
		0, limit.Never, true, Metrics{Full: 1},
	},
	"it cannot be written": {
		counts, purse{keeps: []Outcome{Failed}}, Nowhere,
		0, limit.Never, false, Metrics{Errors: 1},
	},
	"the quota service keeps it": {cluster, purse{}, Nowhere, 0, limit.Never, true, Metrics{}},
	"the service is silent":      {cluster, purse{}, OwnShare, 1, limit.Never, true, Metrics{}},
}

func TestDeniedHitsThatAreKept(t *testing.T) {
	for name, tc := range deniedHits {
		t.Run(name, func(t *testing.T) {
			v := begin(t, tc.rule, &tc.purse)
			s := v.Subjects[0]
			s.Quota.From, s.PassNs = tc.from, 0
			v.Decide(1)
			require.False(t, v.Allowed)
			require.Equal(t, tc.kept, tc.purse.kept)
			require.Equal(t, tc.passNs, s.PassNs)
			require.Equal(t, tc.known, s.Known)
			require.Equal(t, tc.known && tc.kept == 0, tc.purse.persisted == 1, "what is not kept has moved to the present")
			m := &s.Rule.Metrics
			got := Metrics{CASRetries: m.CASRetries, Contention: m.Contention, Errors: m.Errors, Full: m.Full}
			require.Equal(t, tc.counts, got)
		})
	}
}

// A hit that costs nothing is not kept, also if a limit of 0 denies it.
func TestADeniedHitThatCostsNothingIsNotKept(t *testing.T) {
	p := &purse{}
	v := begin(t, counts, p)
	s := v.Subjects[0]
	s.Cost = 0
	s.Outcome, s.lastFound = Denied, Denied
	s.storeUntaken(1)
	require.Zero(t, p.kept)
}
