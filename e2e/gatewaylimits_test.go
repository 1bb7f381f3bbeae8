//go:build gateway

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// globalPolicy is a BackendTrafficPolicy with limits of type Global. Each of its routes has the path
// /limits/NAME.
type globalPolicy struct {
	Routes []string
	Rules  string
}

// limitUnits are the units of limits.
var limitUnits = []struct {
	name    string
	seconds int
}{
	{"Second", 1},
	{"Minute", 60},
	{"Hour", 3600},
	{"Day", 86_400},
	{"Week", 7 * 86_400},
	{"Month", 30 * 86_400},
	{"Year", 365 * 86_400},
}

// globalPolicies try each kind of global limit that Envoy Gateway has, on a route of its own. Costs come
// from metadata: with a cost from: Number, Envoy Gateway 1.9.1 on a host ends with a panic.
func globalPolicies() []globalPolicy {
	when := func(selector string, requests int) string {
		return fmt.Sprintf("{clientSelectors: [{%s}], limit: {requests: %d, unit: Year}}", selector, requests)
	}
	cost := func(key string) string { return "{from: Metadata, metadata: {namespace: limits, key: " + key + "}}" }
	byUser := "headers: [{name: x-user-id, type: Distinct}]"
	var units []string
	for _, unit := range limitUnits {
		units = append(units, "{clientSelectors: [{headers: [{name: x-unit, value: "+unit.name+"}]}], "+
			"limit: {requests: 1, unit: "+unit.name+"}}")
	}
	return []globalPolicy{
		{[]string{"none"}, "{limit: {requests: 0, unit: Year}}"},
		{[]string{"all"}, "{limit: {requests: 4, unit: Year}}"},
		{[]string{"exact"}, when("headers: [{name: x-plan, value: free}]", 2)},
		{[]string{"regex"}, when("headers: [{name: x-plan, type: RegularExpression, value: 'f.*'}]", 2)},
		{[]string{"inverted"}, when("headers: [{name: x-plan, value: free, invert: true}]", 1)},
		{[]string{"distinct"}, when(byUser, 3)},
		{[]string{"claim"}, when("headers: [{name: x-subject, type: Distinct}]", 2)},
		{[]string{"method"}, when("methods: [{value: POST}, {value: PUT}]", 2)},
		{[]string{"path"}, when("path: {type: Exact, value: /limits/path/deep}", 1)},
		{[]string{"prefix"}, when("path: {value: /limits/prefix/deep}", 2)},
		{[]string{"range"}, when("sourceCIDR: {value: 127.0.1.0/24}", 3)},
		{[]string{"address"}, when("sourceCIDR: {value: 127.0.2.0/24, type: Distinct}", 2)},
		{[]string{"outside"}, when("sourceCIDR: {value: 127.0.3.0/24, invert: true}", 1)},
		{[]string{"query"}, when("queryParams: [{name: tenant, type: Distinct}]", 2)},
		{[]string{"parameter"}, when("queryParams: [{name: tenant, value: acme}]", 2)},
		{[]string{"together"}, when(byUser+", methods: [{value: POST}], sourceCIDR: {value: 127.0.1.0/24}", 1)},
		{[]string{"unit"}, strings.Join(units, ", ")},
		{[]string{"two"}, when(byUser, 2) + ", {limit: {requests: 5, unit: Year}}"},
		{[]string{"shared", "sharing"}, "{limit: {requests: 3, unit: Year}, shared: true}"},
		{[]string{"shadow"}, "{limit: {requests: 2, unit: Year}, shadowMode: true}"},
		{[]string{"own"}, "{limit: {requests: 2, unit: Year, fromMetadata: {namespace: limits, key: own}}}"},
		{[]string{"five"}, "{limit: {requests: 12, unit: Year}, cost: {request: " + cost("request") + "}}"},
		{[]string{"cost"}, "{clientSelectors: [{" + byUser + "}], limit: {requests: 100, unit: Year}, " +
			"cost: {request: " + cost("request") + ", response: " + cost("cost") + "}}"},
	}
}

