package policytest_test

import (
	"fmt"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/policytest"
)

func options(t *testing.T, policy string) policytest.Options {
	t.Helper()
	return policytest.Options{
		Wasm: buildtest.Wasm(t), Policy: "policy.yaml", YAML: []byte(policy), CacheDir: buildtest.CacheDir(),
	}
}

const perUser = `
version: 1
headers: ietf
rules:
  - name: per-user
    match: {paths: ["/v1/*"]}
    key: [{header: x-user-id}]
    limits: [2/1m]
`

func user(name string) policytest.Request {
	return policytest.Request{Path: "/v1/orders", Header: http.Header{"X-User-Id": {name}}}
}

func TestAWindowEndsWhenTimeHasPassed(t *testing.T) {
	p := policytest.New(t, options(t, perUser))
	require.Equal(t, uint32(1), p.Do(user("alice")).Rule("per-user").Remaining)
	require.Equal(t, `"per-user";r=0;t=60`, p.Do(user("alice")).Header.Get("RateLimit"))
	v := p.Do(user("alice"))
	require.False(t, v.Allowed)
	require.Equal(t, http.StatusTooManyRequests, v.Status)
	require.Equal(t, "per-user", v.DeniedBy)
	require.Equal(t, "limit", v.Reason)
	require.Equal(t, time.Minute, v.RetryAfter)
	require.Equal(t, "60", v.Header.Get("Retry-After"))
	require.NotEmpty(t, v.Body)
	require.True(t, p.Do(user("bob")).Allowed)
	p.Advance(time.Minute)
	require.True(t, p.Do(user("alice")).Allowed)
	require.Equal(t, policytest.DefaultStart.Add(time.Minute), p.Now())
	require.Empty(t, p.Do(policytest.Request{Path: "/other"}).Rules)
}

func TestServe(t *testing.T) {
	upstream := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	address := policytest.Serve(t, options(t, perUser+`
  - {name: all, scope: cluster, limits: [3/1h]}
`), upstream)
	get := func(user string) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/v1/orders", nil)
		require.NoError(t, err)
		r.Header.Set("x-user-id", user)
		response, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode
	}
	require.Equal(t, []int{418, 418, 429, 418, 429}, []int{get("a"), get("a"), get("a"), get("b"), get("b")})
}

const answers = `
version: 1
rules:
  - name: tokens
    match: {paths: [/chat]}
    key: [{jwt: {claim: sub, provider: corp}}]
    missing_key: deny
    limits: [{requests: 10000, per: 1h}]
    cost: 2000
    settle: {to: tokens, when: {status: ["2xx"]}}
  - {name: slots, match: {paths: [/slow]}, algorithm: concurrency, limits: [1], linger: 2s}
  - name: bytes
    match: {paths: [/upload]}
    limits: [1000/1h]
    cost: {request_bytes: {min: 5, max: 900}}
  - {name: cluster, scope: cluster, match: {paths: [/all]}, limits: [3/1h], on_unavailable: deny}
  - {name: shadow, match: {paths: [/watched]}, mode: shadow, limits: [0/1h]}
`

func TestAnAnswerIsChargedWhatItCost(t *testing.T) {
	p := policytest.New(t, options(t, answers))
	ask := policytest.Request{Path: "/chat", JWT: map[string]map[string]any{"corp": {"sub": "alice"}}}
	key := policytest.Counter{Rule: "tokens", Key: []string{"alice"}}
	usage := map[string]any{"usage": map[string]int{"prompt_tokens": 700, "completion_tokens": 80}}
	for _, c := range []struct {
		answer  policytest.Answer
		charged uint32
		by      string
		status  int
	}{
		{policytest.Answer{JSON: usage}, 780, "answer", 200},
		{policytest.Answer{Status: 500, JSON: usage}, 0, "none", 500},
		{policytest.Answer{Broken: policytest.UpstreamTimeout}, 2000, "estimate", 504},
		{policytest.Answer{Broken: policytest.UpstreamReset}, 2000, "estimate", 503},
		{policytest.Answer{Broken: policytest.ClientGone}, 2000, "estimate", 0},
	} {
		p.Reset(key)
		running := p.Start(ask)
		require.True(t, running.Allowed)
		require.Equal(t, uint32(2000), p.Count(key).Held)
		v := p.Answer(running, c.answer)
		rule := v.Rule("tokens")
		require.Equal(t, policytest.Rule{
			Name: "tokens", Key: []string{"alice"}, Allowed: true, Remaining: 8000, Windows: rule.Windows,
			Settled: true, Held: 2000, Charged: c.charged, By: c.by,
		}, rule)
		require.Equal(t, c.status, v.Status)
		require.Equal(t, policytest.Count{
			Used: c.charged, Remaining: 10000 - c.charged, Windows: p.Count(key).Windows,
		}, p.Count(key))
	}
	denied := p.Do(policytest.Request{Path: "/chat"})
	require.Equal(t, "missing_key", denied.Reason)
	require.Equal(t, policytest.Never, denied.RetryAfter)
}

func TestRunningRequestsKeepTheirSlots(t *testing.T) {
	p := policytest.New(t, options(t, answers))
	slow := policytest.Request{Path: "/slow"}
	running := p.Start(slow)
	p.Advance(time.Hour)
	v := p.Do(slow)
	require.Equal(t, "held", v.Reason)
	p.Answer(running, policytest.Answer{Took: time.Minute})
	require.Equal(t, policytest.DefaultStart.Add(time.Hour+time.Minute), p.Now())
	require.True(t, p.Do(slow).Allowed)
	p.Do(policytest.Request{Path: "/slow", Answer: &policytest.Answer{Broken: policytest.ClientGone}})
	require.False(t, p.Do(slow).Allowed, "it lingers")
	p.Advance(4 * time.Second)
	require.True(t, p.Do(slow).Allowed)
}

