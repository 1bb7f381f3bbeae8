package engine

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/match"
	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// maxRetries bounds the compare-and-swaps of one hit: a hot key under 16
// workers needs about 200 for a chance of 10⁻⁹ to run out.
const maxRetries = 256

// failureRetryNs is the wait that a denial for want of a decision asks for.
const failureRetryNs = 1_000_000_000

// Reason is why a rule denied, or allowed without counting.
type Reason string

// The reasons.
const (
	ReasonLimit      Reason = "limit"          // a window has no room
	ReasonMissingKey Reason = "missing_key"    // the request lacks a key part
	ReasonFull       Reason = "on_full"        // the key's page is full
	ReasonError      Reason = "on_error"       // a call into the proxy failed
	ReasonContention Reason = "on_contention"  // compare-and-swap retries ran out
	ReasonNotAsked   Reason = "not_asked"      // a shadow rule of a request that another rule denied
	ReasonSilent     Reason = "on_unavailable" // the quota service is silent
)

// Attempt is one rule applied to one request. Other packages only read it.
type Attempt struct {
	policy.Subject
	Cost           uint32
	CostUnreadable bool // the cost is the greatest, because the request does not say it in plain decimals, or not once
	Known          bool // the key's usage is known
	Allowed        bool
	Reason         Reason // of a denial, or of a pass without a count
	Pending        bool   // the quota service must be asked

	rule    *rule
	limits  state.Key // the key with the limits that hold for it
	ahead   uint32    // units that enforced rules before this one count in the same record
	entry   state.Entry
	counted bool  // the hit is in the store
	passNs  int64 // of a denial: when the hit would pass, or limit.Never

	shared  []limit.Window // this proxy's share of the limits
	unnamed namedMetrics
	leased  *leased // nil until the attempt is of a rule of scope cluster
}

// Rule returns the rule.
func (a *Attempt) Rule() *policy.Rule { return a.rule.policy }

// OverrideName returns the name of the override that holds, empty where none does or
// it has no name.
func (a *Attempt) OverrideName() string {
	if a.Override < 0 {
		return ""
	}
	return a.rule.policy.Overrides[a.Override].Name
}

// Now returns the instant at which the key is counted: the request's, or that
// of the key's record where that is later.
func (a *Attempt) Now() int64 { return a.entry.Now }

// Window returns the rule's limit i as it holds for the key, and its usage.
func (a *Attempt) Window(i int) (*limit.Window, *limit.Usage) {
	at := a.rule.subjects.Order[i]
	return &a.limits.Windows[at], a.rule.units.usage(a, at)
}

// Tightest returns the index of the rule's limit with least units left.
func (a *Attempt) Tightest() int {
	best, lowest := 0, uint32(0)
	limited := false
	for i := range a.rule.subjects.Order {
		w, u := a.Window(i)
		if w.Unlimited {
			continue
		}
		if left := w.Remaining(u, a.entry.Now); !limited || left < lowest {
			best, lowest, limited = i, left, true
		}
	}
	return best
}

// begin reads key and cost from the request, and reports whether the rule applies.
func (a *Attempt) begin(r *rule, req *request.Request) bool {
	a.start(r)
	complete := match.ReadKey(&a.Key, r.key, req)
	if !complete && r.policy.MissingKey == policy.MissingSkip {
		return false
	}
	if a.Cost, a.CostUnreadable = r.cost.Read(req); a.CostUnreadable {
		r.metrics.CostUnreadable++
	}
	a.subject()
	if !complete && r.policy.MissingKey == policy.MissingDeny {
		a.deny(ReasonMissingKey, limit.Never)
	}
	return true
}

func (a *Attempt) start(r *rule) {
	a.rule, a.Known, a.counted, a.Allowed, a.Reason, a.ahead = r, false, false, true, "", 0
	a.Pending = false
}

// subject finds the limits that hold for the key, and whether they are enforced
// on it.
func (a *Attempt) subject() {
	r := a.rule
	r.subjects.Find(&a.Subject)
	a.limits = state.Key{Bytes: a.Key.Bytes, Windows: a.Windows, Rule: r.subjects.Windows}
	if r.leases != nil && !a.Unlimited {
		r.leases.begin(a)
	}
}

func (a *Attempt) deny(why Reason, passNs int64) {
	a.Allowed, a.Reason, a.passNs = false, why, passNs
}

// fail ends an attempt that could not decide.
func (a *Attempt) fail(why Reason, then policy.Failure, now int64) {
	a.Known = false // the entry may contain a hit that was never stored
	if then == policy.FailDeny {
		a.deny(why, now+failureRetryNs)
	} else {
		a.Allowed, a.Reason = true, why
	}
}

