package decide

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

const hour = int64(3600_000_000_000)

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
	s.Outcome, s.found = Denied, Denied
	s.storeUntaken(1)
	require.Zero(t, p.kept)
}

// Which limit is the tightest, and what is told of it, beside what is held.
func TestHowASubjectStands(t *testing.T) {
	const limits = `{"name":"r","limits":["100/1h","9/1m"],"settle":{},"block":"1h"}`
	p := &purse{left: 9, held: 2}
	v := begin(t, limits, p)
	s := v.Subjects[0]
	v.Decide(1)
	s.Record.Now = hour
	order := s.Rule.Finder.Order
	p.usages = make([]limit.Usage, len(s.Limits.Windows))
	p.usages[order[0]] = limit.Usage{Used: 95, EndNs: 2 * hour}
	p.usages[order[1]] = limit.Usage{Used: 3, EndNs: hour + 60_000_000_000}
	for i := range s.Limits.Windows {
		if s.Limits.Windows[i].Algorithm == limit.Block {
			p.usages[i].EndNs = hour + 7
		}
	}
	require.Equal(t, []uint32{3, 4}, []uint32{s.Remaining(0), s.Remaining(1)}, "2 are held")
	require.Zero(t, s.Tightest())
	used, left, resetNs := s.Standing(0, hour)
	require.Equal(t, []any{uint32(95), uint32(3), hour}, []any{used, left, resetNs})
	require.EqualValues(t, 7, s.BlockedNs(hour))
	require.Zero(t, s.BlockedNs(hour+8))
	p.usages[order[1]].Used = 8
	require.Equal(t, 1, s.Tightest())
	require.Zero(t, s.Remaining(1), "more is held than is left")
	s.Known = false
	require.Zero(t, s.BlockedNs(hour))
}

// How a key of scope cluster stands is the service's word, unless this proxy decides by its share.
func TestStandingIsTheServicesWord(t *testing.T) {
	rule := `{"name":"r","limits":["100/1h"],"scope":"cluster","on_unavailable":"local"}`
	for _, cluster := range []bool{true, false} {
		for _, from := range []From{Nowhere, OwnGrant, LeaseTable, OwnShare} {
			p := &purse{left: 9, usages: []limit.Usage{{Used: 5, EndNs: 2 * hour}}}
			text := rule
			if !cluster {
				text = strings.NewReplacer(`,"scope":"cluster","on_unavailable":"local"`, ``).Replace(rule)
			}
			s := begin(t, text, p).Subjects[0]
			s.Record.Now = hour
			s.Quota.From, s.Quota.NowNs = from, 10
			s.Quota.Standings = []state.LeaseStanding{{Used: 40, ResetNs: 17}}
			used, left, resetNs := s.Standing(0, hour)
			want := []any{uint32(5), uint32(95), hour}
			if cluster && from != OwnShare {
				want = []any{uint32(40), uint32(60), int64(7)}
			}
			require.Equal(t, want, []any{used, left, resetNs}, "%v %v", cluster, from)
		}
	}
}

// A grant decides if it denies, or if it has the units and their time is not over.
func TestWhetherAGrantDecides(t *testing.T) {
	for _, tc := range []struct {
		grant   Grant
		decides bool
		denial  Outcome
	}{
		{Grant{}, false, Denied},
		{Grant{Units: 2, EndNs: 9}, false, Denied},
		{Grant{Received: true, Units: 2, EndNs: 9}, true, Denied},
		{Grant{Received: true, Units: 1, EndNs: 9}, false, Denied},
		{Grant{Received: true, Units: 2, EndNs: 8}, false, Denied},
		{Grant{Received: true, Denied: true}, true, Denied},
		{Grant{Received: true, Denied: true, HeldBack: true}, true, HeldBack},
		{Grant{Received: true, Denied: true, HeldBack: true, Blocked: true}, true, Blocked},
	} {
		require.Equal(t, tc.decides, tc.grant.Decides(2, 8), "%+v", tc.grant)
		require.Equal(t, tc.denial, tc.grant.Denial(), "%+v", tc.grant)
	}
}
