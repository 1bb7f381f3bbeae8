package e2e

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// A client cannot escape a rule by another spelling, over HTTP/1 and HTTP/2.
func TestSpellings(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		s := serve(t, d, `
version: 1
rules:
  - {name: tenant, match: {hosts: [tenant.example], headers: {x-tenant: "~ac+me"}}, limits: [0/`+far+`]}
  - {name: exempt, match: {hosts: [exempt.example]}, exempt: [{headers: {x-trusted: "yes"}}, {methods: [HEAD]}], limits: [0/`+far+`]}
  - {name: method, match: {hosts: [method.example], methods: [REPORT]}, limits: [0/`+far+`]}
`)
		versions := []string{"HTTP/1"}
		if d.envoy != "" { // the simulator's proxy speaks only HTTP/1
			versions = append(versions, "HTTP/2")
		}
		for _, version := range versions {
			client := &http.Client{Transport: transport(version)}
			status := func(method, host string, header http.Header) int {
				r, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.address+"/", http.NoBody)
				require.NoError(t, err)
				r.Host, r.Header = host, header
				res, err := client.Do(r)
				require.NoError(t, err, "%s %s %s %v", version, method, host, header)
				res.Body.Close()
				return res.StatusCode
			}
			for _, c := range []struct {
				want         int
				method, host string
				header       http.Header
			}{
				{denied, "GET", "tenant.example", http.Header{"X-Tenant": {"acme"}}},
				{denied, "GET", "tenant.example", http.Header{"X-Tenant": {"acme", "other"}}},
				{denied, "GET", "tenant.example", http.Header{"X-Tenant": {"other", "", "accme"}}},
				{allowed, "GET", "tenant.example", http.Header{"X-Tenant": {"other", "another"}}},
				{allowed, "GET", "tenant.example", http.Header{"X-Tenant": {"other,acme"}}},
				{allowed, "GET", "exempt.example", http.Header{"X-Trusted": {"yes"}}},
				{allowed, "GET", "exempt.example", http.Header{"X-Trusted": {"yes", "yes"}}},
				{denied, "GET", "exempt.example", http.Header{"X-Trusted": {"yes", "no"}}},
				{denied, "GET", "exempt.example", http.Header{"X-Trusted": {"no", "yes"}}},
				{allowed, "HEAD", "exempt.example", nil},
				{denied, "REPORT", "method.example", nil},
			} {
				require.Equal(t, c.want, status(c.method, c.host, c.header), "%s %v", version, c)
			}
			if version == "HTTP/2" { // over HTTP/1 Envoy accepts only methods that it knows
				require.Equal(t, denied, status("rePort", "method.example", nil))
				require.Equal(t, denied, status("head", "exempt.example", nil))
			}
			client.CloseIdleConnections()
		}
	})
}

// Envoy refuses a header with an underscore, because an upstream may treat it as the
// same header with a hyphen.
func TestUnderscores(t *testing.T) {
	for _, d := range envoys(t) {
		t.Run(d.name, func(t *testing.T) {
			s := serve(t, d, "version: 1\nrules: []\n")
			require.Equal(t, 400, s.raw(t, "/", "host: a", "x_tenant: acme").StatusCode)
			require.Equal(t, 200, s.raw(t, "/", "host: a", "x-tenant: acme").StatusCode)
			client := &http.Client{Transport: transport("HTTP/2")}
			defer client.CloseIdleConnections()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.address+"/", http.NoBody)
			require.NoError(t, err)
			r.Header["x_tenant"] = []string{"acme"}
			res, err := client.Do(r)
			if err == nil {
				res.Body.Close()
				require.Equal(t, 400, res.StatusCode)
			}
			require.NotContains(t, s.log(), "allowed active downstream connections", "the limit is set")
		})
	}
}

func transport(version string) *http.Transport {
	t := &http.Transport{Protocols: &http.Protocols{}}
	t.Protocols.SetHTTP1(version == "HTTP/1")
	t.Protocols.SetUnencryptedHTTP2(version == "HTTP/2")
	return t
}
