package api

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

var managed = good + "manage: {path: /.sluice/, token_sha256: \"" + strings.Repeat("5a", 32) + "\"}\n"

func TestManageAddresses(t *testing.T) {
	const peer = "192.0.2.7:4711"
	for _, tc := range []struct{ address, peer, want, problem string }{
		{"127.0.0.1:9902", "127.0.0.1:4711", "http://127.0.0.1:9902", ""},
		{"192.0.2.7:9902", peer, "http://192.0.2.7:9902", ""},
		{"edge.example:9902", peer, "http://edge.example:9902", ""},
		{"https://edge.example:9902", peer, "https://edge.example:9902", ""},
		{"0.0.0.0:9902", peer, "http://192.0.2.7:9902", ""},
		{"[::]:9902", "[2001:db8::1]:4711", "http://[2001:db8::1]:9902", ""},
		{":9902", peer, "http://192.0.2.7:9902", ""},
		{"127.0.0.1:9902", peer, "", "of loopback on its own machine"},
		{"localhost:9902", peer, "", "of loopback on its own machine"},
		{"[::1]:9902", peer, "", "of loopback on its own machine"},
		{"", peer, "", "it has told no management address"},
		{"9902", peer, "", `"9902" is not IP:PORT`},
		{"edge.example:http", peer, "", "is not IP:PORT"},
		{"edge.example:0", peer, "", "is not IP:PORT"},
		{"http://edge.example:9902", peer, "", "is not IP:PORT"},
		{"u:p@edge.example:1", peer, "", "is not IP:PORT"},
		{"https://a/b?x:1", peer, "", "is not IP:PORT"},
	} {
		scheme, host, err := manageHost(xds.Managed{Address: tc.address, Peer: tc.peer})
		if tc.problem != "" {
			require.ErrorContains(t, err, tc.problem, tc.address)
			continue
		}
		require.NoError(t, err, tc.address)
		require.Equal(t, tc.want, scheme+"://"+host)
	}
}

func TestManageTellsWhereProxiesAnswer(t *testing.T) {
	f := newFixture(t, "")
	var m Management
	f.json("GET", "/v1/manage", "", 200, &m)
	require.NotNil(t, m.Proxies)
	require.Empty(t, m.Proxies)

	yes := func(int) bool { return true }
	f.proxyWith("a", map[string]any{"manage": "127.0.0.1:9902"}, yes)
	f.proxyWith("b", nil, yes)
	f.proxyWith("c", map[string]any{"manage": "127.0.0.1:9902"}, yes)
	f.proxyWith("d", map[string]any{"manage": "127.0.0.1:9903"}, func(number int) bool { return number == 1 })
	problems := func(want ...string) {
		t.Helper()
		require.Eventually(t, func() bool {
			m = Management{}
			f.json("GET", "/v1/manage", "", 200, &m)
			for i, p := range m.Proxies {
				if p.URL == "" && p.Hint == "" || !strings.Contains(p.URL+p.Problem, want[i]) {
					return false
				}
			}
			return len(m.Proxies) == len(want)
		}, 2*time.Minute, 5*time.Millisecond, "%v", &m)
	}
	problems("not accepted a policy", "no management address", "not accepted a policy", "not accepted a policy")

	var a Applied
	f.json("POST", "/v1/policies", managed, 201, &a)
	problems("http://127.0.0.1:9902/.sluice/", "no management address", "127.0.0.1:9902 is also that of a", "http://127.0.0.1:9903/.sluice/")
	require.Equal(t, ManagedProxy{Node: "a", Revision: 1, URL: "http://127.0.0.1:9902/.sluice/"}, m.Proxies[0])

	// The path is that of the policy each proxy runs, not of the newest.
	f.json("POST", "/v1/policies", strings.Replace(managed, "/.sluice/", "/other/", 1), 201, &a)
	problems("http://127.0.0.1:9902/other/", "no management address", "also that of a", "http://127.0.0.1:9903/.sluice/")
	f.json("POST", "/v1/policies", good, 201, &a)
	problems("has no manage", "no management address", "has no manage", "http://127.0.0.1:9903/.sluice/")
}