// globalRequests share counters: they are sent one after the other. A service counts what it denies.
func (g *gateway) globalRequests(t *testing.T) []calledRequest {
	token := func(subject string) []string {
		return []string{"authorization", g.tokens.sign(t, `{"iss":"me","sub":"`+subject+`"}`)}
	}
	post := []string{":method", http.MethodPost}
	return []calledRequest{
		{"all requests", "/limits/all", nil, 5, 4},
		{"a header's value", "/limits/exact", []string{"x-plan", "free"}, 4, 2},
		{"another value", "/limits/exact", []string{"x-plan", "paid"}, 5, 5},
		{"a value that an expression matches", "/limits/regex", []string{"x-plan", "future"}, 3, 2},
		{"one that it does not", "/limits/regex", []string{"x-plan", "paid"}, 3, 3},
		{"a value but one", "/limits/inverted", []string{"x-plan", "paid"}, 2, 1},
		{"that one", "/limits/inverted", []string{"x-plan", "free"}, 3, 3},
		{"each value of a header", "/limits/distinct", []string{"x-user-id", "ann"}, 5, 3},
		{"each other value", "/limits/distinct", []string{"x-user-id", "bob"}, 4, 3},
		{"no header", "/limits/distinct", nil, 5, 5},
		{"a claim", "/limits/claim", token("ann"), 3, 2},
		{"another claim", "/limits/claim", token("bob"), 3, 2},
		{"a method", "/limits/method", post, 1, 1},
		{"or another", "/limits/method", []string{":method", http.MethodPut}, 2, 1},
		{"neither", "/limits/method", nil, 4, 4},
		{"a path", "/limits/path/deep", nil, 2, 1},
		{"another path", "/limits/path/other", nil, 3, 3},
		{"a path below a prefix", "/limits/prefix/deep/1", nil, 2, 2},
		{"another below it", "/limits/prefix/deep/2", nil, 1, 0},
		{"a path that is not below it", "/limits/prefix/deeper", nil, 3, 3},
		{"a range of addresses", "/limits/range", []string{":from", "127.0.1.1"}, 2, 2},
		{"another address of it", "/limits/range", []string{":from", "127.0.1.2"}, 3, 1},
		{"one that is not of it", "/limits/range", []string{":from", "127.0.2.1"}, 5, 5},
		{"each address of a range", "/limits/address", []string{":from", "127.0.2.1"}, 3, 2},
		{"each other", "/limits/address", []string{":from", "127.0.2.2"}, 3, 2},
		{"one outside of it", "/limits/address", []string{":from", "127.0.1.1"}, 4, 4},
		{"all addresses outside a range", "/limits/outside", []string{":from", "127.0.2.1"}, 2, 1},
		{"one inside", "/limits/outside", []string{":from", "127.0.3.1"}, 3, 3},
		{"each value of a parameter", "/limits/query?tenant=acme", nil, 3, 2},
		{"each other of a parameter", "/limits/query?tenant=other", nil, 3, 2},
		{"a parameter's value", "/limits/parameter?tenant=acme", nil, 3, 2},
		{"another value of a parameter", "/limits/parameter?tenant=other", nil, 3, 3},
		{"all conditions", "/limits/together", append([]string{":from", "127.0.1.1", "x-user-id", "ann"}, post...), 2, 1},
		{"not all", "/limits/together", append([]string{"x-user-id", "ann"}, post...), 3, 3},
		{"two rules", "/limits/two", []string{"x-user-id", "ann"}, 3, 2},
		{"of which the other counted the denied one too", "/limits/two", []string{"x-user-id", "bob"}, 2, 2},
		{"and denies now", "/limits/two", []string{"x-user-id", "cid"}, 1, 0},
		{"one limit of two routes", "/limits/shared", nil, 2, 2},
		{"which the other has as well", "/limits/sharing", nil, 2, 1},
		{"and the first", "/limits/shared", nil, 1, 0},
		{"a shadow", "/limits/shadow", nil, 4, 4},
		{"a limit that metadata has", "/limits/own", []string{"x-limit", "5"}, 3, 3},
		{"and the limit of the rule", "/limits/own", nil, 1, 0},
		{"five a request", "/limits/five", []string{"x-request-cost", "5"}, 3, 2},
	}
}

// applyGlobalLimits applies the policies, and waits until they are in force, which the first one shows:
// it lets nothing pass, or a million requests.
func (g *gateway) applyGlobalLimits(t *testing.T, policies []globalPolicy, status int) {
	g.apply(t, "limits", g.fill(t, "envoygateway-limits.yaml", map[string]any{
		"Dir": g.dir, "Keys": g.tokens.keys(t), "Service": port(g.limiter.grpc), "Policies": policies}))
	awaitStatus(t, status, g.web, "/limits/none")
}

// startLimiter starts the rate limit service with the environment that Envoy Gateway gives it in a
// cluster. But for that, addresses and files are those of this machine, where the xDS server is not
// called by the name in its certificate.
func (g *gateway) startLimiter(t *testing.T) {
	certs := g.path("config/certs/envoy-rate-limit")
	g.limiter.start(t, nil,
		"CONFIG_GRPC_XDS_SERVER_URL=localhost:18001", "CONFIG_GRPC_XDS_SERVER_TLS_SAN=envoy-gateway",
		"RUNTIME_ROOT=/data", "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_IGNOREDOTFILES=true", "RUNTIME_WATCH_ROOT=false",
		"LOG_LEVEL=info", "USE_STATSD=false", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit",
		"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+certs+"/tls.crt", "GRPC_SERVER_TLS_KEY="+certs+"/tls.key",
		"GRPC_SERVER_TLS_CA_CERT="+certs+"/ca.crt", "CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
		"CONFIG_GRPC_XDS_CLIENT_TLS_CERT="+certs+"/tls.crt", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY="+certs+"/tls.key",
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT="+certs+"/ca.crt", "FORCE_START_WITHOUT_INITIAL_CONFIG=true",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=redis://"+g.limiter.redis,
		"USE_PROMETHEUS=true", "PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml")
}

