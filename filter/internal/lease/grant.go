package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// grant is an answer for one part. What requests that have waited got of it and do not take
// goes back when the last of them is decided: the service takes units of a grant back once.
type grant struct {
	quota.Grant // its Units are those that nobody has
	part        *Part
	stream      uint32
	nowNs       int64 // when it came
	endNs       int64
	standings   []state.Standing
	takers      int    // requests that have units of it
	given       uint32 // units that they have got
}

// bound brings times that a broken service states to what can be.
func (g *grant) bound(mostNs int64) {
	g.ValidNs = min(max(g.ValidNs, 0), state.MaxLeaseNs)
	if g.WaitNs != limit.Never {
		g.WaitNs = min(max(g.WaitNs, 0), mostNs)
	}
	for i := range g.Windows {
		st := &g.Windows[i]
		st.ResetNs = min(max(st.ResetNs, 0), mostNs)
	}
}

// give answers a request that has waited, as far as the answer suffices.
func (g *grant) give(p *Part) {
	switch {
	case g.Failed:
	case g.Denied && p.Cost >= g.part.Cost:
		p.grant = g
	case !g.Denied && g.Units >= p.Cost && g.nowNs < g.endNs:
		p.grant, p.units = g, p.Cost
		g.takers++
		g.Units -= p.Cost
		g.given = limit.AddSaturating(g.given, p.Cost)
		if p.level != nil {
			p.level.Given += p.Cost
		}
	}
}

// release takes what a decided request leaves. It returns what goes back to the service.
func (g *grant) release(units uint32) (back quota.Return) {
	g.Units += units
	if g.takers--; g.takers > 0 || g.Units == 0 {
		return back
	}
	return g.store(g.Units, false)
}

// store writes units into the key's record, and of an answer what it says. It returns what
// goes back to the service.
func (g *grant) store(units uint32, answer bool) quota.Return {
	c := g.part.source.(*Source)
	w := c.worker
	e, wall := &w.entry, w.host.Now()
	for try := range state.MaxRetries {
		now := w.host.Monotonic()
		if c.table.ReadAt(e, g.part.place, wall, now) != state.OK {
			break
		}
		if e.Ahead && try == 0 { // by a newer time it can be read, unless it is of another epoch
			continue
		}
		if answer {
			g.note(&e.Lease, now)
		}
		kept, lost := g.keep(&e.Lease, units, answer, now)
		written := c.write(e)
		if written == decide.Raced {
			continue
		}
		if written == decide.Taken && kept {
			c.rule.Metrics.LeaseLost += uint64(lost)
			w.watch(leased{c, g.part.place, g.stream, g.Number, c.lookAt(now, now, g.endNs)})
			return quota.Return{}
		}
		break
	}
	return quota.Return{Grant: g.Number, Units: units}
}

// note changes the record as the answer says.
func (g *grant) note(l *state.Lease, now int64) {
	c := g.part.source.(*Source)
	l.AskedNs, l.SilentNs = 0, 0
	if g.Failed {
		l.SilentNs = now + silenceNs
		return
	}
	l.Uncharged -= min(l.Uncharged, g.part.Spent)
	l.Standings = append(l.Standings[:0], g.standings...)
	l.Rate.Spend(now, c.refill.RateNs, g.given)
	if g.Denied && c.leases {
		g.remember(l, now)
	}
}

// keep puts units into the record, if they may be spent later. Those of an earlier answer
// join the rest, and go back with it. lost is how many units can not go back.
func (g *grant) keep(l *state.Lease, units uint32, answer bool, now int64) (kept bool, lost uint32) {
	if units == 0 || !g.Leased || g.Failed || g.Denied || answer && now >= g.endNs {
		return false, 0
	}
	if l.DeniedCost <= units {
		l.DeniedNs = 0
	}
	lost, kept = l.Put(now, state.Grant{Stream: g.stream, Number: g.Number, Units: units, EndNs: g.endNs})
	return kept, lost
}

// remember keeps a denial.
func (g *grant) remember(l *state.Lease, now int64) {
	cost := g.part.Cost
	if l.DeniedNs > now {
		cost = min(cost, l.DeniedCost)
	}
	l.DeniedCost, l.PassNs = cost, limit.Never
	wait := int64(silenceNs)
	if g.WaitNs != limit.Never {
		l.PassNs = g.nowNs + g.WaitNs
		wait = min(wait, g.WaitNs)
	}
	l.DeniedNs = now + wait
}
