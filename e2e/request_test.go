package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMatchAndKey(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		s := serve(t, d, `
version: 1
rules:
  - {name: hosts, match: {hosts: ["*.shop.example"]}, key: [host, {header: n}], limits: [1/`+far+`]}
  - {name: methods, match: {methods: [DELETE], paths: ["/m"]}, limits: [0/`+far+`]}
  - {name: paths, match: {paths: ["=/login", "~/u/[0-9]+"]}, key: [{path: full}], limits: [1/`+far+`]}
  - {name: segment, match: {paths: ["/s/*"]}, key: [{path: {segment: 2}}, method], limits: [1/`+far+`]}
  - {name: headers, match: {headers: {x-tenant: "acme-*", x-free: "!"}}, limits: [0/`+far+`]}
  - {name: client, match: {paths: [/ip]}, key: [client_ip], limits: [1/`+far+`]}
  - {name: cost, match: {paths: [/cost]}, key: [{header: n}], cost: {header: x-cost, max: 5}, limits: [7/`+far+`]}
  - {name: off, mode: "off", limits: [0/`+far+`]}
`)
		s.walk(t, []step{
			{allowed, "/", []string{":host", "eu.shop.example:8443", "n", "1"}},
			{denied, "/", []string{":host", "EU.shop.example", "n", "1"}},
			{allowed, "/", []string{":host", "us.shop.example", "n", "1"}},
			{allowed, "/", []string{":host", "eu.shop.example", "n", "2"}},
			{allowed, "/", []string{":host", "shop.example", "n", "1"}},
			{allowed, "/m", nil},
			{denied, "/m", []string{":method", "DELETE"}},
			{allowed, "/login", nil},
			{denied, "/login?again=1", nil},
			{denied, "/x/../login", nil},
			{allowed, "/u/17", nil},
			{denied, "/u/17", nil},
			{allowed, "/u/18", nil},
			{allowed, "/u/x", nil},
			{allowed, "/u/x", nil},
			{allowed, "/s/a", nil},
			{denied, "/s/a/b", nil},
			{allowed, "/s/a", []string{":method", "POST"}},
			{denied, "/", []string{"x-tenant", "acme-7"}},
			{allowed, "/", []string{"x-tenant", "acme-7", "x-free", ""}},
			{allowed, "/", []string{"x-tenant", "other"}},
			{allowed, "/ip", nil},
			{denied, "/ip", []string{"x-forwarded-for", "203.0.113.9"}},
			{allowed, "/cost", []string{"n", "a", "x-cost", "5"}},
			{denied, "/cost", []string{"n", "a", "x-cost", "3"}},
			{allowed, "/cost", []string{"n", "a", "x-cost", "2"}},
			{denied, "/cost", []string{"n", "a", "x-cost", "0"}},
			{allowed, "/cost", []string{"n", "b", "x-cost", "1000"}},
			{denied, "/cost", []string{"n", "b", "x-cost", "1", "x-cost", "2"}}, // 5: an upstream may read either
			{denied, "/cost", []string{"n", "b", "x-cost", "nonsense"}},
			{allowed, "/cost", []string{"n", "b", "x-cost", "1", "x-cost", "1"}},
			{allowed, "/cost", []string{"n", "b"}},
			{denied, "/cost", []string{"n", "b"}},
		})
	})
}

