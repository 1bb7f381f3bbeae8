package engine

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// proxy is a Host of one request at a time over a store with Envoy's rules.
type proxy struct {
	mute       bool // it does not tell the values of a header apart
	now        int64
	headers    map[string][]string
	client     string
	attributes map[string]string // by path, its segments joined by dots
	store      map[string]cell
	cas        uint32
	calls      []string
	fail       string // "get" or "set"
	steal      int    // so many writes find that somebody else wrote first
	after      func(key string)

	counters map[string]uint64 // of all workers, by "RULE METRIC"
}

// Counted is what counters says, by "RULE METRIC".
func (p *proxy) Counted(rule, metric string) uint64 { return p.counters[rule+" "+metric] }

type cell struct {
	value []byte
	cas   uint32
}

func (p *proxy) Now() int64 { return p.now }

func (p *proxy) Header(name string) (string, bool) {
	p.calls = append(p.calls, "header "+name)
	if v := p.headers[name]; len(v) > 0 {
		return v[0], true
	}
	return "", false
}

func (p *proxy) JoinedHeader(name string) (string, bool) {
	p.calls = append(p.calls, "joined "+name)
	v, ok := p.headers[name]
	return strings.Join(v, ","), ok
}

func (p *proxy) AppendHeader(values []string, name string) []string {
	p.calls = append(p.calls, "headers")
	if p.mute {
		return values
	}
	return append(values, p.headers[name]...)
}

func (p *proxy) ClientAddress() (string, bool) {
	p.calls = append(p.calls, "client")
	return p.client, p.client != ""
}

func (p *proxy) Attribute(path string) (string, bool) {
	dotted := strings.ReplaceAll(path, "\x00", ".")
	p.calls = append(p.calls, "attribute "+dotted)
	v, ok := p.attributes[dotted]
	return v, ok
}

func (p *proxy) Get(key []byte) ([]byte, uint32, state.Status) {
	p.calls = append(p.calls, "get")
	if p.fail == "get" {
		return nil, 0, state.Failed
	}
	c, ok := p.store[string(key)]
	if !ok {
		return nil, 0, state.NotFound
	}
	return append([]byte(nil), c.value...), c.cas, state.OK
}

func (p *proxy) Set(key, value []byte, cas uint32) state.Status {
	p.calls = append(p.calls, "set")
	if p.fail == "set" {
		return state.Failed
	}
	if strings.HasPrefix(string(key), "sl/") && p.steal > 0 {
		p.steal--
		return state.Mismatch
	}
	c, ok := p.store[string(key)]
	if ok && cas != 0 && cas != c.cas {
		return state.Mismatch
	}
	p.cas++
	p.store[string(key)] = cell{append([]byte(nil), value...), p.cas}
	if p.after != nil {
		p.after(string(key))
	}
	return state.OK
}

func newProxy() *proxy {
	return &proxy{store: map[string]cell{}, client: "192.0.2.7:4711", headers: map[string][]string{
		":method": {"GET"}, ":path": {"/"}, ":authority": {"api.example.com"},
	}}
}

// with returns the headers of a request that has these beside the defaults.
func (p *proxy) with(pairs ...string) {
	p.headers = map[string][]string{":method": {"GET"}, ":path": {"/"}, ":authority": {"api.example.com"}}
	for i := 0; i < len(pairs); i += 2 {
		p.headers[pairs[i]] = append(p.headers[pairs[i]], pairs[i+1])
		if strings.HasPrefix(pairs[i], ":") {
			p.headers[pairs[i]] = []string{pairs[i+1]}
		}
	}
}

func compileJSON(t testing.TB, host Host, rules string) *Engine {
	t.Helper()
	doc, err := policy.ParseJSON([]byte(`{"version":1,"rules":[` + rules + `]}`))
	require.NoError(t, err)
	p, problems := policy.Read(doc)
	require.Empty(t, problems)
	return New(p, host, Identity{Owner: 1, Random: func(b []byte) { clear(b) }})
}

// operate returns the answer to an operation.
func operate(t *testing.T, e *Engine, op Operation) string {
	t.Helper()
	b, err := e.Operate(nil, op)
	require.NoError(t, err)
	return string(b)
}

// used returns what each window of each rule that matched has counted.
func used(v *Verdict) (counts [][]uint32) {
	for i := range v.tries {
		var rule []uint32
		for j := range v.tries[i].rule.order {
			w, u := v.tries[i].window(j)
			rule = append(rule, w.Count(u, v.tries[i].entry.Now))
		}
		counts = append(counts, rule)
	}
	return counts
}

