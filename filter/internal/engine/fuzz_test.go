package engine

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// FuzzDecide decides random requests under random policies and asks, after
// each, what must hold of its verdict.
func FuzzDecide(f *testing.F) {
	dice := rand.NewChaCha8([32]byte{})
	for range 200 {
		data := make([]byte, 600)
		dice.Read(data)
		f.Add(data)
	}
	requests := 0
	f.Fuzz(func(t *testing.T, data []byte) { requests += decideAll(t, hosttest.Tape(data)) })
	if requests > 0 { // none where other processes do the fuzzing
		f.Logf("%d random requests under random policies, each verdict judged", requests)
	}
}

func decideAll(t *testing.T, in hosttest.Tape) (requests int) {
	small := in.Next()%2 == 1
	backwards := !small && in.Next()%2 == 1
	rules := in.Rules(small)
	p := hosttest.New()
	p.Clock = 1_700_000_000_123_456_789
	w := watch{t, p, compileJSON(t, p, rules), rules, model{}}
	for step := 0; step < 60 && len(in) > 0; step++ {
		in.Request(p, backwards)
		if !backwards { // a stolen write leaves a wild clock's record to the next request
			p.Steal = max(0, in.Next()-250)
		}
		before, rebased := maps.Clone(p.Store), w.rebased()
		v := w.e.Decide()
		p.Steal = 0
		w.said(v)
		if v.Allowed {
			require.LessOrEqual(t, w.changes(before), len(v.Subjects))
		} else {
			if w.rebased() == rebased {
				require.LessOrEqual(t, w.changes(before), countedDenials(v), "a denied request wrote: %s", rules)
			}
			w.waits(v)
		}
		if !small {
			w.agrees(v)
		}
		requests++
	}
	return requests
}

type watch struct {
	t     *testing.T
	p     *proxy
	e     *Engine
	rules string
	model model
}

func (w *watch) rebased() (n uint64) {
	for i := range w.e.rules.List {
		n += w.e.rules.List[i].Metrics.ClockRebased
	}
	return n
}

// said: whatever was in the request, report and fields are well formed.
func (w *watch) said(v *decide.Verdict) {
	require.True(w.t, json.Valid([]byte(report(v))), "%q", report(v))
	w.e.policy.Headers = policy.HeadersBoth
	for _, f := range fields(policy.HeadersBoth, v) {
		require.False(w.t, strings.ContainsAny(f[1], "\r\n\x00"), "%q", f)
		require.NotContains(w.t, f[1], "-", "%s: no number is below zero", f[0])
	}
}

// changes is how many pages are not what they were.
func (w *watch) changes(before map[string]cell) (n int) {
	for k, c := range hosttest.Pages(w.p.Store) {
		if string(before[k].Value) != string(c.Value) {
			n++
		}
	}
	return n
}

// countedDenials is how many rules count the request although they deny it, or block its key.
func countedDenials(v *decide.Verdict) (n int) {
	for i := range v.Subjects {
		t := v.Subjects[i]
		p := t.Rule.Policy
		begins := t.Reason() == "limit" && p.Block != nil
		prolongs := t.Reason() == "blocked" && p.Block.Prolong
		counts := (t.Reason() == "limit" || t.Reason() == "blocked") && p.CountDenied
		if !t.Shadow && (begins || prolongs || counts) {
			n++
		}
	}
	return n
}

// waits: after the wait that a denial names the same request passes, a
// nanosecond before it does not; where it names none, it never does.
func (w *watch) waits(v *decide.Verdict) {
	w.t.Helper()
	if v.RetryNs == limit.Never {
		require.False(w.t, w.passes(w.p.Clock+limit.MaxPeriodNs), "a wait helps: %s", w.rules)
		return
	}
	if v.RetryNs >= 1<<61 { // a bucket so deep in debt that its wait, 73 years and more, is cut
		return
	}
	at := w.p.Clock + v.RetryNs
	require.Greater(w.t, at, w.p.Clock, w.rules)
	require.True(w.t, w.passes(at), "%d is too short a wait: %s", at-w.p.Clock, w.rules)
	require.False(w.t, w.passes(at-1), "%d is too long a wait: %s", at-w.p.Clock, w.rules)
}

// passes reports whether the request would pass at another time, if nobody
// else came until then.
func (w *watch) passes(at int64) bool {
	later := *w.p
	later.Clock, later.Store = at, maps.Clone(w.p.Store)
	return compileJSON(w.t, &later, w.rules).Decide().Allowed
}

// agrees: the verdict is the one of the model.
func (w *watch) agrees(v *decide.Verdict) {
	allowed, deniedBy, retryNs := w.model.decide(v.Subjects, w.p.Clock)
	require.Equal(w.t, allowed, v.Allowed, w.rules)
	if !allowed {
		require.Equal(w.t, deniedBy, v.DeniedBy().Name, w.rules)
		require.Equal(w.t, retryNs, v.RetryNs, w.rules)
	}
}

