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

// write has the account reported by a part that asks for so many units.
func write(acc *account.Account, asksFor uint32, now int64) (account.Reporter, quota.Report) {
	r, p := acc.Reporter(), quota.Part{Waiting: asksFor}
	r.Write(&p, now)
	return r, p.Report
}

// due returns how many accounts must be reported.
func due(b *account.Book, now int64) int { return len(b.Due(nil, 100, now)) }

// What changes while a report is under way is reported after it, and by one more report.
func TestAChangeWaitsForTheReportUnderWay(t *testing.T) {
	b, acc := open()
	require.Equal(t, 1, due(b, 0))
	require.Zero(t, due(b, 0), "it is not listed any more")
	first, report := write(acc, 0, 0)
	require.EqualValues(t, 3, report.Held)
	acc.Settle(3, 5)
	require.False(t, b.HasListed())
	require.True(t, first.End(noted(0), 0))
	require.Equal(t, 1, due(b, 0))
	next, report := write(acc, 0, 0)
	require.EqualValues(t, 0, report.Held)
	require.EqualValues(t, 5, report.Charged)
	require.True(t, next.End(noted(0), 0))
	require.Zero(t, due(b, 0), "nothing has changed since")
}

// Nothing changes, but the service must hear of what is held within an eighth of the hold, or it ends it.
func TestWhatIsHeldIsReportedAgain(t *testing.T) {
	b, acc := open()
	require.Equal(t, 1, due(b, 0))
	r, _ := write(acc, 0, 0)
	require.True(t, r.End(noted(0), 0))
	b.Sweep(second, 0)
	require.Zero(t, due(b, second))
	b.Sweep(2*second, 0)
	require.Equal(t, 1, due(b, 2*second))
}

// Rules that share a counter have a part each in one ask: the later one counts as held what the earlier asks for.
func TestPartsOfOneAskShareAnAccount(t *testing.T) {
	b, acc := open()
	first, report := write(acc, 2, 0)
	require.EqualValues(t, 3, report.Held)
	second, report := write(acc, 2, 0)
	require.EqualValues(t, 5, report.Held)
	require.True(t, first.End(noted(2), 0))
	require.True(t, first.MustWait(), "the second is under way")
	require.True(t, second.End(noted(2), 0))
	require.False(t, first.MustWait())
	require.Zero(t, due(b, 0), "the store has 7 units as held")
}

// A report that was given up grants nothing if its answer comes all the same, and is made again within a second.
func TestAReportThatWasGivenUpGrantsNothing(t *testing.T) {
	b, acc := open()
	require.Equal(t, 1, due(b, 0))
	first, _ := write(acc, 2, 0)
	first.GiveUp()
	require.False(t, b.HasListed())
	b.Sweep(second, 0)
	require.Equal(t, 1, due(b, second))
	again, _ := write(acc, 0, second)
	require.False(t, first.End(noted(2), second))
	require.True(t, again.MustWait(), "the newest report has no answer yet")
	require.True(t, again.End(noted(0), second))
}

// A report was to be made again, and the ask that had it has ended with the late answer to the first one. So the
// account is listed once more.
func TestALateAnswerHasTheAccountReported(t *testing.T) {
	b, acc := open()
	require.Equal(t, 1, due(b, 0))
	late, _ := write(acc, 0, 0)
	late.Repeat()
	require.Equal(t, 1, due(b, 0))
	require.False(t, late.End(noted(0), 0))
	require.Equal(t, 1, due(b, 0))
}

// A report that may be lost is made again with the next message, by another number.
func TestAReportThatMayBeLostIsMadeAgain(t *testing.T) {
	b, acc := open()
	require.Equal(t, 1, due(b, 0))
	lost, first := write(acc, 0, 0)
	lost.Repeat()
	require.Equal(t, 1, due(b, 0))
	again, second := write(acc, 0, 0)
	require.Greater(t, second.Number, first.Number)
	lost.Repeat()
	require.True(t, again.MustWait(), "the newest report is not the one that may be lost")
}

