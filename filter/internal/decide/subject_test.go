package decide

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

const hour = int64(3600_000_000_000)

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
	st, known := s.Standing()
	require.True(t, known)
	require.Equal(t, []uint32{3, 4}, []uint32{st.Remaining(0), st.Remaining(1)}, "2 are held")
	require.Zero(t, st.Tightest())
	used, left, resetNs := st.Usage(0, hour)
	require.Equal(t, []any{uint32(95), uint32(3), hour}, []any{used, left, resetNs})
	require.EqualValues(t, 7, s.BlockedNs(hour))
	require.Zero(t, s.BlockedNs(hour+8))
	p.usages[order[1]].Used = 8
	require.Equal(t, 1, st.Tightest())
	require.Zero(t, st.Remaining(1), "more is held than is left")
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
			st := Standing{s}
			used, left, resetNs := st.Usage(0, hour)
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