// check finds out whether the units are free, and takes none.
func (a *Attempt) check(now int64) {
	if !a.Unlimited && a.Reason != ReasonMissingKey {
		a.judge(a.rule.units.read(a, now, false), now)
	}
}

// recheck is check after another worker wrote first. By then the rules before
// this one have counted.
func (a *Attempt) recheck(now int64) {
	a.ahead = 0
	a.judge(a.rule.units.read(a, now, true), now)
}

// judge decides by what the source has read.
func (a *Attempt) judge(read outcome, now int64) {
	a.Allowed, a.Reason, a.Known, a.Pending = true, "", true, read == pending
	if a.rule.leases != nil {
		a.Known = a.rule.leases.knows(a)
	}
	if read != failed && a.entry.Rebased {
		a.rule.metrics.ClockRebased++
	}
	switch read {
	case short:
		a.deny(ReasonLimit, a.passNs)
	case full:
		a.deny(ReasonFull, a.passNs)
	case failed:
		a.rule.metrics.Errors++
		a.fail(ReasonError, a.rule.policy.OnError, now)
	case crowded:
		a.rule.metrics.Contention++
		a.fail(ReasonContention, a.rule.policy.OnContention, now)
	case silent:
		a.rule.metrics.Unavailable++
		then := policy.FailAllow
		if a.rule.policy.OnUnavailable == policy.UnavailableDeny {
			then = policy.FailDeny
		}
		a.fail(ReasonSilent, then, now)
	default: // granted, pending
	}
}

// persist stores what check has moved to the present, for a request that this rule
// or another one denied: a wild clock must not lock the key out, and the wait in
// the verdict begins now.
func (a *Attempt) persist() {
	if a.Known && a.rule.leases == nil {
		a.rule.table.Persist(&a.entry)
	}
}

func (a *Attempt) evicts() bool { return a.rule.policy.OnFull == policy.FullInherit }

// commit counts the hit that check has passed. Where another worker wrote first
// it checks again, and may deny after all.
func (a *Attempt) commit(now int64) {
	if !a.Unlimited && a.Reason == "" && a.Cost > 0 && a.Allowed {
		a.finish(a.rule.units.take(a), now)
	}
}

// finish handles what became of taking the units, which it does again as long as
// another worker writes first and the hit still passes.
func (a *Attempt) finish(taken outcome, now int64) {
	r := a.rule
	for retries := 0; ; retries++ {
		switch taken {
		case granted:
			a.counted = true
			return
		case full:
			a.Reason = ReasonFull // on_full allows: where it denies, check has
		case raced:
			if retries == maxRetries {
				r.metrics.Contention++
				a.fail(ReasonContention, r.policy.OnContention, now)
				return
			}
			r.metrics.CASRetries++
			if a.recheck(now); a.Allowed && a.Reason == "" && !a.Pending {
				taken = r.units.take(a)
				continue
			}
		default:
			r.metrics.Errors++
			a.fail(ReasonError, r.policy.OnError, now)
		}
		return
	}
}

// stored adds a commit's side effects to the metrics.
func (a *Attempt) stored() {
	m := &a.rule.metrics
	if a.entry.Evicted {
		m.Evicted++
	}
	m.WindowResets += uint64(a.entry.Resets)
}

// countDenied counts a hit that the rule has denied by its limits, where the
// rule asks for that; the wait then is the one from the new count. A hit that
// cannot be stored stays uncounted: it was denied.
func (a *Attempt) countDenied(now int64) (counted bool) {
	r := a.rule
	if !r.policy.CountDenied || a.Reason != ReasonLimit || a.Cost == 0 || r.leases != nil {
		return false // the quota service counts what it denies itself
	}
	for range maxRetries {
		switch r.units.take(a) {
		case granted:
			return true
		case full: // a newcomer without a slot, and still denied
			r.metrics.Full++
			return false
		case raced:
			passNs := a.passNs // the wait stays the one that was found first
			if r.units.read(a, now, true) == failed {
				r.metrics.Errors++
				a.Known = false
				return false
			}
			a.passNs = passNs
			r.metrics.CASRetries++
		default:
			r.metrics.Errors++
			a.Known = false
			return false
		}
	}
	r.metrics.Contention++
	a.Known = false
	return false
}

// refund undoes commit.
func (a *Attempt) refund(now int64) {
	if !a.counted {
		return
	}
	a.counted = false
	if !a.rule.units.refund(a, now) {
		a.rule.metrics.NotRefunded++
	}
}
