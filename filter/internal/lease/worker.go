package lease

import (
	"slices"

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

// Worker is what the rules of one worker that lease have in common.
type Worker struct {
	TimeoutNs   int64              // how long a request waits
	Silent      bool               // the service has been silent for the timeout: nobody waits
	Definitions []quota.Definition // by their numbers; none without rules of scope cluster

	host    Clock
	tables  *state.Tables
	domain  string
	proxies uint32

	resumed *waiter // that goes on, nil = none does
	crowded bool    // too many wait already
	ahead   []Part  // what requests to come will soon need, and nobody has asked for

	said   map[string]*quota.Definition // by rule and limits: those that requests have said
	lastID uint32                       // of the newest of them

	leased  []leased
	lookNs  int64            // when to look at the first of them
	idleNs  int64            // the shortest time after which one is idle, 0 = none is held
	entry   state.LeaseEntry // of what is no request's
	visitor state.Entry      // of who visits all pages

	levels  map[string]*level // by their names
	due     []*level          // to be stated
	id      uint64            // of who states them
	number  uint64            // of the newest statement
	renewNs int64             // when to look which are to be renewed
	name    []byte            // memory for a level's
}

// NewWorker returns a worker without rules.
func NewWorker(host Clock, tables *state.Tables, domain string) *Worker {
	return &Worker{host: host, tables: tables, domain: domain, said: map[string]*quota.Definition{}, levels: map[string]*level{}}
}

// Add gives a rule its source of units. fallback is the table that counts in the place of a
// silent service, if on_unavailable is local.
func (w *Worker) Add(r *decide.Rule, fallback *state.Table) {
	p, windows := r.Policy, r.Subjects.Windows
	a := asking{worker: w, rule: r, first: uint32(len(w.Definitions))}
	if p.OnUnavailable == policy.UnavailableLocal {
		a.local = local.New(r, fallback)
	}
	for override := -1; override < len(p.Overrides); override++ {
		d := r.Subjects.DefinitionOf(override)
		d.ID = uint32(len(w.Definitions))
		w.Definitions = append(w.Definitions, d)
	}
	if p.Holds() {
		r.Source, r.Counted = &Stated{asking: a}, fallback
	} else {
		table := w.tables.Leases(r.Subjects.Counter("\x00lease", p.Capacity), layoutOf(windows), len(windows), p.Capacity)
		r.Source, r.Counted = &Source{
			asking: a, table: table, leases: p.Lease != quota.LeaseOff, refill: refillOf(windows), idleNs: quota.IdleNs(windows),
		}, table.Table()
	}
}

// SetProxies tells all workers how many proxies of the domain are alive.
func (w *Worker) SetProxies(n uint32) {
	if n != w.proxies && n > 0 {
		w.proxies = n
		w.tables.SetProxies(n)
	}
}

// Part is what a request needs of one key and this proxy has not, and what it has got of it.
type Part struct {
	quota.Part
	definition *quota.Definition
	subject    *decide.Subject
	source     asks
	place      state.Place // of a lease
	level      *level      // of what is stated instead

	grant *grant // the answer, nil until it has come
	units uint32 // of it, which the request has not taken
}

// suffices reports whether the service has denied so much, or the request has as many units.
func (p *Part) suffices(cost uint32, now int64) bool {
	return p != nil && (p.grant.Denied || p.units >= cost && now < p.grant.endNs)
}

// AppendParts appends what the pending verdict waits for: one part for each key. Shadow
// rules count last.
func (w *Worker) AppendParts(dst []Part, v *decide.Verdict) []Part {
	for _, shadow := range [2]bool{false, true} {
		for _, s := range v.Subjects {
			if s.Outcome == decide.Pending && s.Shadow == shadow {
				dst = append(dst, s.Rule.Source.(asks).part(s, s.Cost))
			}
		}
	}
	return dst
}

// part is what is asked for the subject's key.
func (c *Source) part(s *decide.Subject, cost uint32) Part {
	e, d := s.Lease, c.definition(s)
	p := Part{definition: d, subject: s, source: c, place: e.Place(), Part: quota.Part{
		Definition: d.ID, Key: c.rule.Subjects.QuotaKey(&s.Subject), Cost: cost, Waiting: cost,
		Spent: e.Uncharged, Shadow: s.Shadow,
	}}
	if c.leases {
		rate := e.Rate.Over(e.NowNs, c.refill.RateNs)
		p.Ahead = limit.AddSaturating(rate, rate)
	}
	return p
}

// AsksAhead reports whether requests to come will soon need more units: see Client.AskAhead.
func (w *Worker) AsksAhead() bool { return len(w.ahead) > 0 }

// waiterOf returns the waiter that goes on with the subject, nil if none does.
func (w *Worker) waiterOf(s *decide.Subject) *waiter {
	if w.resumed == nil || !slices.Contains(w.resumed.verdict.Subjects, s) {
		return nil
	}
	return w.resumed
}

// got returns what the service has said to the subject's request, nil if nothing.
func (w *Worker) got(s *decide.Subject) *Part {
	if by := w.waiterOf(s); by != nil {
		for i := range by.parts {
			if p := &by.parts[i]; p.subject == s && p.grant != nil {
				return p
			}
		}
	}
	return nil
}

// short is what becomes of a subject for which the proxy holds too few units.
func (w *Worker) short(s *decide.Subject) decide.Outcome {
	switch by := w.waiterOf(s); {
	case by != nil:
		return by.short
	case w.crowded:
		return decide.Contended
	}
	return decide.Pending
}
