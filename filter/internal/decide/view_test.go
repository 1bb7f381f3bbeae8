package decide

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/cluster"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
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
	p.usages = make([]limit.Usage, len(s.CountedKey.Windows))
	p.usages[order[0]] = limit.Usage{Used: 95, EndNs: 2 * hour}
	p.usages[order[1]] = limit.Usage{Used: 3, EndNs: hour + 60_000_000_000}
	for i := range s.CountedKey.Windows {
		if s.CountedKey.Windows[i].Algorithm == limit.Block {
			p.usages[i].EndNs = hour + 7
		}
	}
	view, known := s.View()
	require.True(t, known)
	require.Equal(t, []uint32{3, 4}, []uint32{view.Remaining(0), view.Remaining(1)}, "2 are held")
	require.Zero(t, view.Tightest())
	used, left, resetNs := view.Told(0, hour)
	require.Equal(t, []any{uint32(95), uint32(3), hour}, []any{used, left, resetNs})
	require.EqualValues(t, 7, s.BlockedNs(hour))
	require.Zero(t, s.BlockedNs(hour+8))
	p.usages[order[1]].Used = 8
	require.Equal(t, 1, view.Tightest())
	require.Zero(t, view.Remaining(1), "more is held than is left")
	s.finding.Known = false
	require.Zero(t, s.BlockedNs(hour))
	_, known = s.View()
	require.False(t, known)
}

// How a key of scope cluster stands is the service's word, unless this proxy decides by its share.
func TestWhatIsToldIsTheServicesWord(t *testing.T) {
	rule := `{"name":"r","limits":["100/1h"],"scope":"cluster","on_unavailable":"local"}`
	for _, ofCluster := range []bool{true, false} {
		for _, from := range []cluster.From{cluster.Nowhere, cluster.Allotted, cluster.LeaseTable, cluster.OwnShare} {
			p := &purse{left: 9, usages: []limit.Usage{{Used: 5, EndNs: 2 * hour}}}
			text := rule
			if !ofCluster {
				text = strings.NewReplacer(`,"scope":"cluster","on_unavailable":"local"`, ``).Replace(rule)
			}
			s := begin(t, text, p).Subjects[0]
			s.Record.Now = hour
			s.Cluster.From, s.Cluster.MonotonicNs = from, 10
			s.Cluster.Standings = []leased.Standing{{Used: 40, ResetNs: 17}}
			s.finding.Known = true
			view, _ := s.View()
			used, left, resetNs := view.Told(0, hour)
			want := []any{uint32(5), uint32(95), hour}
			if ofCluster && from != cluster.OwnShare {
				want = []any{uint32(40), uint32(60), int64(7)}
			}
			require.Equal(t, want, []any{used, left, resetNs}, "%v %v", ofCluster, from)
		}
	}
}
