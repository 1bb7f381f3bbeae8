package engine

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
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
	"/?q=1", "/?q=%ff&q&u=+", "/?u=%&y=1&y=2&=&&", "u=a; a=b", `u="a", u=b;;=`, "\x0a\x04\x0a\x00\x12\x00", "12345678",
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
		windows := t.windows()
		key := pick(t, `{"header":"u"}`, `{"header":"u"}`, ``, `{"header":"u"},"method"`, `"host"`, `{"path":"full"},{"header":"u"}`, `{"path":{"segment":2}}`, `{"client_ip":{}}`,
			`{"query":"q"}`, `{"cookie":"u"}`, `{"first_of":[{"header":"u"},{"query":"u"},{"cookie":"a"}]}`, `{"jwt":{"provider":"p","claim":["u","a"]}},"route"`,
			`{"property":["source","port"]},{"first_of":[{"property":["filter_state","k"]},"client_ip"]}`)
		rules = append(rules, fmt.Sprintf(
			`{"name":"r%d","key":[%s],"match":%s,"missing_key":%q,"limits":[%s],"cost":%s,"capacity":%d,"on_full":%q,"on_contention":"deny"%s}`,
			i, key, pick(t, `{}`, `{}`, `{"methods":["GET"]}`, `{"hosts":["*.example.com"]}`, `{"paths":["/v1*","~/[a-z]*"]}`, `{"headers":{"u":"!"}}`, `{"headers":{"u":"*a"}}`,
				`{"client_ips":["192.0.2.7","2001:db8::/32"]}`, `{},"exempt":[{"paths":["/v1/*"]},{"methods":["POST"],"headers":{"c":"*"}}]`),
			pick(t, "skip", "share", "deny"), windows.limits(t, true),
			pick(t, `1`, `2`, `{"header":"c"}`, `{"header":"c","min":0,"max":3}`, `{"header":"c","min":2,"default":3,"max":4}`, `{"query":"y","max":2}`),
			capacity, pick(t, "inherit", "inherit", "allow", "deny"), t.extras(key, windows)))
	}
	return strings.Join(rules, ",")
}

// windows are a rule's without their numbers.
type windows []string

func (t *tape) windows() (list windows) {
	for i := range 1 + t.next()%3 {
		algorithm := pick(t, "fixed_window", "fixed_window_per_key", "sliding_window_log", "sliding_window_counter", "token_bucket")
		more := ""
		switch algorithm {
		case "fixed_window":
			more = pick(t, "", "", `,"offset":"700ms"`, `,"jitter":50`, `,"jitter":100,"offset":"300ms"`)
		case "fixed_window_per_key":
			more = pick(t, "", "", `,"elastic":true`)
		case "token_bucket":
			more = pick(t, "", `,"burst":1`, `,"burst":7`)
		}
		list = append(list, fmt.Sprintf(`"per":%q,"algorithm":%q%s`, []string{"1s", "2500ms", "1m"}[i], algorithm, more))
	}
	return list
}

// limits gives windows numbers: all of them, or for an override some.
func (w windows) limits(t *tape, all bool) string {
	var limits []string
	for i := range w {
		if all || i == 0 || t.next()%3 > 0 {
			limits = append(limits, fmt.Sprintf(`{"requests":%d,%s}`, t.next()%6, w[i]))
		}
	}
	return strings.Join(limits, ",")
}

// extras writes the fields that not every rule can have.
func (t *tape) extras(key string, w windows) string {
	out := pick(t, "", "", `,"mode":"shadow"`, `,"enforce_percent":50`)
	if t.next()%3 == 0 && !strings.Contains(strings.Join(w, ""), "token_bucket") {
		out += `,"count_denied":true`
	}
	if key == `{"header":"u"}` && t.next()%2 == 0 {
		out += fmt.Sprintf(`,"overrides":[{"key":["=b"],"unlimited":true},{"key":[%q],"limits":[%s]}]`, pick(t, "a", "*", "~[a-z]?"), w.limits(t, false))
	}
	return out
}

