package engine

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// tape makes choices out of the fuzzer's bytes.
type tape []byte

func (t *tape) next() int {
	if len(*t) == 0 {
		return 0
	}
	b := (*t)[0]
	*t = (*t)[1:]
	return int(b)
}

func pick[T any](t *tape, from ...T) T { return from[t.next()%len(from)] }

// hostile are texts that a client may send.
var hostile = []string{
	"a", "b", "", "c", "\xff\xfe", "a\x00b", "é", strings.Repeat("k", 10_000), strings.Repeat("\xf0", 300),
	"/", "//", "/v1", "/v1/x?y=1", "v1", "/v1/a#b?c", "?", "*", "%2f..%2f", "api.example.com", "API.Example.Com:443",
	":", "[::1]:80", "[::1", ".example.com", "0", "1", "2", "-1", "99999999999999999999", "1,1", " 1", "1e9", "0x1", "-",
}

// rules writes a random policy's rules. Where some capacity is small, records
// are evicted, and only their limits can be told from outside.
func (t *tape) rules(small bool) string {
	var rules []string
	for i := range 1 + t.next()%3 {
		capacity := 65536
		if small {
			capacity = 1 + t.next()%40
		}
		rules = append(rules, fmt.Sprintf(
			`{"name":"r%d","key":[%s],"match":%s,"missing_key":%q,"limits":[%s],"cost":%s,"capacity":%d,"on_full":%q,"on_contention":"deny"}`,
			i, pick(t, `{"header":"u"}`, ``, `{"header":"u"},"method"`, `"host"`, `{"path":"full"},{"header":"u"}`, `{"path":{"segment":2}}`, `{"client_ip":{}}`),
			pick(t, `{}`, `{}`, `{"methods":["GET"]}`, `{"hosts":["*.example.com"]}`, `{"paths":["/v1*","~/[a-z]*"]}`, `{"headers":{"u":"!"}}`, `{"headers":{"u":"*a"}}`),
			pick(t, "skip", "share", "deny"), t.limits(),
			pick(t, `1`, `2`, `{"header":"c"}`, `{"header":"c","min":0,"max":3}`, `{"header":"c","min":2,"default":3,"max":4}`),
			capacity, pick(t, "inherit", "inherit", "allow", "deny")))
	}
	return strings.Join(rules, ",")
}

func (t *tape) limits() string {
	var limits []string
	for i := range 1 + t.next()%3 {
		algorithm := pick(t, "fixed_window", "fixed_window_per_key")
		offset := ""
		if algorithm == "fixed_window" {
			offset = pick(t, "", "", `,"offset":"700ms"`)
		}
		limits = append(limits, fmt.Sprintf(`{"requests":%d,"per":%q,"algorithm":%q%s}`,
			t.next()%6, []string{"1s", "2500ms", "1m"}[i], algorithm, offset))
	}
	return strings.Join(limits, ",")
}

// request makes the next request and the instant at which it comes.
func (t *tape) request(p *proxy, backwards bool) {
	p.with(":method", pick(t, "GET", "GET", "POST", "\x00"))
	for _, name := range []string{"u", "c", ":path", ":authority"} {
		choice := t.next()
		switch {
		case choice < 100:
		case choice > 250 && name[0] != ':':
			p.headers[name] = []string{pick(t, hostile...), pick(t, hostile...)}
		case choice > 250:
			delete(p.headers, name)
		default:
			p.headers[name] = []string{hostile[choice%len(hostile)]}
		}
	}
	p.client = pick(t, "192.0.2.7:1", "192.0.2.8:1", "[2001:db8::1]:9", "/run/x", "", "x:y:z", "192.0.2.7")
	steps := []int64{0, 0, 0, 1, 1_000_000, 299_999_999, 1_000_000_000, 7_000_000_000, 60_000_000_000}
	if backwards {
		steps = append(steps, -1, -500_000_000, -9_000_000_000, -61_000_000_000, -4_000_000_000_000)
	}
	p.now += pick(t, steps...)
}

// FuzzDecide decides random requests under random policies and asks, after
// each, what must hold of its verdict.
func FuzzDecide(f *testing.F) {
	dice := rand.NewChaCha8([32]byte{})
	for range 200 {
		data := make([]byte, 600)
		dice.Read(data)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) { decideAll(t, tape(data)) })
}

