package e2e

import (
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// fieldScenarios are the tests of fields that a fieldCase cannot show.
var fieldScenarios = []struct {
	test   func(t *testing.T)
	fields string
}{
	{TestFieldVersionAndRevision, "policy.version policy.revision"},
	{TestPolicies, "policy.name policy.proxies proxies.node proxies.cluster proxies.metadata proxies.trust"},
	{TestPolicyOfACertificate, "proxies.san"},
	{TestFieldDomain, "policy.domain"},
	{TestFieldHeaders, "policy.headers"},
	{TestFieldRulesAndMatch, "policy.rules policy.exempt rule.match"},
	{TestFieldManage, "policy.manage manage.path manage.token_sha256 manage.port"},
	{TestOneControlPlane, "policy.report_keys policy.report_secret"},
	{TestFieldScope, "policy.quota quota.cluster quota.timeout rule.scope rule.lease rule.on_unavailable"},
	{TestFieldOnErrorAndContention, "rule.on_error rule.on_contention"},
	{TestFieldOffsetAndJitter, "limit.offset limit.jitter limit.utc_offset"},
	{TestWhoTheClientIs, "client_ip.v6_prefix"},
	{TestKeyJWTAndRoute, "key.route key.jwt jwt.provider jwt.claim"},
	{TestALimitThatTheTokenSays, "requests.jwt requests.trusted"},
	{TestFieldHold, "rule.hold rule.max_hold"},
	{TestFieldsOfClientsThatLeave, "rule.linger answer.no_answer slots.name"},
}

// refused applies a policy that the control plane must refuse, and requires that the
// proxy keeps the one it runs.
func (s site) refused(t *testing.T, policy, message string) {
	before := s.runs(t)
	sluiceRefuses(t, message, s.control.applying(t, policy)...)
	require.Equal(t, before, s.runs(t))
}

func TestFieldVersionAndRevision(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		s := serve(t, d, "version: 1\nrules: [{name: r, limits: [0/1h]}]\n")
		require.Equal(t, denied, s.status(t, "/"))
		s.refused(t, "version: 2\nrules: []\n", ":1:10: version: 2 is not known")
		s.refused(t, "rules: []\n", "version: is missing")
		s.refused(t, "version: 1\nrevision: mine\nrules: []\n", ":2:11: revision: is reserved")
		require.Equal(t, denied, s.status(t, "/"), "the last good policy stays")
	})
}

// Another domain has other counters.
func TestFieldDomain(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		s := serve(t, d, "version: 1\n")
		for _, step := range []struct {
			domain string
			want   int
		}{{"x", allowed}, {"y", allowed}, {"x", denied}, {"y", denied}} {
			s.control.apply(t, "version: 1\ndomain: "+s.domain+step.domain+"\nrules: [{name: r, limits: [1/"+far+"]}]\n")
			require.Equal(t, step.want, s.status(t, "/"), step.domain)
		}
	})
}

func TestFieldHeaders(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		s := serve(t, d, "version: 1\n")
		var admitted int                               // by one counter, though Envoy makes another VM where responses begin or cease to matter
		for headers, want := range map[string][2]bool{ // ratelimit, x-ratelimit-limit
			"": {}, "headers: none\n": {}, "headers: ietf\n": {true, false}, "headers: x-ratelimit\n": {false, true}, "headers: both\n": {true, true},
		} {
			s.apply(t, "version: 1\n"+headers+"rules: [{name: r, algorithm: fixed_window_per_key, limits: [1/"+far+"]}]\n")
			for range 2 {
				res, _ := s.get(t, "/")
				if res.StatusCode == allowed {
					admitted++
				}
				require.Equal(t, want, [2]bool{len(res.Header.Values("ratelimit")) == 1, res.Header.Get("x-ratelimit-limit") != ""}, headers)
				require.Equal(t, want[0], res.Header.Get("ratelimit-policy") != "")
				require.Equal(t, want[1], res.Header.Get("x-ratelimit-remaining") != "" && res.Header.Get("x-ratelimit-reset") != "")
			}
		}
		require.Equal(t, 1, admitted)
	})
}

