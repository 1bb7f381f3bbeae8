package decide

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/state/leased"
)

// Source is where the units of one rule come from. It remembers nothing of a request. What it finds out it returns, and
// what it has read or taken it leaves in the subject, where its next call reads it:
//
//	method         reads in the subject               writes: scope proxy  writes: scope cluster
//	Check          the key and its limits, Cost,      Record               Cluster, CountedKey.Windows
//	               Units, Cluster
//	Recheck        that, and what Check has written   Record               Cluster, CountedKey.Windows
//	Take           Cost, and what Check has written   Record, Hold         Cluster, Hold
//	Refund         Cost, and what Take has written    Record               Cluster
//	KeepDenied     Units, and what Check has written  Record               -
//	Persist        what Check has written             -                    -
//	Usage, Held    what the last call has written     -                    -
//	Look, Operate  the key and its limits             Record               Cluster, CountedKey.Windows
//
// A Source of scope cluster begins each check by BeginQuotaCheck, which also sets what is read of Record. Where
// OwnShare decides, it writes what one of scope proxy does as well.
type Source interface {
	Decider
	Keys
}

// Decider is how a Source decides.
type Decider interface {
	// Check finds out how the subject's key stands at now, and whether its Units are free.
	Check(s *Subject, now int64) Finding
	// Recheck is Check once more for the same request: what Check has read may have been written since, by another
	// worker or by an earlier rule of the request.
	Recheck(s *Subject, now int64) Finding
	// Take counts the cost of a subject for which Check or Recheck has found room. It is a Mismatch if what they have
	// read was written since, by another worker or by an earlier rule of the request. A rule that holds keeps the units
	// until its HoldSource settles them.
	Take(s *Subject) state.Status
	// Refund undoes Take. It reports whether every window has the units back.
	Refund(s *Subject, now int64) (complete bool)
	// KeepDenied stores what the rule keeps of a hit that it has denied, and is a Mismatch where Take is. If it is OK,
	// the next hit like this one passes at passNs, or at once if that is not after Record.Now. It is limit.Never only if
	// the last Finding has that, too: both follow from the limits and Units.
	KeepDenied(s *Subject, keep Keep) (passNs int64, status state.Status)
	// Persist stores the record if Check has rebased it, that is, has moved it to the present because the clock was set
	// back. Else it does nothing.
	Persist(s *Subject)
	// Usage is the usage of a window, as of Check or Take: column is its index in records, as in Rule.Finder.Windows.
	// It is valid until the next call. It is only for a subject whose usage is known.
	Usage(s *Subject, column int) *limit.Usage
}

// Finding is what a Source has found out about a hit.
type Finding struct {
	Found Found
	Known bool // the source knows the key's usage, so there is a View
	// PassNs is for Denied, Blocked, HeldBack and Full: when the hit would pass by the wall clock, or limit.Never.
	PassNs int64
}

// Keys is how a Source shows its keys to clients and operators, and has operators change them.
type Keys interface {
	// Look finds out how the key stands at now, and leaves no trace. Of a rule of scope cluster it knows what the quota
	// service has told beforehand; nil is nothing.
	Look(s *Subject, now int64, told []leased.Standing) (known bool)
	// Operate carries out an operation on one window of the subject's key, or on all: column is as in Usage, or
	// state.AllWindows. The key is not Unlimited.
	Operate(s *Subject, o Operation, column int, n uint32, now int64) (value int64, known bool, err error)
	// Tables are those in which the source counts. The first has every key.
	Tables() []Table
}

// Operation is what Keys.Operate does.
type Operation string

// The operations, by the names that operators give them. A source of scope cluster carries out Leased
// alone, and another one all but Leased.
const (
	Get       Operation = "get"
	Inc       Operation = "inc"
	Set       Operation = "set"
	Reset     Operation = "reset"
	ExpiresAt Operation = "expires_at"
	Leased    Operation = "leased"
)

// Table is a table of a source.
type Table struct {
	*state.Table
	OfRule  []limit.Window // the limits by which its records count
	Scratch *state.Scratch // for a visit of all pages
}

// HoldSource is a Source of a rule that holds units until answers are known.
type HoldSource interface {
	Source
	hold.Source
	// Held is how many units of the key are held, as of Check or Take.
	Held(s *Subject) uint32
}
