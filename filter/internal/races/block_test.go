package races

import (
	"fmt"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
)

const blockNs = 5 * second

// try is what a rule with a block has decided about a request.
type try struct {
	rule, user       string
	reason           string // of a denial by the rule
	allowed          bool   // by all rules
	beganNs, knownNs int64  // when the request came, and when it was decided
}

// noteTry records what rules with a block have decided about a request.
func (k *worker) noteTry(r request, v *decide.Verdict) {
	for _, s := range v.Subjects {
		if s.Rule.Policy.Block == nil {
			continue
		}
		rule := s.Rule.Policy.Name
		if s.Rule.Source != nil && !s.Rule.Policy.Holds() && strings.HasPrefix(rule, "proxy") {
			rule = fmt.Sprint(rule, k.id/2) // each proxy blocks by itself
		}
		k.world.tries = append(k.world.tries, try{rule, r.user, s.Reason(), v.Allowed, r.beganNs, k.world.now})
	}
}

// judgeBlocks is an exact limiter's word on blocks: after a denial, nobody passes for as long as a block lasts.
// Nobody is told of a block that no denial has begun in the time before.
func (w *world) judgeBlocks() error {
	for i := range w.tries {
		t := &w.tries[i]
		switch t.reason {
		case "limit":
			if other := w.passedAfter(t); other != nil {
				return fmt.Errorf("rule %s, user %s: a request that came %d ms after a denial passes", t.rule, t.user,
					(other.beganNs-t.knownNs)/ms)
			}
		case "blocked":
			w.scenario.blocked++
			if !w.lost && !w.isBegun(t) {
				return fmt.Errorf("rule %s, user %s: a request is blocked, and none was denied before", t.rule, t.user)
			}
		}
	}
	return nil
}

// passedAfter returns a request that came when the denial was known, and passed before the block had
// ended.
func (w *world) passedAfter(denial *try) *try {
	for i := range w.tries {
		t := &w.tries[i]
		isLater := t.beganNs > denial.knownNs && t.knownNs < denial.beganNs+blockNs
		if isLater && t.allowed && t.rule == denial.rule && t.user == denial.user {
			return t
		}
	}
	return nil
}

// isBegun reports whether some request was denied when this one was, or less than a block before. The
// service may also have denied one that could not wait for that: it does not say when.
func (w *world) isBegun(blocked *try) bool {
	for i := range w.tries {
		t := &w.tries[i]
		switch isSame := t.rule == blocked.rule && t.user == blocked.user; {
		case !isSame || t.beganNs > blocked.knownNs:
		case t.reason == "on_unavailable", t.reason == "limit" && blocked.beganNs < t.knownNs+blockNs:
			return true
		}
	}
	return false
}

// blocks returns the races for keys that are blocked once they were denied.
func blocks() []scenario {
	blocking := func(rule, more string) string {
		return strings.Replace(rule, `"limits"`, `"block":"5s"`+more+`,"limits"`, 1)
	}
	counts := blocking(clusterRule("r", "u", `"6/1s"`), `,"count_denied":true`)
	inProxy := `{"name":"proxy","key":[{"header":"u"}],"limits":["3/1h"],"block":"5s"}`
	list := []scenario{
		{name: "a block", rules: blocking(clusterRule("r", "u", `"6/1h"`), "")},
		{name: "a block, messages lost", rules: blocking(clusterRule("r", "u", `"6/1h"`), ""), faults: true},
		{name: "a block that counts denials", rules: counts, faults: true},
		{name: "a block of failed logins", rules: blocking(settleRule(`"3/1h"`), ""), slots: 3},
		{name: "a block of failed logins, messages lost", rules: blocking(settleRule(`"3/1h"`), ""), slots: 3, faults: true},
		{name: "blocks of both scopes", rules: inProxy + "," + blocking(clusterRule("r", "u", `"5/1h"`), "")},
	}
	var script []request
	for n := range 5 {
		script = append(script, request{user: "a", charged: 1, atNs: int64(n) * 600 * ms})
	}
	for i := range list {
		list[i].blocks = true
		list[i].scripts = [workers][]request{script, script, script, script}
		list[i].times = []int64{15 * ms, 1200 * ms, 2 * second}
	}
	return list
}