func TestBodiesProxiesAndFaults(t *testing.T) {
	o := options(t, answers)
	o.Proxies = 2
	p := policytest.New(t, o)
	first := new(int)
	for _, c := range []struct {
		request policytest.Request
		used    uint32
	}{
		{policytest.Request{Method: http.MethodPost, Path: "/upload"}, 5},
		{policytest.Request{Method: http.MethodPost, Path: "/upload", Body: "0123456789"}, 10},
		{policytest.Request{Method: http.MethodPost, Path: "/upload", BodyBytes: 77}, 77},
	} {
		c.request.Proxy = first
		p.Reset(policytest.Counter{Rule: "bytes"})
		p.Do(c.request)
		require.Equal(t, c.used, p.Count(policytest.Counter{Rule: "bytes", Proxy: first}).Used)
	}
	require.Zero(t, p.Count(policytest.Counter{Rule: "bytes", Proxy: new(1)}).Used, "each proxy counts for itself")

	for range 3 {
		require.True(t, p.Do(policytest.Request{Path: "/all"}).Allowed)
	}
	require.False(t, p.Do(policytest.Request{Path: "/all"}).Allowed)
	require.Equal(t, uint32(3), p.Count(policytest.Counter{Rule: "cluster"}).Used)
	p.Set(policytest.Counter{Rule: "cluster"}, 1)
	require.Equal(t, uint32(2), p.Count(policytest.Counter{Rule: "cluster"}).Remaining)

	v := p.Do(policytest.Request{Path: "/watched"})
	require.True(t, v.Allowed)
	require.True(t, v.Rule("shadow").Shadow)
	require.False(t, v.Rule("shadow").Allowed)

	o.Proxies = 1
	v = policytest.New(t, o).Do(policytest.Request{Path: "/all", Fault: policytest.QuotaFault})
	require.Equal(t, "on_unavailable", v.Reason)
}

// failing is a test that notes why it failed, and goes on no further.
type failing struct {
	*testing.T
	why string
}

func (f *failing) Fatalf(format string, args ...any) {
	f.why = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// What cannot be done fails the test, and says what would be right.
func TestWhatCannotBeDone(t *testing.T) {
	o := options(t, answers)
	for _, c := range []struct {
		do   func(f *failing)
		want string
	}{
		{func(f *failing) { policytest.New(f, policytest.Options{Policy: "none.yaml"}) }, "read policy: open none.yaml"},
		{func(f *failing) { policytest.New(f, options(t, "version: 1\nrulez: []\n")) }, `policy.yaml:2:1: rulez: unknown`},
		{func(f *failing) {
			policytest.New(f, policytest.Options{Wasm: []byte("no module"), YAML: []byte(perUser)})
		}, "start the filter: "},
		{func(f *failing) { policytest.New(f, o).Do(policytest.Request{Path: "v1"}) }, `Path: "v1" is not a path`},
		{func(f *failing) {
			policytest.New(f, o).Do(policytest.Request{Body: "x", BodyBytes: 1})
		}, "BodyBytes: it is the length of a body that is not given"},
		{func(f *failing) { policytest.New(f, o).Do(policytest.Request{ClientIP: "me"}) }, `ClientIP: "me" is not`},
		{func(f *failing) { policytest.New(f, o).Do(policytest.Request{Fault: "disk"}) }, `not "disk"`},
		{func(f *failing) { policytest.New(f, o).Do(policytest.Request{Proxy: new(1)}) }, "there is no proxy 1"},
		{func(f *failing) { policytest.New(f, o).Advance(-time.Second) }, "time does not step back"},
		{func(f *failing) { policytest.New(f, o).Advance(1<<63 - 1) }, "the clock would pass the year 2200"},
		{func(f *failing) {
			policytest.New(f, policytest.Options{YAML: []byte(perUser), Start: time.Unix(-1, 0)})
		}, "start at 1969-12-31T23:59:59Z: write a time from 1970 to 2200"},
		{func(f *failing) { policytest.New(f, o).Reset(policytest.Counter{Rule: "none"}) }, `there is no rule "none"`},
		{func(f *failing) {
			policytest.New(f, o).Do(policytest.Request{Answer: &policytest.Answer{Broken: "wire"}})
		}, `not "wire"`},
		{func(f *failing) {
			policytest.New(f, o).Do(policytest.Request{
				Answer: &policytest.Answer{Broken: policytest.UpstreamTimeout, Body: "x"},
			})
		}, "a time-out ends a request before its answer begins"},
		{func(f *failing) {
			policytest.New(f, o).Do(policytest.Request{Answer: &policytest.Answer{Status: 99}})
		}, "Status: is not a status of an answer"},
		{func(f *failing) {
			policytest.New(f, o).Do(policytest.Request{Answer: &policytest.Answer{JSON: 1, Body: "x"}})
		}, "Body: does not go with json"},
		{func(f *failing) {
			policytest.New(f, o).Do(policytest.Request{
				Answer: &policytest.Answer{Broken: policytest.ClientGone, Trailer: http.Header{}},
			})
		}, "Broken: does not go with trailers"},
		{func(f *failing) {
			policytest.New(f, o).Do(policytest.Request{
				Answer: &policytest.Answer{Broken: policytest.UpstreamReset, Header: http.Header{"X-Cost": {"3"}}},
			})
		}, "Header: an answer that does not begin has none"},
	} {
		f := &failing{T: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.do(f)
		}()
		<-done
		require.Contains(t, f.why, c.want)
	}
}
