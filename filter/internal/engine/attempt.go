package engine

import (
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// maxRetries bounds the compare-and-swaps of one hit: a hot key under 16
// workers needs about 200 for a chance of 10⁻⁹ to run out.
const maxRetries = 256

// failureRetryNs is the wait that a denial for want of a decision asks for.
const failureRetryNs = 1_000_000_000

// Reason says why a rule did not decide by its limits alone.
type Reason string

const (
	ReasonLimit      Reason = "limit"         // a window has no room
	ReasonMissingKey Reason = "missing_key"   // the request lacks a part of the key
	ReasonFull       Reason = "on_full"       // the key's bucket is full
	ReasonError      Reason = "on_error"      // a call into the proxy failed
	ReasonContention Reason = "on_contention" // compare-and-swap retries ran out
)

// attempt is one rule's part in one request.
type attempt struct {
	rule    *rule
	key     key
	cost    uint32
	entry   state.Entry
	known   bool   // entry holds what the key has used
	counted bool   // the hit is in the store
	allowed bool   //
	reason  Reason // of a denial, or of a pass without a count
	passNs  int64  // of a denial: when the hit would pass, or limit.Never
}

// begin takes key and cost from the request; false: the rule does not apply.
func (t *attempt) begin(r *rule, req *request) bool {
	t.rule, t.known, t.counted, t.allowed, t.reason = r, false, false, true, ""
	if !t.key.read(r.key, req) {
		switch r.policy.MissingKey {
		case policy.MissingSkip:
			return false
		case policy.MissingDeny:
			t.deny(ReasonMissingKey, limit.Never)
			return true
		}
	}
	t.cost = r.cost.read(req)
	return true
}

func (t *attempt) deny(why Reason, passNs int64) {
	t.allowed, t.reason, t.passNs = false, why, passNs
}

// fail ends the attempt without a decision of its own.
func (t *attempt) fail(why Reason, then policy.Failure, now int64) {
	t.known = false // what the entry says may have a hit in it that was never stored
	if then == policy.FailDeny {
		t.deny(why, now+failureRetryNs)
	} else {
		t.allowed, t.reason = true, why
	}
}

// check reads what the key has used and decides, writing nothing.
func (t *attempt) check(now int64) {
	r := t.rule
	if r.table == nil || t.reason == ReasonMissingKey {
		return
	}
	t.allowed, t.reason, t.known = true, "", false
	if r.table.Read(&t.entry, t.key.bytes, now) != state.OK {
		r.metrics.Errors++
		t.fail(ReasonError, r.policy.OnError, now)
		return
	}
	t.known = true
	if t.entry.Rebased {
		r.metrics.ClockRebased++
	}
	passNs := r.table.Check(&t.entry, r.windows, t.cost)
	if passNs == limit.Never || passNs > t.entry.Now {
		t.deny(ReasonLimit, passNs)
	}
	if r.policy.OnFull == policy.FullDeny && t.cost > 0 && passNs != limit.Never && t.newcomer() {
		if vacantNs := r.table.Earliest(&t.entry); vacantNs > max(passNs, t.entry.Now) {
			t.deny(ReasonFull, vacantNs)
		}
	}
}

// newcomer reports whether the key may be without a record: one that has a
// live record has used something, and not by the floor.
func (t *attempt) newcomer() bool {
	for i := range t.rule.windows {
		if t.rule.table.Usage(&t.entry, i).Used > 0 {
			return t.entry.FromFloor
		}
	}
	return true
}

// persist writes what check had to move to the present for a hit that is
// denied: a wild clock must not lock the key out.
func (t *attempt) persist() {
	if t.known && !t.allowed {
		t.rule.table.Persist(&t.entry)
	}
}

// commit counts the hit that check has passed. Where somebody else wrote first
// it checks again, and may deny after all.
func (t *attempt) commit(now int64) {
	r := t.rule
	if r.table == nil || t.reason != "" || t.cost == 0 {
		return
	}
	for retries := 0; t.allowed && t.reason == ""; retries++ {
		switch r.table.Commit(&t.entry, r.windows, t.cost, r.policy.OnFull == policy.FullInherit) {
		case state.OK:
			t.counted = true
			if t.entry.Evicted {
				r.metrics.Evicted++
			}
			return
		case state.Full:
			t.reason = ReasonFull // on_full allows: where it denies, check has
		case state.Mismatch:
			if retries == maxRetries {
				r.metrics.Contention++
				t.fail(ReasonContention, r.policy.OnContention, now)
				return
			}
			r.metrics.CASRetries++
			t.check(now)
			t.persist()
		default:
			r.metrics.Errors++
			t.fail(ReasonError, r.policy.OnError, now)
		}
	}
}

// takeBack undoes commit.
func (t *attempt) takeBack(now int64) {
	if !t.counted {
		return
	}
	t.counted = false
	if !t.rule.table.TakeBack(&t.entry, t.key.bytes, now, t.cost) {
		t.rule.metrics.NotTakenBack++
	}
}

// window returns the policy's limit i of the rule and what it has counted.
func (t *attempt) window(i int) (limit.Window, limit.Usage) {
	at := t.rule.order[i]
	return t.rule.windows[at], t.rule.table.Usage(&t.entry, at)
}
