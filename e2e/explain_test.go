package e2e

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// explain runs `sluice explain` on the proxy.
func (p *proxy) explain(t *testing.T, args ...string) (answer struct {
	Allowed  bool   `json:"allowed"`
	DeniedBy string `json:"denied_by"`
	Rules    []struct {
		Rule, Outcome, Why string
		Override           *struct{ Index int }
		Windows            []struct{ Limit, Used, Remaining uint32 }
	}
}) {
	t.Helper()
	token := file(t, "token", token+"\n")
	text, errs, exit := sluice(t, append([]string{"explain", "--output", "json", "--manage-token-file", token, "--proxy", "http://" + p.address + "/.sluice/"}, args...)...)
	require.Zero(t, exit, errs)
	var printed struct{ Proxies []json.RawMessage }
	require.NoError(t, json.Unmarshal([]byte(text), &printed))
	require.NoError(t, json.Unmarshal(printed.Proxies[0], &answer))
	return answer
}

// Explain sees what requests have counted, and counts nothing.
func TestExplain(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		s := serve(t, d, `
version: 1
rules:
  - name: per-user
    match: {hosts: ["*.shop.example"], paths: ["/v1/*"]}
    key: [{header: x-user-id}]
    limits: [5/`+far+`]
    overrides: [{key: ["gold-*"], limits: [50/`+far+`]}]
  - {name: writes, match: {methods: [POST, PUT]}, limits: [0/`+far+`]}
`+managed)
		const host, path = "eu.shop.example", "/v1/x"
		alice := []string{"--host", host, "--path", path, "--header", "x-user-id: alice"}
		stats := func() uint64 { return s.operate(t, "stats", "rule=per-user").Rules[0].Keys }

		for used := range uint32(6) {
			for range workers { // on new connections, to reach all workers
				x := s.explain(t, alice...)
				require.Equal(t, used < 5, x.Allowed)
				require.Equal(t, "matches", x.Rules[0].Outcome)
				require.Equal(t, used, x.Rules[0].Windows[0].Used)
				require.Equal(t, 5-used, x.Rules[0].Windows[0].Remaining)
				require.Equal(t, "no_match", x.Rules[1].Outcome)
				require.Equal(t, "methods: GET is not one of POST, PUT", x.Rules[1].Why)
			}
			want := allowed
			if used == 5 {
				want = denied
			}
			require.Equal(t, want, s.status(t, path, ":host", host, "x-user-id", "alice"))
		}
		require.Equal(t, "per-user", s.explain(t, alice...).DeniedBy)
		require.EqualValues(t, 1, stats())

		x := s.explain(t, "--", "curl", "-d", "a=b", "-H", "x-user-id: gold-1", "https://"+host+path)
		require.Equal(t, "writes", x.DeniedBy)
		require.Zero(t, x.Rules[0].Override.Index)
		require.EqualValues(t, 50, x.Rules[0].Windows[0].Remaining)
		require.EqualValues(t, 1, stats(), "a key that was only explained has no record")
		require.Equal(t, "paths: / is not one of /v1/*", s.explain(t, "--host", host).Rules[0].Why)
		require.NotContains(t, s.log(), "gold-1")
	})
}
