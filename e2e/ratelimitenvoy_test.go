package e2e

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/servertest"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// calledByEnvoy is an Envoy with the stock rate limit filter, as testdata/ratelimitenvoy.yaml says, and
// two services that it calls in turn, on one Redis: sluice by the name of envoyproxy/ratelimit, and
// `sluice quota`.
type calledByEnvoy struct {
	named *rateLimiter
	quota *quotaService

	closed, open *proxy // listeners: failure_mode_deny is true and false
}

const calledConfig = `
domain: d
descriptors:
- key: user
  rate_limit: {unit: year, requests_per_unit: 5}
  metadata: {plan: basic}
- {key: user, value: crowd, rate_limit: {unit: year, requests_per_unit: 300}}
- {key: user, value: weekly, rate_limit: {unit: week, requests_per_unit: 9, name: by-week}}
- {key: remote_address, rate_limit: {unit: year, requests_per_unit: 2}}
- key: tenant
  value: acme
  descriptors:
  - {key: plan, value: gold, rate_limit: {unit: year, requests_per_unit: 4}}
  - {key: plan, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: own, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: shadow, rate_limit: {unit: year, requests_per_unit: 2}, shadow_mode: true}
- {key: cost, rate_limit: {unit: year, requests_per_unit: 100}}
- {key: cost, value: bulk, rate_limit: {unit: year, requests_per_unit: 1000000}}
- {key: fault, rate_limit: {unit: year, requests_per_unit: 60}}
- {key: all, rate_limit: {unit: year, requests_per_unit: 1000000}}
`

const otherConfig = "domain: other\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 3}}]\n"

// startCalled starts all of it, on the store that a URL and settings name.
func startCalled(t *testing.T, d driver, url string, settings ...string) *calledByEnvoy {
	_, redis, _ := strings.Cut(url, "://")
	c := &calledByEnvoy{named: newRateLimiter(t, ours(t), redis)}
	settings = append(settings, "LIMIT_RESPONSE_HEADERS_ENABLED=true", "RESPONSE_DYNAMIC_METADATA=true")
	c.named.start(t, map[string]string{"d.yaml": calledConfig, "other.yaml": otherConfig}, settings...)
	c.quota = startQuota(t, url, "--ratelimit-config", filepath.Join(c.named.root, "ratelimit", "config"),
		"--ratelimit-headers", "--ratelimit-metadata")
	bootstrap := read(t, "testdata", "ratelimitenvoy.yaml")
	for word, address := range map[string]string{
		"UPSTREAM": upstream().Listener.Addr().String(), "SERVICE": c.named.grpc, "REPLICA": c.quota.address,
	} {
		_, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		bootstrap = replaced(t, bootstrap, "port_value: "+word, "port_value: "+port)
	}
	e, err := proc.Start(t.Context(), proc.Options{Binary: d.envoy, Bootstrap: []byte(bootstrap), Concurrency: workers})
	require.NoError(t, err)
	t.Cleanup(func() { end(t, e.Child) })
	require.NoError(t, e.WaitReady(t.Context()))
	for name, p := range map[string]**proxy{"closed": &c.closed, "open": &c.open} {
		address, err := e.Listener(t.Context(), name)
		require.NoError(t, err)
		*p = &proxy{address: address, admin: e.Admin(), envoy: e}
	}
	return c
}

// untilHealthy waits until Envoy calls so many services.
func (c *calledByEnvoy) untilHealthy(t *testing.T, services uint64) {
	const healthy = "cluster.ratelimit.membership_healthy"
	eventually(t, 2*time.Second, fmt.Sprint(services, " healthy services"), func() bool {
		stats, err := c.closed.envoy.Stats(t.Context(), healthy)
		return err == nil && stats[healthy] == services
	})
}

// look is how a descriptor stands. It counts nothing.
func (c *calledByEnvoy) look(t *testing.T, descriptor string) string {
	got := c.named.call(t.Context(), callOf(t, "d", descriptor+" hits:0"))
	require.NotNil(t, got.response, got)
	return statusText(got.response.Statuses[0])
}

// charged is how many units a key has, whatever its limit is.
func (c *calledByEnvoy) charged(t *testing.T, descriptor string) int {
	const most = 2_000_000_000
	var left int
	text := c.look(t, fmt.Sprintf("%s limit:%d/year", descriptor, most))
	_, err := fmt.Sscanf(text, "ok, %d of", &left)
	require.NoError(t, err, text)
	return most - left
}

