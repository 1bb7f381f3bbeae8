package lease

import (
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
	late    bool // the request at hand has waited for the timeout
	crowded bool // too many wait already
	proxies uint32

	leased []leased
	lookNs int64            // when to look at the first of them
	idleNs int64            // the shortest time after which one is idle, 0 = none is held
	entry  state.LeaseEntry // of what is no request's
}

// NewWorker returns a worker without rules.
func NewWorker(host Clock, tables *state.Tables, domain string) *Worker {
	return &Worker{host: host, tables: tables, domain: domain}
}

// Add gives a rule its source of units. fallback is the table that counts in the place of a
// silent service, if on_unavailable is local.
func (w *Worker) Add(r *decide.Rule, fallback *state.Table) {
	p, windows := r.Policy, r.Subjects.Windows
	c := &Source{worker: w, rule: r, first: uint32(len(w.Definitions)), leases: p.Lease != quota.LeaseOff,
		refill: refillOf(windows), idleNs: quota.IdleNs(windows)}
	c.table = w.tables.Leases(r.Subjects.Counter("\x00lease", p.Capacity), layoutOf(windows), len(windows), p.Capacity)
	if p.OnUnavailable == policy.UnavailableLocal {
		c.local = local.New(r, fallback)
	}
	for override := -1; override < len(p.Overrides); override++ {
		d := r.Subjects.Definition(override)
		d.ID = uint32(len(w.Definitions))
		w.Definitions = append(w.Definitions, d)
	}
	r.Source, r.Counted = c, c.table.Table()
}

// SetProxies tells all workers how many proxies of the domain are alive.
func (w *Worker) SetProxies(n uint32) {
	if n != w.proxies && n > 0 {
		w.proxies = n
		w.tables.SetProxies(n)
	}
}

// Part is what requests need of one key and this proxy has not.
type Part struct {
	quota.Part
	source *Source
	place  state.Place
}

// AppendParts appends what the pending verdict waits for: one part for each key. Shadow
// rules count last.
func AppendParts(dst []Part, v *decide.Verdict) []Part {
	for _, shadow := range [2]bool{false, true} {
		for _, s := range v.Subjects {
			if c, leases := s.Rule.Source.(*Source); leases && s.Outcome == decide.Pending && s.Shadow == shadow {
				dst = c.append(dst, s, s.Cost)
			}
		}
	}
	return dst
}

// AsksAhead reports whether requests after this one will soon need more units.
func AsksAhead(v *decide.Verdict) bool {
	for _, s := range v.Subjects {
		if a, leases := s.Lease.(*account); leases && a.refill {
			return true
		}
	}
	return false
}

// appendAhead appends what the requests after this one will need soon.
func appendAhead(dst []Part, v *decide.Verdict) []Part {
	for _, s := range v.Subjects {
		if a, leases := s.Lease.(*account); leases && a.refill {
			a.refill = false
			if c, leases := s.Rule.Source.(*Source); leases {
				dst = c.append(dst, s, 0)
			}
		}
	}
	return dst
}

// append appends a part for the subject's key, or adds the cost to one that there is.
func (c *Source) append(dst []Part, s *decide.Subject, cost uint32) []Part {
	a := accountOf(s)
	w := Part{source: c, place: a.entry.Place(), Part: quota.Part{
		Definition: c.first + uint32(s.Override+1), Key: c.rule.Subjects.QuotaKey(&s.Subject), Cost: cost, Waiting: cost,
		Spent: a.entry.Uncharged, Shadow: s.Shadow,
	}}
	for i := range dst {
		if p := &dst[i].Part; p.Definition == w.Definition && p.Key == w.Key {
			p.Cost = limit.AddSaturating(p.Cost, cost)
			p.Waiting, a.part = p.Cost, i
			return dst
		}
	}
	if c.leases {
		rate := a.entry.Rate.Over(a.nowNs, c.refill.RateNs)
		w.Ahead = limit.AddSaturating(rate, rate)
	}
	a.part = len(dst)
	return append(dst, w)
}