func TestDeniedRequestCountsNowhere(t *testing.T) {
	p := newProxy()
	e := compileJSON(t, p, `
		{"name":"wide","limits":["10/1h"]},
		{"name":"narrow","key":[{"header":"u"}],"limits":["1/1m","5/1h"]}`)
	p.with("u", "alice")
	require.True(t, e.Decide().Allowed)
	for range 3 {
		v := e.Decide()
		require.False(t, v.Allowed)
		require.Equal(t, "narrow", v.DeniedBy().Name)
		require.Equal(t, int64(60e9), v.RetryNs)
		require.Equal(t, [][]uint32{{1}, {1, 1}}, used(v))
	}
	p.with("u", "bob")
	require.Equal(t, [][]uint32{{2}, {1, 1}}, used(e.Decide()))
}

func TestLateDenialTakesBack(t *testing.T) {
	p := newProxy()
	e := compileJSON(t, p, `
		{"name":"first","limits":["10/1h"]},
		{"name":"second","algorithm":"fixed_window_per_key","limits":["10/1h"]},
		{"name":"third","limits":["2/1h"]}`)
	require.True(t, e.Decide().Allowed)
	// Somebody takes the last unit of the third rule between check and commit.
	other := compileJSON(t, p, `{"name":"third","limits":["2/1h"]}`)
	p.after = func(string) {
		p.after = nil
		require.True(t, other.Decide().Allowed)
	}
	v := e.Decide()
	require.False(t, v.Allowed)
	require.Equal(t, "third", v.DeniedBy().Name)
	require.Equal(t, [][]uint32{{1}, {1}, {2}}, used(v))
	require.Zero(t, e.rules[0].metrics.NotRefunded)
}

func TestRulesThatShareACounterCountOnceEach(t *testing.T) {
	p := newProxy()
	e := compileJSON(t, p, `
		{"name":"a","counter":"c","limits":["3/1h"]},
		{"name":"b","counter":"c","limits":["4/1h"]}`)
	require.True(t, e.Decide().Allowed)
	v := e.Decide() // 2 used: a takes the third, b the fourth
	require.True(t, v.Allowed)
	v = e.Decide()
	require.False(t, v.Allowed)
	require.Equal(t, "a", v.DeniedBy().Name)
}

func TestMissingKey(t *testing.T) {
	p := newProxy()
	e := compileJSON(t, p, `
		{"name":"skip","key":[{"header":"a"}],"limits":["1/1h"]},
		{"name":"share","key":[{"header":"b"},"method"],"missing_key":"share","limits":["1/1h"]}`)
	require.True(t, e.Decide().Allowed)
	v := e.Decide()
	require.Equal(t, "share", v.DeniedBy().Name)
	require.Contains(t, string(v.AppendReport(nil)), `"key":[null,"GET"]`)
	p.with("b", "")
	require.True(t, e.Decide().Allowed, "empty is not missing")

	deny := compileJSON(t, p, `{"name":"deny","key":[{"header":"a"}],"missing_key":"deny","limits":["1/1h"]}`)
	v = deny.Decide()
	require.False(t, v.Allowed)
	require.Equal(t, ReasonMissingKey, v.tries[0].reason)
	_, ok := v.RetryAfter()
	require.False(t, ok)
}

func TestFailures(t *testing.T) {
	for _, c := range []struct {
		name, rule, fail string
		steal            int
		allowed          bool
		reason           Reason
	}{
		{"get fails, default", `{"name":"r","limits":["1/1h"]}`, "get", 0, true, ReasonError},
		{"get fails, deny", `{"name":"r","limits":["1/1h"],"on_error":"deny"}`, "get", 0, false, ReasonError},
		{"set fails, default", `{"name":"r","limits":["1/1h"]}`, "set", 0, true, ReasonError},
		{"set fails, deny", `{"name":"r","limits":["1/1h"],"on_error":"deny"}`, "set", 0, false, ReasonError},
		{"retries suffice", `{"name":"r","limits":["1/1h"]}`, "", maxRetries, true, ""},
		{"retries run out, default", `{"name":"r","limits":["1/1h"]}`, "", maxRetries + 1, false, ReasonContention},
		{"retries run out, allow", `{"name":"r","limits":["1/1h"],"on_contention":"allow"}`, "", maxRetries + 1, true, ReasonContention},
	} {
		p := newProxy()
		e := compileJSON(t, p, c.rule)
		p.fail, p.steal = c.fail, c.steal
		v := e.Decide()
		require.Equal(t, c.allowed, v.Allowed, c.name)
		require.Equal(t, c.reason, v.tries[0].reason, c.name)
		if !c.allowed {
			require.Equal(t, int64(1e9), v.RetryNs, c.name)
		}
	}
}