// model decides as the engine must where no page is ever full: one record a key in a plain map,
// by the arithmetic of package limit, whose own tests compare that with references.
type model map[modelKey]*modelRecord

type modelKey struct{ rule, key string }

type modelRecord struct {
	last    int64 // when it was last written
	rebased bool  // a wild clock had written it
	usages  []limit.Usage
}

func keyOf(t *decide.Subject) modelKey { return modelKey{t.Rule.Policy.Name, string(t.Key.Bytes)} }

// windowOf is one of the key's, with room for as many log entries as the rule's.
func windowOf(t *decide.Subject, i int) *limit.Window {
	w := t.CountedKey.Windows[i]
	w.Units = t.Rule.Finder.Windows[i].Units
	return &w
}

// record returns a copy of what the key has used, as it stands at the instant
// it is counted at.
func (m model) record(t *decide.Subject, now int64) modelRecord {
	r := modelRecord{last: now, usages: make([]limit.Usage, len(t.CountedKey.Windows))}
	if have := m[keyOf(t)]; have != nil {
		r.last, r.usages = have.last, slices.Clone(have.usages)
	}
	before, ahead := r.last, r.last
	r.rebased = ahead-now > 10_000_000_000
	if r.rebased {
		before = now
	}
	r.last = max(before, now)
	for i := range r.usages {
		w, u := windowOf(t, i), &r.usages[i]
		u.Log = slices.Clone(u.Log)
		if r.rebased {
			w.SetBack(u, ahead, now)
		}
		w.Roll(u, before, r.last)
	}
	return r
}

// check returns when a hit passes, limit.Never, or a time not after the record's.
func (r *modelRecord) check(t *decide.Subject) int64 {
	at := r.last
	for i := range r.usages {
		if at == limit.Never || t.Unlimited {
			break
		}
		if passNs := windowOf(t, i).Check(&r.usages[i], r.last, t.Cost); passNs == limit.Never || passNs > at {
			at = passNs
		}
	}
	return at
}

// blocked reports whether the key is blocked.
func (r *modelRecord) blocked(t *decide.Subject) bool {
	for i := range r.usages {
		if windowOf(t, i).Algorithm == limit.Block && r.usages[i].EndNs != 0 {
			return true
		}
	}
	return false
}

// add counts a hit.
func (m model) add(t *decide.Subject, r modelRecord) {
	if t.Cost == 0 || t.Unlimited {
		return
	}
	for i := range r.usages {
		windowOf(t, i).Add(&r.usages[i], r.last, t.Cost)
	}
	m[keyOf(t)] = &r
}

// denies does what a rule does that denies, and reports when the hit passes.
func (m model) denies(t *decide.Subject, r modelRecord, passNs int64) int64 {
	if t.Reason() == "missing_key" {
		return limit.Never
	}
	if p := t.Rule.Policy; t.Cost > 0 && (p.CountDenied || p.Block != nil && (p.Block.Prolong || !r.blocked(t))) {
		for i := range r.usages {
			windowOf(t, i).Deny(&r.usages[i], r.last)
		}
		m[keyOf(t)] = &r
		if p.CountDenied {
			m.add(t, r)
		}
		return r.check(t)
	}
	if r.rebased {
		m[keyOf(t)] = &r // or the clock would lock the key out
	}
	return passNs
}

// decide returns whether a request that made these attempts passes, the first rule
// that denies it, and how long it has to wait.
func (m model) decide(attempts []*decide.Subject, now int64) (allowed bool, deniedBy string, retryNs int64) {
	each := func(shadow bool, f func(t *decide.Subject, r modelRecord, passNs int64)) {
		for _, t := range attempts {
			if t.Shadow == shadow {
				r := m.record(t, now)
				f(t, r, r.check(t))
			}
		}
	}
	passes := func(t *decide.Subject, r modelRecord, passNs int64) bool {
		return t.Reason() != "missing_key" && passNs != limit.Never && passNs <= r.last
	}
	each(false, func(t *decide.Subject, r modelRecord, passNs int64) {
		if passes(t, r, passNs) {
			return
		}
		passNs = m.denies(t, r, passNs)
		if deniedBy == "" {
			deniedBy = t.Rule.Policy.Name
		}
		if passNs == limit.Never || retryNs == limit.Never {
			retryNs = limit.Never
		} else {
			retryNs = max(retryNs, passNs-now)
		}
	})
	if deniedBy != "" {
		each(false, func(t *decide.Subject, r modelRecord, _ int64) {
			if r.rebased && t.Reason() != "missing_key" {
				m[keyOf(t)] = &r
			}
		})
		return false, deniedBy, retryNs
	}
	for _, shadow := range []bool{false, true} {
		each(shadow, func(t *decide.Subject, r modelRecord, passNs int64) {
			if passes(t, r, passNs) {
				m.add(t, r)
			} else {
				m.denies(t, r, passNs)
			}
		})
	}
	return true, "", 0
}