// globalLimits has sluice in the place of the rate limit service of Envoy Gateway, which sends it its
// configuration, and whose proxy calls it.
func globalLimits(t *testing.T, g *gateway) {
	g.web.await(t) // what is applied while Envoy Gateway starts is lost
	g.startLimiter(t)
	policies := globalPolicies()
	g.applyGlobalLimits(t, policies, denied)
	for _, r := range g.globalRequests(t) {
		g.send(t, r)
	}
	g.countsInUnits(t)
	g.chargesCosts(t)
	g.requireMetrics(t)

	// A change keeps what was counted.
	policies[0].Rules = replaced(t, policies[0].Rules, "requests: 0", "requests: 1000000")
	policies[1].Rules = replaced(t, policies[1].Rules, "requests: 4", "requests: 8")
	last := len(policies) - 1
	policies[last].Rules = replaced(t, policies[last].Rules, "requests: 100", "requests: 1000")
	g.applyGlobalLimits(t, policies, allowed)
	g.send(t, calledRequest{"a higher limit", "/limits/all", nil, 4, 3})
	_, left := g.spend(t, "ann", "0")
	require.Equal(t, "870", left, "all was charged, also what was over the limit")

	// The counters outlive the service, and nothing passes without it.
	require.NoError(t, g.limiter.Kill())
	awaitStatus(t, http.StatusInternalServerError, g.web, "/limits/none")
	g.startLimiter(t)
	awaitStatus(t, denied, g.web, "/limits/all")
	g.send(t, calledRequest{"after a restart", "/limits/distinct", []string{"x-user-id", "ann"}, 2, 0})
	_, left = g.spend(t, "ann", "0")
	require.Equal(t, "870", left)
}

// send sends requests on connections of their own: older ones keep the listener that they began with.
func (g *gateway) send(t *testing.T, r calledRequest) {
	r.headers = append(r.headers, "connection", "close")
	r.send(t, g.web)
}

// countsInUnits: the window of a limit is one of its unit, and ends.
func (g *gateway) countsInUnits(t *testing.T) {
	for _, unit := range limitUnits {
		res, _ := g.web.get(t, "/limits/unit", "x-unit", unit.name, "connection", "close")
		require.Equal(t, allowed, res.StatusCode, unit.name)
		require.Equal(t, fmt.Sprint("1, 1;w=", unit.seconds), res.Header.Get("X-RateLimit-Limit"))
		require.Equal(t, "0", res.Header.Get("X-RateLimit-Remaining"), unit.name)
	}
	for _, want := range []int{denied, allowed} {
		eventually(t, 2*time.Second, fmt.Sprint(want, " within seconds"), func() bool {
			return g.web.status(t, "/limits/unit", "x-unit", "Second", "connection", "close") == want
		})
	}
}

// spend sends a request whose answer has this cost. It returns what was left before.
func (g *gateway) spend(t *testing.T, user, cost string) (status int, left string) {
	res, _ := g.web.get(t, "/limits/cost", "x-user-id", user, "x-send", "x-cost: "+cost, "connection", "close")
	return res.StatusCode, res.Header.Get("X-RateLimit-Remaining")
}

// chargesCosts: a request passes until the limit is exceeded, and pays what its answer cost.
func (g *gateway) chargesCosts(t *testing.T) {
	type charge struct{ user, cost, left string }
	for _, charge := range []charge{{"ann", "40", "60"}, {"ann", "90", "0"}, {"bob", "0", "100"}} {
		status, _ := g.spend(t, charge.user, charge.cost)
		require.Equal(t, allowed, status, charge)
		eventually(t, 2*time.Second, "the cost to be charged", func() bool {
			_, left := g.spend(t, charge.user, "0")
			return left == charge.left
		})
	}
	status, _ := g.spend(t, "ann", "1000")
	require.Equal(t, denied, status)
}

// requireMetrics: the service has counted what was sent, and what a shadow would have denied.
func (g *gateway) requireMetrics(t *testing.T) {
	series := g.limiter.series(t)
	require.Zero(t, series["ratelimit_service_config_load_error"])
	require.NotZero(t, series["ratelimit_service_config_load_success"])
	counted := map[string]float64{}
	for name, value := range series {
		metric, labels, _ := strings.Cut(strings.TrimPrefix(name, "ratelimit_service_rate_limit_"), "{")
		for _, route := range []string{"distinct", "shadow"} {
			if strings.Contains(labels, "/limits-"+route+"/") && value > 0 && metric != "over_limit_with_local_cache" {
				counted[route+" "+metric] += value
			}
		}
	}
	require.Equal(t, map[string]float64{
		"distinct total_hits": 9, "distinct within_limit": 6, "distinct near_limit": 2, "distinct over_limit": 3,
		"shadow total_hits": 4, "shadow within_limit": 2, "shadow near_limit": 1, "shadow over_limit": 2,
		"shadow shadow_mode": 2,
	}, counted)
}