// TestEnvoyRateLimit: Envoy's own filter limits as its documentation says with sluice as its service.
func TestEnvoyRateLimit(t *testing.T) {
	t.Parallel()
	everyEnvoy(t, func(t *testing.T, d driver) {
		c := startCalled(t, d, "redis://"+servertest.StartRedis(t, servertest.Redis(t)).Addr())
		t.Run("requests", func(t *testing.T) { c.answersRequests(t) })
		t.Run("fields", func(t *testing.T) { c.showsLimits(t) })
		t.Run("crowd", func(t *testing.T) { c.admitsExactly(t) })
		t.Run("costs", func(t *testing.T) { c.chargesCosts(t) })
		t.Run("failure mode", func(t *testing.T) { c.failureMode(t) })
	})
}

// calledRequest is a request that is sent several times, and how many of them pass before all others
// are denied.
type calledRequest struct {
	name, path string
	headers    []string // names and values
	sent       int
	passed     int
}

// calledRequests share counters: they are sent one after the other.
var calledRequests = []calledRequest{
	{"a header's value", "/header", []string{"x-user-id", "ann"}, 7, 5},
	{"another value", "/header", []string{"x-user-id", "bob"}, 5, 5},
	{"no header, so no descriptor", "/header", nil, 8, 8},
	{"the same counter by another route, three hits a call", "/hits", []string{"x-user-id", "cid"}, 3, 1},
	{"which counts what was denied", "/header", []string{"x-user-id", "cid"}, 1, 0},
	{"an address", "/address", []string{":from", "127.0.0.2"}, 3, 2},
	{"another address", "/address", []string{":from", "127.0.0.3"}, 3, 2},
	{"two entries", "/nested", []string{"x-plan", "gold"}, 6, 4},
	{"two entries, of which one has any value", "/nested", []string{"x-plan", "free"}, 3, 1},
	{"another of any value", "/nested", []string{"x-plan", "trial"}, 2, 1},
	{"two descriptors", "/nested", []string{"x-plan", "paid", "x-user-id", "dan"}, 2, 1},
	{"of which the other counted the denied ones too", "/header", []string{"x-user-id", "dan"}, 4, 3},
	{"a limit of the route's own", "/limit", []string{"x-user-id", "eve"}, 6, 4},
	{"a shadow", "/shadow", nil, 5, 5},
	{"a route of another domain", "/own", []string{"x-user-id", "ann"}, 4, 3},
	{"a route without limits", "/ready", nil, 9, 9},
}

// send sends them through a proxy.
func (r calledRequest) send(t *testing.T, p *proxy) {
	for i := range r.sent {
		want := allowed
		if i >= r.passed {
			want = denied
		}
		require.Equal(t, want, p.status(t, r.path, r.headers...), "%s, request %d", r.name, i)
	}
}

func (c *calledByEnvoy) answersRequests(t *testing.T) {
	for _, r := range calledRequests {
		r.send(t, c.closed)
	}
	require.Equal(t, "ok, 0 of 2/year left", c.look(t, "shadow=all"))
	require.Equal(t, "over, 0 of 1/year left", c.look(t, "own=eve"))
}

// shownTo are the fields of the response to a user, of those that tell of limits. RESET is the time
// until a limit's reset.
var shownTo = map[string]string{
	"weekly": `ratelimit-limit: 9; ratelimit-remaining: 8; ratelimit-reset: RESET; x-domain: d; ` +
		`x-ratelimit-limit: 9, 9;w=604800;name="by-week"; x-ratelimit-remaining: 8; x-ratelimit-reset: RESET`,
	"fay": `ratelimit-limit: 5; ratelimit-remaining: 4; ratelimit-reset: RESET; x-domain: d; x-plan: basic; ` +
		`x-ratelimit-limit: 5, 5;w=31536000; x-ratelimit-remaining: 4; x-ratelimit-reset: RESET`,
	"ann": `ratelimit-limit: 5; ratelimit-remaining: 0; ratelimit-reset: RESET; x-domain: d; x-envoy-ratelimited: true; ` +
		`x-ratelimit-limit: 5, 5;w=31536000; x-ratelimit-remaining: 0; x-ratelimit-reset: RESET`,
}

// showsLimits: a response says what the service says, in its own headers, in Envoy's, and by dynamic
// metadata.
func (c *calledByEnvoy) showsLimits(t *testing.T) {
	for name, want := range shownTo {
		res, _ := c.closed.get(t, "/header", "x-user-id", name)
		reset := res.Header.Get("ratelimit-reset")
		seconds, err := strconv.Atoi(reset)
		require.NoError(t, err)
		require.True(t, 0 < seconds && seconds <= 365*86400, reset)
		var fields []string
		for key := range res.Header {
			key = strings.ToLower(key)
			if strings.Contains(key, "ratelimit") || key == "x-plan" || key == "x-domain" {
				fields = append(fields, key+": "+res.Header.Get(key))
			}
		}
		slices.Sort(fields)
		require.Equal(t, strings.ReplaceAll(want, "RESET", reset), strings.Join(fields, "; "), name)
	}
}

