package account_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/lease/account"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const second = 1_000_000_000

// noted is a grant of so many units by a store that has noted the report.
func noted(units uint32) *quota.Grant { return &quota.Grant{Noted: true, Units: units} }

// open returns a book with the account of a key, of which a request holds 3 units.
func open() (*account.Book, *account.Account) {
	b := account.NewBook()
	b.SetWorker(7)
	d := &quota.Definition{Windows: []limit.Window{{Algorithm: limit.Concurrency, PeriodNs: 10 * second}}}
	acc := b.Open(d, [16]byte{1}, 0)
	acc.Hold(3)
	return b, acc
}

// write has the account reported by a part that asks for so many units, and returns what it says.
func write(acc *account.Account, asksFor uint32, now int64) quota.Report {
	p := quota.Part{Waiting: asksFor}
	acc.Claim()
	acc.BeginReport(&p, now)
	acc.Unclaim()
	return p.Report
}

// due returns how many accounts must be reported.
func due(b *account.Book, now int64) int { return len(b.Due(nil, 100, now)) }

// What changes while a report is under way is reported after it, and by one more report.
func TestAChangeWaitsForTheReportUnderWay(t *testing.T) {
	b, acc := open()
	require.Equal(t, 1, due(b, 0))
	require.Zero(t, due(b, 0), "it is not listed any more")
	first := write(acc, 0, 0)
	require.EqualValues(t, 3, first.Held)
	acc.Settle(3, 5)
	require.False(t, b.HasListed())
	require.True(t, acc.EndReport(first.Number, noted(0), 0))
	require.Equal(t, 1, due(b, 0))
	next := write(acc, 0, 0)
	require.EqualValues(t, 0, next.Held)
	require.EqualValues(t, 5, next.Charged)
	require.True(t, acc.EndReport(next.Number, noted(0), 0))
	require.Zero(t, due(b, 0), "nothing has changed since")
}

// Nothing changes, but the service must hear of what is held within an eighth of the hold, or it ends it.
func TestWhatIsHeldIsReportedAgain(t *testing.T) {
	b, acc := open()
	require.Equal(t, 1, due(b, 0))
	require.True(t, acc.EndReport(write(acc, 0, 0).Number, noted(0), 0))
	b.Sweep(second, 0)
	require.Zero(t, due(b, second))
	b.Sweep(2*second, 0)
	require.Equal(t, 1, due(b, 2*second))
}

// Rules that share a counter have a part each in one ask: the later one counts as held what the earlier asks for.
func TestPartsOfOneAskShareAnAccount(t *testing.T) {
	b, acc := open()
	first := write(acc, 2, 0)
	require.EqualValues(t, 3, first.Held)
	second := write(acc, 2, 0)
	require.EqualValues(t, 5, second.Held)
	require.True(t, acc.EndReport(first.Number, noted(2), 0))
	require.True(t, acc.IsUnderWay(), "the second is")
	require.True(t, acc.EndReport(second.Number, noted(2), 0))
	require.False(t, acc.IsUnderWay())
	require.Zero(t, due(b, 0), "the store has 7 units as held")
}

// A report that was given up grants nothing if its answer comes all the same, and is made again within a second.
func TestAReportThatWasGivenUpGrantsNothing(t *testing.T) {
	b, acc := open()
	require.Equal(t, 1, due(b, 0))
	first := write(acc, 2, 0)
	acc.GiveUp(first.Number)
	require.False(t, b.HasListed())
	b.Sweep(second, 0)
	require.Equal(t, 1, due(b, second))
	again := write(acc, 0, second)
	require.False(t, acc.EndReport(first.Number, noted(2), second))
	require.True(t, acc.IsUnderWay(), "the newest report has no answer yet")
	require.True(t, acc.EndReport(again.Number, noted(0), second))
}

// A report was to be made again, and the ask that had it has ended with the late answer to the first one. So the
// account is listed once more.
func TestALateAnswerHasTheAccountReported(t *testing.T) {
	b, acc := open()
	require.Equal(t, 1, due(b, 0))
	late := write(acc, 0, 0)
	acc.GiveUp(late.Number)
	acc.Enlist()
	require.Equal(t, 1, due(b, 0))
	acc.Claim()
	require.False(t, acc.EndReport(late.Number, noted(0), 0))
	require.Zero(t, due(b, 0))
	acc.Unclaim()
	require.Equal(t, 1, due(b, 0))
}

// A report that may be lost is made again with the next message, by another number.
func TestAReportThatMayBeLostIsMadeAgain(t *testing.T) {
	b, acc := open()
	require.Equal(t, 1, due(b, 0))
	lost := write(acc, 0, 0)
	acc.GiveUp(lost.Number)
	acc.Enlist()
	require.Equal(t, 1, due(b, 0))
	again := write(acc, 0, 0)
	require.Greater(t, again.Number, lost.Number)
	acc.GiveUp(lost.Number)
	require.True(t, acc.IsUnderWay(), "the newest report is not the one that may be lost")
}

