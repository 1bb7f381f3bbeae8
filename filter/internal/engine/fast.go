package engine

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/match"
	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// The fast path of a request is in this file: state.Fast and state.FastLease read and
// write the record, and where one rule alone decides, nothing else of the engine runs.
//
// Its law: the verdict, the metrics, shared data and the calls to the host are
// those of the general path. Where it declines, it has written nothing, and the
// general path goes on with what was read.

// canBeAlone reports whether decideAlone may decide requests that the rule alone
// is for. decideAlone goes to shared data itself, past rule.units: it knows records and
// leases, and no other source.
func (r *rule) canBeAlone() bool {
	p := r.policy
	serves := r.fast != nil || r.leases != nil && p.Lease != quota.LeaseOff && !r.jitters
	return serves && match.IsFast(r.key) && p.Cost.Header == "" && p.Cost.Query == "" && p.Cost.Fixed > 0 && len(p.Costs) == 0 &&
		len(p.Overrides) == 0 &&
		p.Mode == policy.ModeEnforce && p.EnforcePercent >= 100 && !p.CountDenied && p.OnFull != policy.FullDeny
}

// matchFast is match for a policy of one rule that can be alone and that every
// request is for; nil: ask match.
func (e *Engine) matchFast() []*Attempt {
	if len(e.rules) != 1 || len(e.exempt) > 0 || !e.rules[0].alone || !e.rules[0].always {
		return nil
	}
	a := e.attempt(0)
	if !a.beginFast(&e.rules[0], &e.request) {
		return nil
	}
	a.TooLong = false
	return e.attempts[:1]
}

// beginFast is begin for a rule that can be alone; false: ask begin.
func (a *Attempt) beginFast(r *rule, req *request.Request) bool {
	if !a.Key.ReadFast(r.key, req) {
		return false
	}
	a.rule, a.Known, a.counted, a.Allowed, a.Reason, a.ahead, a.Pending = r, false, false, true, "", 0, false
	a.Cost, a.CostUnreadable, a.Override, a.Shadow, a.Unlimited, a.plain, a.alone = r.policy.Cost.Fixed, false, -1, false, false, true, true
	a.limits = state.Key{Bytes: a.Key.Bytes, Windows: r.windows, Rule: r.windows}
	if r.leases != nil {
		r.leases.begin(a)
	}
	return true
}

// decideAlone is decide for one attempt that beginFast has begun.
func (e *Engine) decideAlone(attempts []*Attempt, now int64) {
	a, v := attempts[0], &e.verdict
	r := a.rule
	if r.leases != nil {
		e.decideLeased(attempts, now)
		return
	}
	passNs, ok := r.fast.Read(&a.entry, a.Key.Bytes, now, a.Cost)
	if !ok {
		a.plain = false // so that records.read does not try the fast path again
		e.decide(attempts, now)
		return
	}
	v.Now, v.Attempts = now, attempts
	a.fast, a.Known = true, true
	if passNs > a.entry.Now {
		a.Allowed, a.Reason, a.passNs = false, ReasonLimit, passNs
		v.Allowed, v.RetryNs = false, passNs-now
		r.metrics.Denied++
		a.noteDenied(now)
		return
	}
	a.passNs = passNs
	status, ok := r.fast.Commit(&a.entry, a.Cost)
	switch a.fast = ok; {
	case !ok:
		a.finish(r.units.take(a), now)
	case status == state.OK:
		a.counted = true
		a.stored()
	case status == state.Mismatch:
		a.finish(raced, now)
	default:
		a.finish(failed, now)
	}
	e.settleAlone(a)
}

// decideLeased is decideAlone for a rule of scope cluster. Where it declines, the
// general path looks at the clock once more.
func (e *Engine) decideLeased(attempts []*Attempt, now int64) {
	a, v := attempts[0], &e.verdict
	s, l := a.rule.leases, a.leased
	if len(e.hands) > 0 {
		e.decide(attempts, now)
		return
	}
	l.nowNs = e.host.Monotonic()
	askNs := l.nowNs + e.Quota.TimeoutNs
	if e.Quota.Silent {
		askNs = 0
	}
	status, due, taken := s.fast.Take(&l.entry, a.Key.Bytes, l.nowNs, a.Cost, askNs)
	if !taken {
		e.decide(attempts, now)
		return
	}
	v.Now, v.Attempts = now, attempts
	a.fast, a.Known, a.passNs = true, true, now
	a.entry.Now, a.entry.Rebased, a.entry.FromFloor = now, false, false
	l.from, l.refill = fromTable, due
	switch status {
	case state.OK:
		a.counted = true
	case state.Mismatch:
		a.finish(raced, now)
	default:
		a.finish(failed, now)
	}
	if v.Pending = a.Pending; !v.Pending {
		e.settleAlone(a)
	}
}

// settleAlone makes the verdict of the attempt that decides alone, and counts it.
func (e *Engine) settleAlone(a *Attempt) {
	if a.counted {
		a.rule.metrics.Allowed++
		a.rule.spikes.count(a, &a.rule.metrics)
		return
	}
	if !a.Allowed {
		a.persist()
	}
	e.verdict.settle()
	e.verdict.count()
}
