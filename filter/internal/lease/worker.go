package lease

import (
	"math"

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

	held   []held
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

// Want is what requests need of one key and this proxy has not.
type Want struct {
	Part   quota.Part
	source *Source
	place  state.Place
}

// AppendWants appends what the pending verdict waits for: one want for each key. Shadow
// rules count last.
func AppendWants(dst []Want, v *decide.Verdict) []Want {
	for _, shadow := range [2]bool{false, true} {
		for _, s := range v.Subjects {
			if c, leases := s.Rule.Source.(*Source); leases && s.Outcome == decide.Pending && s.Shadow == shadow {
				dst = c.append(dst, s, s.Cost)
			}
		}
	}
	return dst
}

// WantsRefill reports whether requests after this one will soon need more units.
func WantsRefill(v *decide.Verdict) bool {
	for _, s := range v.Subjects {
		if a, leases := s.Lease.(*account); leases && a.refill {
			return true
		}
	}
	return false
}

// takeRefills appends what the requests after this one will need soon.
func takeRefills(dst []Want, v *decide.Verdict) []Want {
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

// append appends a want of the subject's key, or adds the cost to one that there is.
func (c *Source) append(dst []Want, s *decide.Subject, cost uint32) []Want {
	a := accountOf(s)
	w := Want{source: c, place: a.entry.Place(), Part: quota.Part{
		Definition: c.first + uint32(s.Override+1), Key: c.rule.Subjects.QuotaKey(&s.Subject), Cost: cost, Waiting: cost,
		Spent: a.entry.Uncharged, Shadow: s.Shadow,
	}}
	for i := range dst {
		if p := &dst[i].Part; p.Definition == w.Part.Definition && p.Key == w.Part.Key {
			p.Cost = limit.AddSaturating(p.Cost, cost)
			p.Waiting, a.want = p.Cost, i
			return dst
		}
	}
	if c.leases {
		rate := a.entry.Rate.Over(a.nowNs, c.refill.RateNs)
		w.Part.Ahead = limit.AddSaturating(rate, rate)
	}
	a.want = len(dst)
	return append(dst, w)
}

// received is an answer for one want, or units of one that a request leaves.
type received struct {
	quota.Grant
	left   bool // it is what a request leaves: all else is stored
	cost   uint32
	stream uint32
	nowNs  int64 // when it came
	endNs  int64
	spent  uint32 // units that the requests which waited have got
}

// bound brings times that a broken service states to what can be.
func (r *received) bound(mostNs int64) {
	r.ValidNs = min(max(r.ValidNs, 0), state.MaxLeaseNs)
	if r.WaitNs != limit.Never {
		r.WaitNs = min(max(r.WaitNs, 0), mostNs)
	}
	for i := range r.Windows {
		st := &r.Windows[i]
		st.ResetNs = min(max(st.ResetNs, 0), mostNs)
	}
}

// back are the units that go back to the service.
func (r *received) back() quota.Return {
	if r.Number == 0 {
		return quota.Return{}
	}
	return quota.Return{Grant: r.Number, Units: r.Units}
}

func (r *received) appendStandings(list []state.Standing) []state.Standing {
	for _, st := range r.Windows {
		list = append(list, state.Standing{Used: st.Used, ResetNs: r.nowNs + st.ResetNs})
	}
	return list
}

// give answers a request that has waited, as far as the answer suffices.
func (g *grant) give(s *decide.Subject) {
	a := accountOf(s)
	switch {
	case g.Failed:
		return
	case g.Denied && s.Cost >= g.cost:
		a.answer = answer{denied: true, waitNs: g.WaitNs}
	case !g.Denied && g.Units >= s.Cost && g.nowNs < g.endNs:
		a.answer = answer{units: s.Cost, of: g}
		g.having++
		g.Units -= s.Cost
		g.spent = limit.AddSaturating(g.spent, s.Cost)
	default:
		return
	}
	a.entry.Lease = state.Lease{Standings: g.appendStandings(a.entry.Standings[:0])}
	a.entry.WrittenNs = g.nowNs
}

// leave takes what a decided request leaves. It returns what goes back to the service.
func (g *grant) leave(units uint32) (back quota.Return) {
	g.Units += units
	if g.having--; g.having > 0 || g.Units == 0 {
		return back
	}
	g.left = true
	return g.source.store(g.place, &g.received, 0)
}

// store writes what is received, and nobody has got, into the key's record. It returns
// what goes back to the service.
func (c *Source) store(at state.Place, r *received, spent uint32) quota.Return {
	w := c.worker
	e, wall := &w.entry, w.host.Now()
	for try := range maxRetries {
		now := w.host.Monotonic()
		if c.table.ReadAt(e, at, wall, now) != state.OK {
			break
		}
		if e.Ahead && try == 0 { // by a newer time it can be read, unless it is of another epoch
			continue
		}
		back, lost := c.merge(&e.Lease, r, spent, now)
		switch c.write(e) {
		case decide.Taken:
			c.rule.Metrics.LeaseLost += uint64(lost)
			if r.Number != 0 && r.Units > 0 && back.Units == 0 {
				w.hold(held{c, at, r.stream, r.Number, c.lookAt(now, now, r.endNs)})
			}
			return back
		case decide.Raced:
			continue
		default:
		}
		break
	}
	return r.back()
}

// merge changes the record. back are units that return to the service, lost is how many
// can not.
func (c *Source) merge(l *state.Lease, r *received, spent uint32, now int64) (back quota.Return, lost uint32) {
	if !r.left {
		l.AskedNs, l.SilentNs = 0, 0
		if r.Failed {
			l.SilentNs = now + silenceNs
			return back, 0
		}
		l.Uncharged -= min(l.Uncharged, spent)
		l.Standings = r.appendStandings(l.Standings[:0])
		l.Rate.Spent(now, c.refill.RateNs, r.spent)
		if r.Denied {
			if c.leases {
				r.remember(l, now)
			}
			return back, 0
		}
	}
	if r.Units == 0 || !r.Leased || now >= r.endNs && !r.left { // what is left joins the rest, and goes back with it
		return r.back(), 0
	}
	if l.DeniedCost <= r.Units {
		l.DeniedNs = 0
	}
	lost, ok := l.Put(now, state.Held{Stream: r.stream, Number: r.Number, Units: r.Units, EndNs: r.endNs})
	if !ok {
		return r.back(), 0
	}
	return back, lost
}

// remember keeps a denial.
func (r *received) remember(l *state.Lease, now int64) {
	cost := r.cost
	if l.DeniedNs > now {
		cost = min(cost, l.DeniedCost)
	}
	l.DeniedCost, l.PassNs = cost, limit.Never
	wait := int64(silenceNs)
	if r.WaitNs != limit.Never {
		l.PassNs = r.nowNs + r.WaitNs
		wait = min(wait, r.WaitNs)
	}
	l.DeniedNs = now + wait
}

// held is a grant that this worker's stream may return.
type held struct {
	source *Source
	place  state.Place
	stream uint32
	number uint32 // of the grant
	lookNs int64  // when to look at it next; see lookAt
}

const (
	// maxHeld is how many grants one worker can return.
	maxHeld = 4096
	// maxLookNs is the longest time until a worker looks at a grant again.
	maxLookNs = 1_000_000_000
)

func (w *Worker) hold(h held) {
	if len(w.held) >= maxHeld {
		h.source.rule.Metrics.LeaseLost++ // counted as one: what is left is not known yet
		return
	}
	w.held = append(w.held, h)
	w.lookNs = min(w.lookNs, h.lookNs)
	if idle := h.source.idleNs; w.idleNs == 0 || idle < w.idleNs {
		w.idleNs = idle
	}
}

// lookAt is when to look at units next that were written last at writtenNs: when they may
// be idle. Spent ones leave the list then, so it is sooner where the list is long.
func (c *Source) lookAt(now, writtenNs, endNs int64) int64 {
	most := int64(maxLookNs)
	if len(c.worker.held) >= maxHeld/2 {
		most /= 20
	}
	return min(writtenNs+c.idleNs, endNs, now+most)
}

// idle appends the units that the stream got and nobody takes any more, at most so many
// grants of them.
func (w *Worker) idle(returns []quota.Return, stream uint32, maxGrants int) []quota.Return {
	if len(w.held) == 0 {
		return returns
	}
	now := w.host.Monotonic()
	if now < w.lookNs {
		return returns
	}
	wall, all := w.host.Now(), w.held
	w.held, w.lookNs, w.idleNs = all[:0], math.MaxInt64, 0
	for _, h := range all {
		if h.stream != stream {
			continue // its stream has ended: the units stay counted
		}
		if now < h.lookNs || len(returns) >= maxGrants {
			w.hold(h)
			continue
		}
		units, keep := h.takeBack(&w.entry, wall, now)
		if units > 0 {
			returns = append(returns, quota.Return{Grant: h.number, Units: units})
		}
		if keep {
			w.hold(h)
		}
	}
	return returns
}

// takeBack takes the grant's units out of the record if they are idle. Where it keeps
// them, it notes when to look again.
func (h *held) takeBack(e *state.LeaseEntry, wall, now int64) (units uint32, keep bool) {
	c := h.source
	for range maxRetries {
		h.lookNs = now + maxLookNs
		if c.table.ReadAt(e, h.place, wall, now) != state.OK {
			return 0, true
		}
		g := h.find(&e.Lease)
		if g == nil {
			return 0, e.Ahead // a later tick can read it
		}
		if now < g.EndNs && now-e.WrittenNs < c.idleNs {
			h.lookNs = c.lookAt(now, e.WrittenNs, g.EndNs)
			return 0, true
		}
		units, g.Units = g.Units, 0
		switch c.table.Write(e) {
		case state.OK:
			return units, false
		case state.Mismatch:
		default:
			return 0, true
		}
	}
	return 0, true
}

// find returns what is left of the grant, nil if nothing is.
func (h *held) find(l *state.Lease) *state.Held {
	for i := range l.Grants {
		if g := &l.Grants[i]; g.Stream == h.stream && g.Number == h.number && g.Units > 0 {
			return g
		}
	}
	return nil
}
