package policytest_test

import (
	"net/http"
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