func TestOnFull(t *testing.T) {
	for _, c := range []struct {
		onFull  string
		allowed bool
	}{{"deny", false}, {"allow", true}, {"inherit", true}} {
		p := newProxy()
		e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"capacity":1,"limits":["2/1m"],"on_full":"`+c.onFull+`"}`)
		p.with("u", "alice")
		require.True(t, e.Decide().Allowed)
		p.with("u", "bob")
		v := e.Decide()
		require.Equal(t, c.allowed, v.Allowed, c.onFull)
		switch c.onFull {
		case "deny":
			require.Equal(t, ReasonFull, v.tries[0].reason)
			require.Equal(t, int64(60e9), v.RetryNs)
			require.EqualValues(t, 1, e.rules[0].metrics.Full)
		case "allow":
			require.EqualValues(t, 1, e.rules[0].metrics.Full)
		case "inherit":
			require.EqualValues(t, 1, e.rules[0].metrics.Evicted)
			p.with("u", "alice")
			v = e.Decide() // starts from the floor, which knows one hit
			require.Equal(t, [][]uint32{{2}}, used(v))
		}
	}
}

// A full page denies in the check, as a limit does: the other rules count
// nothing, their wait is part of the answer, and a peek sees it too.
func TestFullPageDeniesBeforeAnythingCounts(t *testing.T) {
	p := newProxy()
	e := compileJSON(t, p, `
		{"name":"all","limits":["2/10s"]},
		{"name":"each","key":[{"header":"u"}],"capacity":1,"limits":["9/1m"],"on_full":"deny"}`)
	p.with("u", "alice")
	require.True(t, e.Decide().Allowed)
	p.with("u", "bob")
	before := maps.Clone(p.store)
	v := e.Decide()
	require.Equal(t, "each", v.DeniedBy().Name)
	require.Equal(t, ReasonFull, v.tries[1].reason)
	require.Equal(t, before, p.store)

	require.Contains(t, operate(t, e, Operation{Name: "peek", Rule: "each", Key: []string{"bob"}, N: 1}),
		`{"allowed":false,"denied_by":"each","retry_after_ns":60000000000,`)

	p.with("u", "alice")
	require.True(t, e.Decide().Allowed)
	p.with("u", "bob")
	v = e.Decide()
	require.Equal(t, "all", v.DeniedBy().Name)
	require.Equal(t, int64(60e9), v.RetryNs, "when the limit of 10 s passes, the page is still full")
}

// A hit whose write failed is in no answer.
func TestFailedWriteIsNotReported(t *testing.T) {
	p := newProxy()
	e := compileJSON(t, p, `{"name":"r","limits":["5/1h"],"on_contention":"allow"}`)
	e.policy.Headers = policy.HeadersIETF
	p.steal = maxRetries + 1
	v := e.Decide()
	require.Equal(t, ReasonContention, v.tries[0].reason)
	require.Contains(t, string(v.AppendReport(nil)), `"windows":[]`)
	require.Empty(t, e.AppendFields(nil, v))
}

// What a wild clock wrote is moved by a denied request, and by no peek.
func TestPeekWritesNothing(t *testing.T) {
	p := newProxy()
	e := compileJSON(t, p, `{"name":"r","limits":["1/1m"]}`)
	p.now = 1e18
	require.True(t, e.Decide().Allowed)
	p.now = 1e17
	before := maps.Clone(p.store)
	require.Contains(t, operate(t, e, Operation{Name: "peek", Rule: "r", N: 1}), `{"allowed":false,`)
	require.Equal(t, before, p.store)
	require.False(t, e.Decide().Allowed)
	require.NotEqual(t, before, p.store)
}

func TestDenialsAndCostZeroWriteNothing(t *testing.T) {
	p := newProxy()
	e := compileJSON(t, p, `{"name":"r","limits":["1/1h"],"cost":{"header":"c","min":0}}`)
	p.with("c", "0")
	require.True(t, e.Decide().Allowed)
	require.NotContains(t, strings.Join(keys(p), " "), "sl/")
	p.with("c", "1")
	require.True(t, e.Decide().Allowed)
	before := maps.Clone(p.store)
	require.False(t, e.Decide().Allowed)
	require.Equal(t, before, p.store)
}

func keys(p *proxy) (list []string) {
	for k := range p.store {
		list = append(list, k)
	}
	return list
}

func TestHostCalls(t *testing.T) {
	p := newProxy()
	e := compileJSON(t, p, `{"name":"r","key":[{"header":"u"}],"limits":["2/1h","9/24h"]}`)
	p.with("u", "alice")
	e.Decide()
	for _, want := range [][]string{
		{"header u", "get", "set"}, // allowed
		{"header u", "get"},        // denied
	} {
		p.calls = nil
		e.Decide()
		require.Equal(t, want, p.calls)
	}
	p.calls = nil
	p.with(":path", "/x")
	e.Decide()
	require.Equal(t, []string{"header u"}, p.calls, "no key, no counter")
}

func TestRefusedPolicyWritesNothing(t *testing.T) {
	p := newProxy()
	e := compileJSON(t, p, `{"name":"r","limits":["2/1h"]}`)
	e.Heartbeat()
	require.Empty(t, p.store)
}
