package engine

import (
	"math"

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

// Why a rule denied, or let through what it could not decide.
const (
	ReasonLimit      Reason = "limit"         // a window has no room
	ReasonMissingKey Reason = "missing_key"   // the request lacks a part of the key
	ReasonFull       Reason = "on_full"       // the key's page is full
	ReasonError      Reason = "on_error"      // a call into the proxy failed
	ReasonContention Reason = "on_contention" // compare-and-swap retries ran out
	ReasonNotAsked   Reason = "not_asked"     // a shadow rule of a request that another rule denied
)

// attempt is one rule's part in one request.
type attempt struct {
	rule    *rule
	key     key
	limits  state.Key // the key with the limits that hold for it
	cost    uint32
	ahead   uint32 // units that enforced rules before this one count in the same record
	shadow  bool   // denials are reported, not enforced
	free    bool   // nothing is counted: no limits, or an unlimited key
	tooLong bool   // a value was too long for an expression

	entry   state.Entry
	known   bool   // entry holds what the key has used
	counted bool   // the hit is in the store
	allowed bool   //
	reason  Reason // of a denial, or of a pass without a count
	passNs  int64  // of a denial: when the hit would pass, or limit.Never

	hashed  []byte         // what the key's stable hash is taken of
	shifted []limit.Window // windows with the key's jitter
}

// begin takes key and cost from the request; false: the rule does not apply.
func (t *attempt) begin(r *rule, req *request) bool {
	t.start(r)
	complete := t.key.read(r.key, req)
	if !complete && r.policy.MissingKey == policy.MissingSkip {
		return false
	}
	t.cost = r.cost.read(req)
	t.subject(req)
	if !complete && r.policy.MissingKey == policy.MissingDeny {
		t.deny(ReasonMissingKey, limit.Never)
	}
	return true
}

func (t *attempt) start(r *rule) {
	t.rule, t.known, t.counted, t.allowed, t.reason, t.ahead = r, false, false, true, "", 0
}

// subject finds out which limits hold for the key, and whether they are
// enforced on it.
func (t *attempt) subject(req *request) {
	r := t.rule
	t.limits = state.Key{Bytes: t.key.bytes, Windows: r.windows, Rule: r.windows}
	t.free = r.table == nil
	if o := r.override(&t.key, req); o != nil {
		t.free = t.free || o.unlimited
		t.limits.Windows = o.windows
	}
	t.shadow = r.policy.Mode == policy.ModeShadow
	if !r.jitters && r.policy.EnforcePercent >= 100 {
		return
	}
	t.hashed = append(append(t.hashed[:0], r.identity...), t.key.bytes...)
	jitter, percent := state.StableHash(t.hashed)
	t.shadow = t.shadow || percent%100 >= uint64(r.policy.EnforcePercent)
	if r.jitters && !t.free {
		t.shifted = t.shifted[:0]
		for _, w := range t.limits.Windows {
			t.shifted = append(t.shifted, w.Shifted(w.KeyShift(jitter)))
		}
		t.limits.Windows = t.shifted
	}
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
	if !t.free && t.reason != ReasonMissingKey {
		t.judge(t.rule.table.Read(&t.entry, t.limits, now), now)
	}
}

// recheck is check after somebody else wrote first. By then the rules before
// this one have counted.
func (t *attempt) recheck(now int64) {
	t.ahead = 0
	t.judge(t.rule.table.Reread(&t.entry, t.limits, now), now)
}

// judge decides by what was read.
func (t *attempt) judge(read state.Status, now int64) {
	r := t.rule
	t.allowed, t.reason, t.known = true, "", false
	if read != state.OK {
		r.metrics.Errors++
		t.fail(ReasonError, r.policy.OnError, now)
		return
	}
	t.known = true
	if t.entry.Rebased {
		r.metrics.ClockRebased++
	}
	passNs := t.passes()
	if passNs == limit.Never || passNs > t.entry.Now {
		t.deny(ReasonLimit, passNs)
	}
	if r.policy.OnFull == policy.FullDeny && t.cost > 0 && passNs != limit.Never && !t.entry.HasRecord() {
		if vacantNs := r.table.Earliest(&t.entry); vacantNs == limit.Never || vacantNs > max(passNs, t.entry.Now) {
			t.deny(ReasonFull, vacantNs)
		}
	}
}

// passes is when the hit passes with those that go before it.
func (t *attempt) passes() int64 {
	return t.rule.table.Check(&t.entry, min(t.cost, math.MaxUint32-t.ahead)+t.ahead)
}

// persist writes what check had to move to the present for a request that is
// denied, by this rule or another: a wild clock must not lock the key out, and
// the wait that was named begins now.
func (t *attempt) persist() {
	if t.known {
		t.rule.table.Persist(&t.entry)
	}
}

func (t *attempt) evicts() bool { return t.rule.policy.OnFull == policy.FullInherit }

// commit counts the hit that check has passed. Where somebody else wrote first
// it checks again, and may deny after all.
func (t *attempt) commit(now int64) {
	r := t.rule
	if t.free || t.reason != "" || t.cost == 0 {
		return
	}
	for retries := 0; t.allowed && t.reason == ""; retries++ {
		switch r.table.Commit(&t.entry, t.cost, t.evicts()) {
		case state.OK:
			t.counted = true
			t.stored()
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
			t.recheck(now)
		default:
			r.metrics.Errors++
			t.fail(ReasonError, r.policy.OnError, now)
		}
	}
}

// stored notes what a commit did beside counting.
func (t *attempt) stored() {
	m := &t.rule.metrics
	if t.entry.Evicted {
		m.Evicted++
	}
	m.WindowResets += uint64(t.entry.Resets)
}

// countDenied counts a hit that the rule has denied by its limits, where the
// rule asks for that; the wait then is the one from the new count. A hit that
// cannot be stored stays uncounted: it was denied.
func (t *attempt) countDenied(now int64) (counted bool) {
	r := t.rule
	if !r.policy.CountDenied || t.reason != ReasonLimit || t.cost == 0 {
		return false
	}
	for range maxRetries {
		status := r.table.Commit(&t.entry, t.cost, t.evicts())
		if status == state.OK {
			t.stored()
			if passNs := t.passes(); passNs > t.entry.Now {
				t.passNs = passNs
			}
			return true
		}
		if status == state.Full { // a newcomer that no room is made for, and still denied
			r.metrics.Full++
			return false
		}
		if status != state.Mismatch || r.table.Reread(&t.entry, t.limits, now) != state.OK {
			r.metrics.Errors++
			t.known = false
			return false
		}
		r.metrics.CASRetries++
	}
	r.metrics.Contention++
	t.known = false
	return false
}

// refund undoes commit.
func (t *attempt) refund(now int64) {
	if !t.counted {
		return
	}
	t.counted = false
	if !t.rule.table.Refund(&t.entry, now, t.cost) {
		t.rule.metrics.NotRefunded++
	}
}

// window returns the policy's limit i of the rule as it holds for the key, and
// what it has counted.
func (t *attempt) window(i int) (*limit.Window, *limit.Usage) {
	at := t.rule.order[i]
	return &t.limits.Windows[at], t.rule.table.Usage(&t.entry, at)
}