// admitsExactly: of what many clients send over all workers, the limit passes.
func (c *calledByEnvoy) admitsExactly(t *testing.T) {
	const sent, limit = 1500, 300
	statuses := c.closed.load(16).send(t, sent, askedBy("/header", "crowd"))
	require.Equal(t, limit, count(statuses, allowed))
	require.Equal(t, sent-limit, count(statuses, denied))
}

// askedBy is a function for load.send that sends requests of one user.
func askedBy(path, user string) func(int) request {
	return func(int) request { return request{path, "x-user-id", user} }
}

// chargesCosts: a call is let through while the limit is not exceeded, and pays what its answer cost.
func (c *calledByEnvoy) chargesCosts(t *testing.T) {
	becomes := func(descriptor string, want int) {
		eventually(t, 2*time.Second, "the cost to be charged", func() bool {
			n := c.charged(t, descriptor)
			require.LessOrEqual(t, n, want, descriptor)
			return n == want
		})
	}
	send := func(cost string) int {
		return c.closed.status(t, "/cost", "x-user-id", "gil", "x-send", "x-cost: "+cost)
	}
	require.Equal(t, allowed, send("40"))
	becomes("cost=gil", 40)
	require.Equal(t, allowed, send("90"))
	becomes("cost=gil", 130)
	require.Equal(t, denied, send("1"))
	require.Equal(t, allowed, c.closed.status(t, "/cost", "x-user-id", "hal"), "an answer without a cost")

	costing := func(name string, cost int) func(int) request {
		return askedBy("/cost", fmt.Sprintf("%s\r\nx-send: x-cost: %d", name, cost))
	}
	require.Equal(t, 400, count(c.closed.load(8).send(t, 400, costing("bulk", 7)), allowed))
	becomes("cost=bulk", 2800)
	tight := c.closed.load(8).send(t, 200, costing("ivy", 7))
	passed := count(tight, allowed)
	require.Equal(t, len(tight), passed+count(tight, denied))
	require.GreaterOrEqual(t, passed, 15, "15 answers cost more than the limit")
	eventually(t, 2*time.Second, "the limit to be exceeded", func() bool { return c.charged(t, "cost=ivy") >= 15*7 })
	require.LessOrEqual(t, c.charged(t, "cost=ivy"), 7*passed, "what comes later is known to be too much")
	require.Equal(t, 130, c.charged(t, "cost=gil"), "what is denied costs nothing")
	require.Zero(t, c.charged(t, "cost=hal"))
	require.Equal(t, denied, send("1"))
}

// failureMode: without the services, failure_mode_deny decides, and they are called again by themselves.
func (c *calledByEnvoy) failureMode(t *testing.T) {
	require.NoError(t, c.named.Kill())
	require.NoError(t, c.quota.Signal(syscall.SIGSTOP))
	patient := http.Client{Timeout: time.Second}
	eventually(t, 10*time.Second, "the second service to stand still", func() bool { // the signal takes a moment
		res, err := patient.Get("http://" + c.quota.http + "/healthz")
		return err != nil || res.Body.Close() != nil
	})
	eventually(t, 10*time.Second, "Envoy to go on without it", func() bool {
		return c.open.status(t, "/header", "x-user-id", "ann") == allowed
	})
	for range 3 {
		require.Equal(t, allowed, c.open.status(t, "/header", "x-user-id", "ann"))
	}
	c.quota.kill()
	for range 3 {
		require.Equal(t, allowed, c.open.status(t, "/header", "x-user-id", "ann"))
		require.Equal(t, http.StatusInternalServerError, c.closed.status(t, "/header", "x-user-id", "ann"))
		require.Equal(t, allowed, c.closed.status(t, "/ready"))
	}
	c.quota.start(t)
	c.untilHealthy(t, 1)
	// Each worker of Envoy hears by itself that a service is healthy again.
	for _, call := range []struct {
		proxy *proxy
		user  string
		want  int
	}{{c.open, "ann", denied}, {c.closed, "ann", denied}, {c.closed, "jan", allowed}} {
		eventually(t, 10*time.Second, "the service to be called again", func() bool {
			return call.proxy.status(t, "/header", "x-user-id", call.user) == call.want
		})
	}
}