func decideAll(t *testing.T, in tape) {
	small := in.next()%2 == 1
	backwards := !small && in.next()%2 == 1
	rules := in.rules(small)
	p := newProxy()
	p.now = 1_700_000_000_123_456_789
	w := watch{t, p, compileJSON(t, p, rules), rules, model{}, map[admission]uint64{}}
	for step := 0; step < 60 && len(in) > 0; step++ {
		in.request(p, backwards)
		if !backwards { // a stolen write leaves a wild clock's record to the next request
			p.steal = max(0, in.next()-250)
		}
		before, rebased := maps.Clone(p.store), w.rebased()
		v := w.e.Decide()
		p.steal = 0
		w.said(v)
		if v.Allowed {
			w.counted(v, before)
		} else {
			if w.rebased() == rebased {
				require.Equal(t, buckets(before), buckets(p.store), "a denied request wrote: %s", rules)
			}
			w.waits(v)
		}
		if !small {
			w.agrees(v)
		}
	}
}

// admission is one aligned window of one key.
type admission struct {
	rule, key string
	window    int
	start     int64
}

type watch struct {
	t        *testing.T
	p        *proxy
	e        *Engine
	rules    string
	model    model
	admitted map[admission]uint64
}

func (w *watch) rebased() (n uint64) {
	for i := range w.e.rules {
		n += w.e.rules[i].metrics.ClockRebased
	}
	return n
}

// buckets are the counters in a store, without the directory and the seed.
func buckets(store map[string]cell) map[string]cell {
	out := map[string]cell{}
	for k, c := range store {
		if strings.HasPrefix(k, "sl/") {
			out[k] = c
		}
	}
	return out
}

// said: whatever was in the request, report and fields are well formed.
func (w *watch) said(v *Verdict) {
	require.True(w.t, json.Valid(v.AppendReport(nil)), "%q", v.AppendReport(nil))
	w.e.policy.Headers = policy.HeadersBoth
	for _, f := range w.e.AppendFields(nil, v) {
		require.NotContains(w.t, f.Value, "\n")
		require.NotContains(w.t, f.Value, "\x00")
		require.NotContains(w.t, f.Value, "-", "%s: no number is below zero", f.Name)
	}
}

// counted: an allowed request writes its own buckets alone, and no aligned
// window of a key admits more than its limit.
func (w *watch) counted(v *Verdict, before map[string]cell) {
	changed := 0
	for k, c := range buckets(w.p.store) {
		if string(before[k].value) != string(c.value) {
			changed++
		}
	}
	require.LessOrEqual(w.t, changed, len(v.tries))
	for i := range v.tries {
		t := &v.tries[i]
		require.False(w.t, t.reason == ReasonFull && t.rule.policy.OnFull == policy.FullDeny, w.rules)
		if t.cost == 0 || t.reason != "" {
			continue
		}
		for j, window := range t.rule.windows {
			if window.Algorithm != limit.FixedWindow {
				continue
			}
			a := admission{t.rule.policy.Name, string(t.key.bytes), j, window.Start(t.entry.Now)}
			w.admitted[a] += uint64(t.cost)
			if w.rebased() == 0 {
				require.LessOrEqual(w.t, w.admitted[a], uint64(window.Limit), w.rules)
			}
		}
	}
}

// waits: after the wait that a denial names the same request passes, a
// nanosecond before it does not; where it names none, it never does.
func (w *watch) waits(v *Verdict) {
	w.t.Helper()
	if v.RetryNs == limit.Never {
		require.False(w.t, w.passes(w.p.now+limit.MaxPeriodNs), "a wait helps: %s", w.rules)
		return
	}
	at := w.p.now + v.RetryNs
	require.Greater(w.t, at, w.p.now, w.rules)
	require.True(w.t, w.passes(at), "%d is too short a wait: %s", at-w.p.now, w.rules)
	require.False(w.t, w.passes(at-1), "%d is too long a wait: %s", at-w.p.now, w.rules)
}

// passes reports whether the request would pass at another time, if nobody
// else came until then.
func (w *watch) passes(at int64) bool {
	later := *w.p
	later.now, later.store = at, maps.Clone(w.p.store)
	return compileJSON(w.t, &later, w.rules).Decide().Allowed
}

// agrees: the verdict is the one of the model.
func (w *watch) agrees(v *Verdict) {
	allowed, deniedBy, retryNs := w.model.decide(v.tries, w.p.now)
	require.Equal(w.t, allowed, v.Allowed, w.rules)
	if !allowed {
		require.Equal(w.t, deniedBy, v.DeniedBy().Name, w.rules)
		require.Equal(w.t, retryNs, v.RetryNs, w.rules)
	}
}