// When the stream ends, all that is held is reported again, also what the service has heard.
func TestAnEndOfTheStreamLosesAllReports(t *testing.T) {
	b, acc := open()
	other := b.Open(acc.Definition, [16]byte{2}, 0)
	other.Hold(1)
	require.Equal(t, 2, due(b, 0))
	lost := write(acc, 0, 0)
	require.True(t, other.EndReport(write(other, 0, 0).Number, noted(0), 0))
	require.Zero(t, due(b, 0))
	acc.GiveUp(lost.Number) // as its ask does
	b.ReportAll()
	require.False(t, acc.IsUnderWay())
	require.Equal(t, 2, due(b, 0))
	require.False(t, acc.EndReport(lost.Number, noted(0), 0))
}

// A store that has failed for the key is not told of it for a second.
func TestAFailedStoreIsNotToldForASecond(t *testing.T) {
	b, acc := open()
	require.Equal(t, 1, due(b, 0))
	r := write(acc, 2, 0)
	require.False(t, acc.EndReport(r.Number, &quota.Grant{Failed: true}, 0))
	require.Equal(t, quota.MaxRememberNs, acc.SilentUntilNs)
	require.Zero(t, due(b, second-1))
	b.Sweep(second, 0)
	require.Equal(t, 1, due(b, second))
}

// More accounts than a message has room for stay listed.
func TestWhatHasNoRoomStaysListed(t *testing.T) {
	b, acc := open()
	other := b.Open(acc.Definition, [16]byte{2}, 0)
	other.Hold(1)
	require.Equal(t, []*account.Account{acc}, b.Due(nil, 1, 0))
	require.Equal(t, []*account.Account{other}, b.Due(nil, 1, 0))
	require.False(t, b.HasListed())
}

// An heir reports what it has inherited as the worker that opened it, beside what its own requests hold of the key.
func TestAnHeirReportsBoth(t *testing.T) {
	old, acc := open()
	heir := account.NewBook()
	heir.SetWorker(8)
	heir.Inherit(old, func() uint32 { return 40 })
	require.True(t, old.IsEmpty())
	require.Equal(t, 1, due(heir, 0))
	require.EqualValues(t, 7, write(acc, 0, 0).Worker)
	require.EqualValues(t, 40, acc.Definition.ID)
	own := heir.Open(&quota.Definition{Windows: acc.Definition.Windows}, acc.Key, 0)
	require.NotSame(t, acc, own)
	require.EqualValues(t, 8, write(own, 1, 0).Worker)
}

// An heir inherits while it talks itself: the answer to its own report may give units.
func TestAnHeirsOwnReportStaysUnderWay(t *testing.T) {
	old, inherited := open()
	heir, acc := open()
	own := write(acc, 2, 0)
	heir.Inherit(old, func() uint32 { return 40 })
	require.True(t, acc.IsUnderWay())
	require.True(t, acc.EndReport(own.Number, noted(2), 0))
	require.False(t, inherited.IsUnderWay())
}

// An account that nobody wants any more is forgotten, but not as long as somebody may still change or report it.
func TestAnAccountIsForgottenOnceNobodyHasIt(t *testing.T) {
	for name, use := range map[string]struct{ begin, end func(acc *account.Account) }{
		"nobody":       {func(*account.Account) {}, func(*account.Account) {}},
		"a queued ask": {(*account.Account).Claim, (*account.Account).Unclaim},
		"a request whose hold has lapsed": {
			func(acc *account.Account) { acc.Lapse(0) },
			func(acc *account.Account) { acc.SettleLapsed(0) },
		},
	} {
		b, acc := open()
		acc.Unhold(3)
		require.Zero(t, due(b, 0))
		use.begin(acc)
		require.Zero(t, due(b, 0))
		b.Sweep(100*second, 0)
		require.Equal(t, name == "nobody", b.IsEmpty(), name)
		use.end(acc)
		require.Zero(t, due(b, 0))
		b.Sweep(200*second, 0)
		require.True(t, b.IsEmpty(), name)
	}
}

// An account is on the list once, and until Due has taken it off.
func TestNoListedAccountIsForgotten(t *testing.T) {
	b, acc := open()
	acc.Unhold(3)
	b.Sweep(100*second, 0)
	require.False(t, b.IsEmpty())
	require.Empty(t, b.Due(nil, 0, 100*second))
	require.False(t, b.HasListed())
	b.Sweep(200*second, 0)
	require.True(t, b.IsEmpty())
}

// What a queued ask will report is off the list, and no longer than until that ask has ended.
func TestAQueuedAskReportsItsAccount(t *testing.T) {
	b, acc := open()
	acc.Claim()
	require.Zero(t, due(b, 0))
	acc.Hold(1)
	require.False(t, b.HasListed())
	acc.Unclaim()
	require.Equal(t, 1, due(b, 0))
	require.False(t, b.HasListed())
}