// When the stream ends, no report is under way any more, and all of them are made again.
func TestAnEndOfTheStreamLosesAllReports(t *testing.T) {
	b, acc := open()
	require.Equal(t, 1, due(b, 0))
	lost, _ := write(acc, 0, 0)
	b.ReportAll()
	require.False(t, lost.MustWait())
	require.Equal(t, 1, due(b, 0))
	require.False(t, lost.End(noted(0), 0))
}

// A store that has failed for the key is not told of it for a second.
func TestAFailedStoreIsNotToldForASecond(t *testing.T) {
	b, acc := open()
	require.Equal(t, 1, due(b, 0))
	r, _ := write(acc, 2, 0)
	require.False(t, r.End(&quota.Grant{Failed: true}, 0))
	require.EqualValues(t, account.MaxRememberNs, acc.SilentUntilNs)
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
	ofOld, report := write(acc, 0, 0)
	require.EqualValues(t, 7, report.Worker)
	require.EqualValues(t, 40, acc.Definition.ID)
	own := heir.Open(&quota.Definition{Windows: acc.Definition.Windows}, acc.Key, 0)
	require.NotSame(t, acc, own)
	ofHeir, report := write(own, 1, 0)
	require.EqualValues(t, 8, report.Worker)
	for r, reported := range map[*account.Reporter]*account.Account{&ofOld: acc, &ofHeir: own} {
		r.Write(&quota.Part{}, 0)
		require.Same(t, reported, r.Account())
	}
}

// An heir inherits while it talks itself: the answer to its own report may give units.
func TestAnHeirsOwnReportStaysUnderWay(t *testing.T) {
	old, inherited := open()
	heir, acc := open()
	own, _ := write(acc, 2, 0)
	heir.Inherit(old, func() uint32 { return 40 })
	require.True(t, own.MustWait())
	require.True(t, own.End(noted(2), 0))
	r := inherited.Reporter()
	require.False(t, r.MustWait())
}

// An account that nobody wants any more is forgotten, and comes back if a hold ends that it knew.
func TestAnIdleAccountIsForgotten(t *testing.T) {
	b, acc := open()
	acc.Unhold(3)
	b.Sweep(100*second, 0)
	require.True(t, b.IsEmpty())
	r := acc.Reporter()
	r.Write(&quota.Part{}, 0)
	require.Same(t, acc, r.Account())
	require.False(t, b.IsEmpty())
}

// An account was forgotten while its ask was queued, and a request has opened another one: the ask reports that.
func TestAReporterReportsTheNextAccount(t *testing.T) {
	b, forgotten := open()
	r := forgotten.Reporter()
	forgotten.Unhold(3)
	b.Sweep(100*second, 0)
	next := b.Open(forgotten.Definition, forgotten.Key, 100*second)
	require.NotSame(t, forgotten, next)
	r.Write(&quota.Part{}, 100*second)
	require.Same(t, next, r.Account())
	require.True(t, r.MustWait())
	require.True(t, r.End(noted(0), 100*second))
	require.False(t, r.MustWait(), "the next account's report has ended")
}

// A part that has no account reports nothing, and its grant may give units.
func TestAReporterWithoutAnAccount(t *testing.T) {
	var r account.Reporter
	var p quota.Part
	r.Write(&p, 0)
	r.GiveUp()
	r.Repeat()
	require.Zero(t, p)
	require.False(t, r.MustWait())
	require.True(t, r.End(&quota.Grant{Starting: true}, 0))
	require.False(t, r.End(&quota.Grant{Failed: true}, 0))
}

// What a queued ask will report is off the list, and no longer than until that ask has ended.
func TestAQueuedAskReportsItsAccount(t *testing.T) {
	b, acc := open()
	r := acc.Reporter() // of the ask
	r.Claim()
	require.Zero(t, due(b, 0))
	require.False(t, b.HasListed())
	r.Repeat()
	r.Claim()
	acc.Hold(1)
	require.Equal(t, 1, due(b, 0), "it has changed since")
	require.False(t, b.HasListed())
}