func TestResponses(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		s := serve(t, d, `
version: 1
headers: both
rules:
  - name: per-user
    key: [{header: x-user-id}]
    algorithm: fixed_window_per_key
    limits: [2/1h, {requests: 50, per: 1d, name: daily}]
`)
		res, body := s.get(t, "/", "x-user-id", "alice")
		require.Equal(t, allowed, res.StatusCode)
		require.Equal(t, "hello\n", body)
		require.Equal(t, "yes", res.Header.Get("x-upstream"))
		require.Equal(t, `"per-user/0";q=2;w=3600, "per-user/daily";q=50;w=86400`, res.Header.Get("ratelimit-policy"))
		require.Equal(t, `"per-user/0";r=1;t=3600, "per-user/daily";r=49;t=86400`, res.Header.Get("ratelimit"))
		require.Equal(t, "2, 2;w=3600, 50;w=86400", res.Header.Get("x-ratelimit-limit"))
		require.Equal(t, "1", res.Header.Get("x-ratelimit-remaining"))
		require.Equal(t, "3600", res.Header.Get("x-ratelimit-reset"))
		require.Empty(t, res.Header.Get("retry-after"))

		s.get(t, "/", "x-user-id", "alice")
		res, body = s.get(t, "/", "x-user-id", "alice")
		require.Equal(t, denied, res.StatusCode)
		require.Equal(t, "rate limit exceeded\n", body)
		require.Contains(t, []string{"3600", "3599", "3598", "3597"}, res.Header.Get("retry-after"))
		require.Len(t, res.Header.Values("ratelimit"), 1, "a denial's fields come once")
		require.True(t, strings.HasPrefix(res.Header.Get("ratelimit"), `"per-user/0";r=0;t=`))

		res, _ = s.get(t, "/", "x-user-id", "alice", "content-type", "application/grpc")
		require.Equal(t, allowed, res.StatusCode)
		require.Equal(t, "8", res.Header.Get("grpc-status"), "RESOURCE_EXHAUSTED")

		res, _ = s.get(t, "/")
		require.Equal(t, allowed, res.StatusCode, "without the key the rule does not apply")
		require.Empty(t, res.Header.Get("ratelimit"))
	})
}

const (
	token       = "operator-token-of-the-tests"
	tokenSHA256 = "11371aff22562e1c8540b6417a2429007fbbdb4ae0ffda050503b3d77632e972"
	bearer      = "Bearer " + token
)

func TestPeek(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		s := serve(t, d, perUser("3/"+far)+managed)
		s.get(t, "/", "x-user-id", "alice")
		for range 2 {
			res, body := s.get(t, "/.sluice/counters/peek?rule=per-user&key=alice&n=3", ":method", "POST", "authorization", bearer)
			require.Equal(t, 200, res.StatusCode)
			require.Equal(t, "application/json", res.Header.Get("content-type"))
			require.Contains(t, body, `{"allowed":false,"denied_by":"per-user","retry_after_ns":`)
			require.Contains(t, body, `"used":1,"remaining":2,`)
		}
		for _, bad := range []struct {
			status int
			method string
			path   string
			token  string
			want   string
		}{
			{401, "POST", "counters/peek?rule=per-user&key=alice", "Bearer nonsense", "bearer token"},
			{401, "POST", "counters/peek?rule=per-user&key=alice", "Basic test", "bearer token"},
			{401, "GET", "", "", "bearer token"},
			{404, "POST", "", bearer, "counters/peek"},
			{405, "GET", "counters/peek?rule=per-user&key=alice", bearer, "POST"},
			{400, "POST", "counters/steal?rule=per-user&key=alice", bearer, "unknown operation"},
			{400, "POST", "counters/peek?rule=nobody&key=alice", bearer, "no rule"},
			{400, "POST", "counters/peek?rule=per-user", bearer, "1 part, not 0"},
			{400, "POST", "counters/peek?rule=per-user&key=alice&n=-1", bearer, "n must be"},
			{400, "POST", "counters/peek?rule=%zz", bearer, "parse the query"},
			{400, "POST", "counters/peek?rule=per-user&key=alice&rule=per-user", bearer, "rule is given twice"},
			{400, "POST", "counters/peek?rule=per-user&key=alice&units=1", bearer, `unknown parameter \"units\"`},
		} {
			res, body := s.get(t, "/.sluice/"+bad.path, ":method", bad.method, "authorization", bad.token)
			require.Equal(t, bad.status, res.StatusCode, bad.path)
			require.Contains(t, body, bad.want, bad.path)
		}
	})
}

func TestMetrics(t *testing.T) {
	for _, d := range envoys(t) {
		t.Run(d.name, func(t *testing.T) {
			s := serve(t, d, strings.Replace(perUser("3/"+far), "per-user", "counted", 1))
			s.load(4).send(t, 10, user("alice"))
			s.awaitMetric(t, "rate_limit_allowed_total"+s.labels("counted")+" 3")
			s.awaitMetric(t, "rate_limit_denied_total"+s.labels("counted")+" 7")
		})
	}
}