func TestFieldRulesAndMatch(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		s := serve(t, d, "version: 1\nrules: [{name: r, match: {paths: [/r]}, limits: [0/1h]}]\n")
		require.Equal(t, denied, s.status(t, "/r"))
		require.Equal(t, allowed, s.status(t, "/"))
		s.apply(t, "version: 1\nrules: [{name: r, limits: [0/1h]}]\n")
		require.Equal(t, denied, s.status(t, "/r"))
		require.Equal(t, denied, s.status(t, "/"))
		s.apply(t, "version: 1\nexempt: [{paths: [/health]}]\nrules: [{name: r, limits: [0/1h]}, {name: s, key: [client_ip], limits: [0/1h]}]\n")
		require.Equal(t, allowed, s.status(t, "/health"), "by each of the rules")
		require.Equal(t, denied, s.status(t, "/"))
		for _, empty := range []string{"version: 1\nrules: []\n", "version: 1\n"} {
			s.apply(t, empty)
			require.Equal(t, allowed, s.status(t, "/r"))
		}
	})
}

func TestFieldManage(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		s := serve(t, d, "version: 1\n")
		_, port, err := net.SplitHostPort(s.address)
		require.NoError(t, err)
		const sha = ", token_sha256: "
		upstreams := allowed // the upstream's status for any path
		for _, c := range []struct {
			manage        string
			test, another int // with the token "test", at the paths /test/ and /another/
		}{
			{"", upstreams, upstreams},
			{"manage: {path: /test/" + sha + tokenSHA256 + "}\n", 200, upstreams},
			{"manage: {path: /another/" + sha + tokenSHA256 + "}\n", upstreams, 200},
			{"manage: {path: /test/" + sha + strings.Repeat("a", 64) + "}\n", 401, upstreams},
			{"manage: {path: /test/, port: " + port + sha + tokenSHA256 + "}\n", 200, upstreams},
			{"manage: {path: /test/, port: 1" + sha + tokenSHA256 + "}\n", 404, upstreams},
		} {
			s.apply(t, "version: 1\n"+c.manage+"rules: [{name: r, limits: [1000/"+far+"]}]\n")
			for path, want := range map[string]int{"/test/": c.test, "/another/": c.another} {
				res, body := s.get(t, path+"counters/stats", ":method", "POST", "authorization", bearer)
				require.Equal(t, want, res.StatusCode, "%s%s", c.manage, path)
				if want == allowed {
					require.Equal(t, body == "hello\n", res.Header.Get("x-upstream") != "")
				}
			}
		}
	})
}

// A rule of scope cluster counts at the quota service, so it starts anew there.
func TestFieldScope(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		rule := "version: 1\nrules: [{name: r, scope: proxy, limits: [1/" + far + "]}]\n"
		s := serve(t, d, rule)
		require.Equal(t, allowed, s.status(t, "/"))
		s.apply(t, strings.Replace(rule, "scope: proxy, ", "", 1))
		require.Equal(t, denied, s.status(t, "/"), "proxy is the default: the same counters")
		s.refused(t, strings.Replace(rule, "proxy", "clutser", 1), "rules[0].scope: ")
		s.refused(t, strings.Replace(rule, "proxy", "proxy, lease: off", 1), "rules[0].lease: only a rule of scope cluster")
		s.refused(t, strings.Replace(rule, "proxy", "proxy, on_unavailable: deny", 1), "rules[0].on_unavailable: only a rule of scope cluster")
		s.refused(t, "version: 1\nquota: {cluster: '', timeout: 1h}\n", "quota.timeout: must be 1ms to 10s")

		cluster := strings.Replace(rule, "proxy", "cluster, on_unavailable: deny", 1)
		s.apply(t, cluster)
		require.Equal(t, allowed, s.status(t, "/"))
		require.Equal(t, denied, s.status(t, "/"))
		s.apply(t, strings.Replace(cluster, "deny", "deny, lease: off", 1))
		require.Equal(t, denied, s.status(t, "/"), "the same counters")
		if d.envoy == "" {
			return // it has one service, whatever the policy calls it
		}
		nowhere := "version: 1\nquota: {cluster: nowhere, timeout: 20ms}"
		s.apply(t, strings.Replace(strings.Replace(cluster, "version: 1", nowhere, 1), "deny", "allow", 1))
		eventually(t, 2*time.Second, "on_unavailable to decide, without a service", func() bool {
			return s.status(t, "/") == allowed // the denial before is remembered for a second
		})
	})
}

