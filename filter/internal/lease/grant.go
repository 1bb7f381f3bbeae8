package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// received is an answer for one part, or units of one that a request leaves.
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

// grant is what requests that have waited got of a grant. What they do not take goes back
// when the last of them is decided: the service takes units of a grant back once.
type grant struct {
	received
	source *Source
	place  state.Place
	having int // requests that have units of it
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
	for try := range state.MaxRetries {
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
				w.list(leased{c, at, r.stream, r.Number, c.lookAt(now, now, r.endNs)})
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
	lost, ok := l.Put(now, state.Grant{Stream: r.stream, Number: r.Number, Units: r.Units, EndNs: r.endNs})
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
