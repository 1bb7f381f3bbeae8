package host

import (
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/filter/internal/settle"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// What a request holds: hold takes it from the verdict, settle ends it when the answer is known,
// linger keeps it for a while if the upstream may go on, and renew says on each tick that
// the request still runs.

// hold keeps what the request holds.
func (p *plugin) hold(v *decide.Verdict) {
	p.holds = v.BeginHolds(p.holds)
	identity := false
	for i := range p.holds {
		h := &p.holds[i]
		r := h.Rule.Policy
		if r.MaxHoldNs > 0 {
			h.EndNs = theProxy.Monotonic() + r.MaxHoldNs
		}
		identity = identity || r.Settle != nil && r.Settle.Identity
	}
	if !identity {
		return
	}
	if err := proxywasm.RemoveHttpRequestHeader("accept-encoding"); err != nil {
		proxywasm.LogError("sluice: remove accept-encoding: " + err.Error())
	}
}

// settle ends each hold of the stream: it is charged, or lingers.
func (s *stream) settle() {
	a, redirected := s.end()
	p, now := s.plugin, theProxy.Now()
	settled := p.settled[:0]
	for i := range s.holds {
		h := &s.holds[i]
		cost, by := uint32(0), metrics.ByNone
		switch r := h.Rule.Policy; {
		case redirected:
		case r.Settle != nil:
			var priced policy.Tokens
			cost, by, priced = settle.Cost(r, h.Units, &a)
			h.Rule.Metrics.NoteTokens(priced)
		case r.LingerNs > 0 && abandoned():
			p.linger(lingeringHold{Hold: *h, untilNs: theProxy.Monotonic() + r.LingerNs})
			continue
		}
		h.Settle(cost, by, now)
		if p.report != noReport {
			rule := h.Rule.Policy.Name
			settled = append(settled, result.Settled{Rule: rule, Held: h.Units, Cost: cost, By: by.String()})
		}
	}
	if p.report != noReport {
		setState(settledState, result.AppendSettled(nil, settled))
	}
	clear(s.holds)
	p.settled, s.holds = settled[:0], s.holds[:0]
	if p.quota != nil {
		p.quota.flush(s.context)
	}
}

// lingeringHold is a hold whose request was reset, while its upstream may still be at work.
type lingeringHold struct {
	hold.Hold
	untilNs int64 // when it is settled, by the monotonic clock
}

// linger keeps a hold until its time is over.
func (p *plugin) linger(l lingeringHold) {
	if len(p.lingering) == 0 || l.untilNs < p.lingersNs {
		p.lingersNs = l.untilNs
	}
	p.lingering = append(p.lingering, l)
}

// endLingering ends what has lingered for long enough. Each request looks, because a slot that
// waits for the tick lies idle for half a second.
func (p *plugin) endLingering(monotonic int64) {
	if len(p.lingering) == 0 || monotonic < p.lingersNs {
		return
	}
	all, now := p.lingering, theProxy.Now()
	p.lingering = all[:0]
	for i := range all {
		if l := all[i]; l.untilNs <= monotonic {
			arena.reset() // each reads a page
			l.Settle(0, metrics.ByNone, now)
		} else {
			p.linger(l)
		}
	}
	clear(all[len(p.lingering):])
}

// renew renews what lingers and, of the streams, what the next portion holds: all in one tick
// would keep the worker from its requests.
func (p *plugin) renew() {
	if p.holdNs == 0 {
		return
	}
	p.endLingering(theProxy.Monotonic())
	at := hold.Clocks{Now: theProxy.Now(), MonotonicNs: theProxy.Monotonic(), HeldNs: p.engine.HeldNow()}
	for i := range p.lingering {
		arena.reset()
		p.lingering[i].Renew(at)
	}
	for range p.portion(at.MonotonicNs) {
		p.renewsAt = (p.renewsAt + 1) % len(streams.buckets)
		for s := streams.buckets[p.renewsAt]; s != nil; s = s.next {
			if s.plugin != p {
				continue
			}
			for i := range s.holds {
				arena.reset() // each reads a page
				s.holds[i].Renew(at)
			}
		}
	}
}

// portion is how many buckets of streams this tick renews. Each hold must be renewed once in an
// eighth of its length, even if ticks are late. So all buckets have their turn within the shortest
// eighth less two ticks, or within half of it if that is longer. A hold of 10 s, the shortest that
// a policy may have, has eighths of little more than a tick: each tick renews all buckets.
func (p *plugin) portion(monotonic int64) int {
	all, since := len(streams.buckets), monotonic-p.renewedNs
	p.renewedNs = monotonic
	eighth := p.holdNs / limit.HoldParts
	if round := max(eighth/2, eighth-2*tickMs*1e6); since < round {
		return int(since*int64(all)/round) + 1 // fits: it is no more than all
	}
	return all
}

// shortestHold is the shortest of the rules' holds, 0 if none holds.
func shortestHold(rules []policy.Rule) (ns int64) {
	for i := range rules {
		if r := &rules[i]; r.Holds() && r.Mode != policy.ModeOff && (ns == 0 || r.HoldNs < ns) {
			ns = r.HoldNs
		}
	}
	return ns
}