// Two planted faults: reads of counters fail, and no write wins its race.
func TestFieldOnErrorAndContention(t *testing.T) {
	t.Parallel()
	const policy = `
version: 1
rules:
  - {name: default, match: {paths: [/default]}, limits: [9/` + far + `]}
  - {name: allow, match: {paths: [/allow]}, limits: [9/` + far + `], on_error: allow, on_contention: allow}
  - {name: deny, match: {paths: [/deny]}, limits: [9/` + far + `], on_error: deny, on_contention: deny}
`
	wasm := buildtest.Filter(t, "sluice_faults")
	each(t, func(t *testing.T, d driver) {
		p := d.start(t, proxyOptions{wasm: wasm, policy: policy})
		for _, c := range []struct {
			fault        string
			defaultValue int
			metric       string
		}{
			{"reads-fail", allowed, "rate_limit_errors_total"},
			{"writes-lose", denied, "rate_limit_contention_total"},
		} {
			require.Equal(t, c.defaultValue, p.status(t, "/default", "x-fault", c.fault), c.fault)
			require.Equal(t, allowed, p.status(t, "/allow", "x-fault", c.fault), c.fault)
			res, _ := p.get(t, "/deny", "x-fault", c.fault)
			require.Equal(t, denied, res.StatusCode, c.fault)
			require.Equal(t, "1", res.Header.Get("retry-after"))
			eventually(t, 10*time.Second, "the metric", func() bool {
				n, _ := p.metric(t, c.metric, "deny")
				return n == 1
			})
		}
	})
}

var resetText = regexp.MustCompile(`;t=(\d+)`)

// reset returns the seconds to the window's end, from the response's RateLimit field.
func (p *proxy) reset(t *testing.T, path string, headers ...string) int64 {
	res, _ := p.get(t, path, headers...)
	m := resetText.FindStringSubmatch(res.Header.Get("ratelimit"))
	require.NotNil(t, m, res.Header)
	seconds, err := strconv.ParseInt(m[1], 10, 64)
	require.NoError(t, err)
	return seconds
}

func TestFieldOffsetAndJitter(t *testing.T) {
	const year, day = 366 * 86400, 86400
	each(t, func(t *testing.T, d driver) {
		s := serve(t, d, `
version: 1
headers: ietf
rules:
  - {name: plain, match: {paths: [/plain]}, limits: [{requests: 9, per: 366d}]}
  - {name: offset, match: {paths: [/offset]}, limits: [{requests: 9, per: 366d, offset: 100d}]}
  - {name: months, match: {paths: [/months]}, limits: [{requests: 9, per: month, utc_offset: "-12:00"}]}
  - {name: jitter, match: {paths: [/jitter]}, key: [{header: u}], limits: [{requests: 9, per: 366d, jitter: 50%}]}
`)
		now := time.Now().Unix()
		left := func(offset int64) int64 { return year - (now-offset)%year }
		require.InDelta(t, left(0), s.reset(t, "/plain"), 10)
		require.InDelta(t, left(100*day), s.reset(t, "/offset"), 10)
		west := time.Unix(now, 0).In(time.FixedZone("", -12*3600))
		end := time.Date(west.Year(), west.Month()+1, 1, 0, 0, 0, 0, west.Location()).Unix()
		require.InDelta(t, end-now, s.reset(t, "/months"), 10)
		resets := map[int64]bool{}
		for i := range 8 {
			resets[s.reset(t, "/jitter", "u", fmt.Sprint("key", i))/day] = true
		}
		require.Greater(t, len(resets), 4, "windows of different keys end at different times")
	})
}
