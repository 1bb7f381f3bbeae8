package balance

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// yearly is the longest period: within that, a window pays one limit, and a bucket gains one.
const yearly = limit.MaxPeriodNs

// TestAChargeIsTwoLimitsAtLeast: however little a window pays or gains within the longest period.
func TestAChargeIsTwoLimitsAtLeast(t *testing.T) {
	pays := fixed(10, yearly)
	pays.Pays = 10
	v := at(base, 0, pays, bucket(1, yearly, 100), bucket(500, yearly, 100))
	for i := range v.Windows {
		v.window(i).charge(1000)
	}
	require.Equal(t, []uint32{1000, 200, 500}, used(v), "an open window counts all, until it has ended")
	v.record.Roll(v.FirstEndNs())
	require.EqualValues(t, 20-10, v.record.Usages[0].Used)
}

// TestASilentWorkerIsChargedInALog: of a Record that was read from bytes, whose log has no limit.
func TestASilentWorkerIsChargedInALog(t *testing.T) {
	v := at(base, 2, logOf(10, minute))
	v.record.Windows = []limit.Window{{Algorithm: limit.SlidingWindowLog, PeriodNs: minute}}
	v.record.Holders = Holders{{Worker: 1, Held: 5, NotedNs: base, HoldNs: holdNs}}
	v.record.Roll(base + holdNs)
	require.Equal(t, []uint32{7}, used(v))
	require.Len(t, v.record.Usages[0].Log, 7)
}

// TestAClaimCountsALimitAtMost: a bucket that lacks two bursts takes no more of it.
func TestAClaimCountsALimitAtMost(t *testing.T) {
	v := at(base, 40, fixed(50, minute), bucket(10, second, 100), unlimited(minute))
	for _, c := range []struct {
		units uint32
		used  []uint32
	}{
		{5, []uint32{45, 45, 45}},
		{1000, []uint32{95, 145, 1045}},
		{1000, []uint32{145, 200, 2045}},
		{1, []uint32{146, 200, 2046}},
	} {
		v.AddClaimed(c.units)
		require.Equal(t, c.used, used(v))
	}
	v.AddClaimedIn(0, 7)
	require.Equal(t, []uint32{153, 200, 2046}, used(v))
}

// TestAKeyStaysForAsLongAsWhatIsHeldMayCount: it is charged once its hold ends, and counts from then on.
func TestAKeyStaysForAsLongAsWhatIsHeldMayCount(t *testing.T) {
	const hour = 60 * minute
	pays := fixed(100, hour)
	pays.Pays = 100
	for _, c := range []struct {
		window limit.Window
		held   uint32
		until  int64
	}{
		{limit.NewBlock(minute, false), 9, holdNs},
		{fixed(100, hour), 250, hour},
		{pays, 100, hour},
		{pays, 250, 3 * hour},
		{pays, saturated, yearly},
		{counter(100, minute), 250, 2 * minute},
		{logOf(100, minute), 250, holdNs + minute},
		{bucket(10, second, 100), 100, holdNs + 10*second},
		{bucket(10, second, 100), 250, holdNs + 25*second},
		{bucket(10, second, 100), saturated, holdNs + yearly},
	} {
		v := at(base, 0, c.window)
		v.record.Holders = Holders{{Worker: 1, Held: c.held, NotedNs: base, HoldNs: holdNs}}
		require.Equal(t, c.until, v.record.ExpiryNs()-base, "%+v", c)
	}
}

// TestNoLogForgetsWhatWasAdmitted: a policy remembers 10 units, and 7 or 4 are used. By another policy of the same
// rule, which remembers 5, the log counts what was admitted all the same, beside them.
func TestNoLogForgetsWhatWasAdmitted(t *testing.T) {
	for name, admit := range map[string]func(v *View){
		"a proxy says so": func(v *View) { v.AddUncharged(5) },
		"held units cost": func(v *View) { v.window(0).charge(5) },
	} {
		for _, before := range []uint32{7, 4} {
			r := at(base, before, logOf(10, minute)).record
			admit(viewOf(t, r, logOf(5, minute)))
			more := viewOf(t, r, logOf(10, minute))
			require.Equal(t, []uint32{before + 5}, used(more), name)
			require.Equal(t, 10-min(before+5, 10), more.Left(base), name)
		}
	}
}

// viewOf is the record as a definition of these windows sees it.
func viewOf(t *testing.T, r *Record, windows ...limit.Window) *View {
	v, err := r.ArrangeFor(KeyWindows{Defined: windows, Shifted: windows}, nil, 0)
	require.NoError(t, err)
	return &v
}
