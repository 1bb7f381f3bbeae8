package lease

import (
	"encoding/binary"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Clock is the proxy's two clocks.
type Clock interface {
	// Now returns nanoseconds since the Unix epoch.
	Now() int64
	// Monotonic returns nanoseconds of a clock that no one sets, from any instant on.
	Monotonic() int64
}

// Worker is what the rules of scope cluster of one worker have in common. Their sources and the
// Client share it.
type Worker struct {
	// Set before the first request.
	TimeoutNs   int64              // how long a request waits
	Definitions []quota.Definition // by their numbers; none without rules of scope cluster
	clock       Clock
	tables      *state.Tables
	domain      string

	// The Client writes them, and sources read them.
	Silent  bool   // it has found the service silent for the timeout: nobody waits
	crowded bool   // so many requests wait that no other may
	proxies uint32 // of the domain, by the service's last message

	// Sources write them, and Client.Flush asks and reports by them.
	refills  []Part // what requests to come will soon need
	accounts accounts

	// definition writes them.
	requested  map[requestedKey]*quota.Definition // those that requests have given
	lastNumber uint32                             // of the newest of them

	// Each grant with units in a lease is added to them, and Client.Tick removes it: see returns.go.
	returnable []returnable // grants that may go back
	lookNs     int64        // when to look at the first of them
	idleNs     int64        // the shortest time after which one is idle, 0 = none is left

	// Memory:
	entry   state.LeaseEntry // for records that no request reads
	visitor state.Entry      // for visits of all pages
	key     []byte           // for a requestedKey
}

// NewWorker returns a worker without rules.
func NewWorker(clock Clock, tables *state.Tables, domain string) *Worker {
	return &Worker{
		clock: clock, tables: tables, domain: domain,
		requested: map[requestedKey]*quota.Definition{}, accounts: accounts{byName: map[accountName]*account{}},
	}
}

// Add gives a rule its source of units. fallback is the table that counts in the place of a
// silent service, if on_unavailable is local.
func (w *Worker) Add(r *decide.Rule, fallback *state.Table) {
	p, windows := r.Policy, r.Subjects.Windows
	src := common{worker: w, rule: r, first: uint32(len(w.Definitions))}
	if p.OnUnavailable == policy.UnavailableLocal {
		src.local = local.New(r, fallback)
	}
	for override := -1; override < len(p.Overrides); override++ {
		d := r.Subjects.DefinitionOf(override)
		d.ID = uint32(len(w.Definitions))
		w.Definitions = append(w.Definitions, d)
	}
	if p.Holds() {
		r.SetSource(&HoldSource{common: src}, fallback)
		return
	}
	table := w.tables.Leases(r.Subjects.Counter("\x00lease", p.Capacity), layoutOf(windows), len(windows), p.Capacity)
	r.SetSource(&Source{
		common: src, table: table, leases: p.Lease != quota.LeaseOff,
		refill: refillOf(windows), idleNs: quota.IdleNs(windows),
	}, table.Table())
}

// SetProxies tells all workers how many proxies of the domain are alive.
func (w *Worker) SetProxies(n uint32) {
	if n != w.proxies && n > 0 {
		w.proxies = n
		w.tables.SetProxies(n)
	}
}

// AssumeSilent runs do as if this worker had found the service silent itself, if silent says so.
func (w *Worker) AssumeSilent(silent bool, do func()) {
	own := w.Silent
	w.Silent = own || silent
	do()
	w.Silent = own
}

// DecideLike has this worker's sources decide by the timeout and the silence of another one.
func (w *Worker) DecideLike(from *Worker) { w.TimeoutNs, w.Silent = from.TimeoutNs, from.Silent }

// HasNews reports whether there is something to send that no request waits for: see
// Client.Flush.
func (w *Worker) HasNews() bool { return len(w.refills)+len(w.accounts.due) > 0 }

// newNumber returns a number that no definition of a rule has. Numbers begin anew after the
// largest.
func (w *Worker) newNumber() uint32 {
	w.lastNumber = max(w.lastNumber+1, uint32(len(w.Definitions)))
	return w.lastNumber
}

// tooFew is what becomes of a subject for which the proxy has too few units, and the service
// may have more: it waits, unless it has waited in vain or too many others wait.
func (w *Worker) tooFew(s *decide.Subject) decide.Outcome {
	switch {
	case s.Quota.Wait == decide.TimedOut:
		return decide.Silent
	case s.Quota.Wait == decide.Rejected, s.Quota.Wait == decide.NotWaited && w.crowded:
		return decide.Contended
	}
	return decide.Pending
}

// common is what both sources of rules of scope cluster have: the definitions of their limits, how
// a check begins, and what decides while the service is silent.
type common struct {
	worker *Worker
	rule   *decide.Rule
	local  *local.Source // counts while the service is silent, if on_unavailable is local
	first  uint32        // the definition of the rule's own limits; those of its overrides follow

	key    []byte         // memory for keys with limits
	shares []limit.Window // memory for this proxy's share of the limits
	usage  limit.Usage    // memory for Usage
}

// maxRequested is how many definitions a worker keeps of limits that requests give. Others
// are made anew, under new numbers.
const maxRequested = 256

// definition is what the service is told of the subject's limits.
func (src *common) definition(s *decide.Subject) *quota.Definition {
	w := src.worker
	if !src.rule.Subjects.IsRequested(&s.Subject) {
		return &w.Definitions[src.first+uint32(s.Override+1)]
	}
	w.key = appendRequestedKey(w.key[:0], src.first, s)
	if d := w.requested[requestedKey(w.key)]; d != nil {
		return d
	}
	if len(w.requested) >= maxRequested {
		clear(w.requested)
	}
	d := src.rule.Subjects.Definition(&s.Subject)
	d.ID = w.newNumber()
	w.requested[requestedKey(w.key)] = &d
	return &d
}

// requestedKey finds the definition of limits that a request gives. It is the rule, by the
// definition of its own limits, and then the limits as appendLimits has them.
type requestedKey string

func appendRequestedKey(b []byte, first uint32, s *decide.Subject) []byte {
	return appendLimits(binary.LittleEndian.AppendUint32(b, first), s)
}

// limitsOf returns the limits, if they were given for that rule.
func (k requestedKey) limitsOf(first uint32) (limits string, ok bool) {
	return strings.CutPrefix(string(k), string(binary.LittleEndian.AppendUint32(nil, first)))
}

// appendLimits appends the subject's limits: as many bytes for each key of a rule.
func appendLimits(b []byte, s *decide.Subject) []byte {
	for i := range s.Windows {
		b = binary.LittleEndian.AppendUint32(b, s.Windows[i].Limit)
	}
	return b
}

// begin begins a check of the subject.
func (src *common) begin(s *decide.Subject, wallNs int64) {
	s.Limits.Windows = s.Windows
	s.Known, s.PassNs = false, wallNs
	r, q := &s.Record, &s.Quota
	r.Now, r.Rebased = wallNs, false
	r.FromFloor = false
	q.From, q.NowNs = decide.Nowhere, src.worker.clock.Monotonic()
}

// passNs is when a wait that begins now is over; never if the wait is limit.Never.
func passNs(wallNs, waitNs int64) int64 {
	if waitNs == limit.Never {
		return limit.Never
	}
	return wallNs + max(waitNs, 1)
}

// forNothing decides about a cost of 0, which asks for nothing: only a limit of 0 denies it.
func forNothing(s *decide.Subject) decide.Outcome {
	if limit.Shut(s.Windows) {
		s.PassNs = limit.Never
		return decide.Denied
	}
	return decide.HasRoom
}

// alone decides without the service, for the reason why: by this proxy's share, if
// on_unavailable is local. If nothing decides, the outcome is why, also while the
// quota store starts and others hold the share.
func (src *common) alone(s *decide.Subject, wallNs int64, why decide.Outcome) decide.Outcome {
	if src.local == nil {
		return why
	}
	found := src.checkShare(s, wallNs)
	if found == decide.HeldBack && why == decide.Starting {
		return why
	}
	if s.Quota.From == decide.OwnShare {
		src.rule.Metrics.Unavailable++
	}
	return found
}

// checkShare decides by what this proxy has counted while the service was silent.
func (src *common) checkShare(s *decide.Subject, wallNs int64) decide.Outcome {
	s.Limits.Windows = src.share(s)
	found := src.local.Check(s, wallNs)
	if found != decide.Failed {
		s.Quota.From = decide.OwnShare
	}
	return found
}

// share is what one proxy may admit without the service: the limits, divided by
// the number of proxies.
func (src *common) share(s *decide.Subject) []limit.Window {
	proxies := max(src.worker.tables.Proxies(), 1)
	src.shares = append(src.shares[:0], s.Windows...)
	for i := range src.shares {
		w := &src.shares[i]
		if w.Limit > 0 {
			w.Limit = max(1, w.Limit/proxies)
		}
		if w.Burst > 0 {
			w.Burst = max(1, w.Burst/proxies)
		}
	}
	return src.shares
}

// Persist does nothing: what is held has no record, and a lease of an earlier start of the clock
// is dropped when it is read.
func (*common) Persist(*decide.Subject) {}

// Tables are where the proxy counts without the service.
func (src *common) Tables() []decide.Table {
	if src.local == nil {
		return nil
	}
	return src.local.Tables()
}