// request makes the next request and the instant at which it comes.
func (t *tape) request(p *proxy, backwards bool) {
	p.with(":method", pick(t, "GET", "GET", "POST", "\x00"))
	for _, name := range []string{"u", "c", ":path", ":authority", "cookie"} {
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
	p.attributes = map[string]string{}
	for _, path := range []string{"metadata", "xds.route_name", "source.port", "filter_state.k"} {
		if t.next() > 128 {
			p.attributes[path] = pick(t, hostile...)
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
	requests := 0
	f.Fuzz(func(t *testing.T, data []byte) { requests += decideAll(t, tape(data)) })
	if requests > 0 { // none where other processes do the fuzzing
		buildtest.Figure(f, "%d random requests under random policies, each verdict judged", requests)
	}
}

func decideAll(t *testing.T, in tape) (requests int) {
	small := in.next()%2 == 1
	backwards := !small && in.next()%2 == 1
	rules := in.rules(small)
	p := newProxy()
	p.now = 1_700_000_000_123_456_789
	w := watch{t, p, compileJSON(t, p, rules), rules, model{}, map[admission]*admitted{}, false}
	rival := compileJSON(t, p, rules)
	races := !backwards && in.next()%4 == 0
	w.operated = in.next()%8 == 0
	for step := 0; step < 60 && len(in) > 0; step++ {
		in.request(p, backwards)
		if w.operated && in.next()%4 == 0 {
			w.operate(&in)
		}
		if !backwards { // a stolen write leaves a wild clock's record to the next request
			p.steal = max(0, in.next()-250)
		}
		raced := false
		if races && in.next()%2 == 0 { // another worker has the same request, between two of our commits
			p.after = func(key string) {
				if strings.HasPrefix(key, "sl/") {
					p.after, raced = nil, true
					w.admit(rival.Decide())
				}
			}
		}
		before, rebased := maps.Clone(p.store), w.rebased()
		v := w.e.Decide()
		p.steal, p.after = 0, nil
		w.said(v)
		switch {
		case raced:
			w.admit(v)
		case v.Allowed:
			require.LessOrEqual(t, w.changes(before), len(v.tries))
			w.admit(v)
		default:
			if w.rebased() == rebased {
				require.LessOrEqual(t, w.changes(before), countedDenials(v), "a denied request wrote: %s", rules)
			}
			w.waits(v)
		}
		if !small && !races && !w.operated {
			w.agrees(v)
		}
		requests++
	}
	return requests
}

type watch struct {
	t        *testing.T
	p        *proxy
	e        *Engine
	rules    string
	model    model
	admitted map[admission]*admitted
	operated bool // operations have a hand in it: what was admitted is not all
}

// operate does anything to the counters, and takes any answer but nonsense.
func (w *watch) operate(in *tape) {
	op := Operation{
		Name: pick(in, Operations...), Rule: pick(in, "r0", "r1", "r2", ""), Window: pick(in, "", "", "0", "1", "9"),
		N: pick(in, uint32(0), 1, 2, 5, 1<<32-1),
	}
	for range in.next() % 3 {
		op.Key = append(op.Key, pick(in, hostile...))
	}
	if answer, err := w.e.Operate(nil, op); err == nil {
		require.True(w.t, json.Valid(answer), "%v: %s", op, answer)
	}
}

func (w *watch) rebased() (n uint64) {
	for i := range w.e.rules {
		n += w.e.rules[i].metrics.ClockRebased
	}
	return n
}

// pages are the counters in a store, without the directory and the seed.
func pages(store map[string]cell) map[string]cell {
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

// changes is how many pages are not what they were.
func (w *watch) changes(before map[string]cell) (n int) {
	for k, c := range pages(w.p.store) {
		if string(before[k].value) != string(c.value) {
			n++
		}
	}
	return n
}

// countedDenials is how many rules count the request although they deny it.
func countedDenials(v *Verdict) (n int) {
	for i := range v.tries {
		if t := v.tries[i]; !t.shadow && t.reason == ReasonLimit && t.rule.policy.CountDenied {
			n++
		}
	}
	return n
}

// admit: no window of an exact algorithm admits more to a key than its limit.
func (w *watch) admit(v *Verdict) {
	if !v.Allowed {
		return
	}
	for i := range v.tries {
		t := v.tries[i]
		require.False(w.t, !t.shadow && t.reason == ReasonFull && t.rule.policy.OnFull == policy.FullDeny, w.rules)
		if t.cost == 0 || t.reason != "" || t.free {
			continue
		}
		for j, window := range t.limits.Windows {
			at := admission{t.rule.policy.Name, string(t.key.bytes), j}
			if w.admitted[at] == nil {
				w.admitted[at] = &admitted{}
			}
			w.admitted[at].add(window, t.entry.Now, t.cost)
			if w.rebased() == 0 && !w.operated && !t.shadow && !window.Unlimited && !t.rule.policy.CountDenied {
				require.True(w.t, w.admitted[at].within(window), "%s: %v %v", w.rules, window, w.admitted[at])
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
	if v.RetryNs >= 1<<61 { // a bucket so deep in debt that its wait, 73 years and more, is cut
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
