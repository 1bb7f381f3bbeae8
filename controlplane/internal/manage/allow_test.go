package manage

import (
	"net/netip"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseAllow(t *testing.T) {
	for _, tc := range []struct {
		list, host, ip string
		holds          bool
	}{
		{DefaultAllow, "127.0.0.1", "127.0.0.1", true},
		{DefaultAllow, "localhost", "127.8.9.1", true},
		{DefaultAllow, "::1", "::1", true},
		{DefaultAllow, "128.0.0.1", "128.0.0.1", false},
		{DefaultAllow, "::2", "::2", false},
		{"10.0.0.0/8, edge.example", "10.255.0.1", "10.255.0.1", true},
		{"10.0.0.7/8", "10.255.0.1", "10.255.0.1", true},
		{"10.0.0.0/8", "127.0.0.1", "127.0.0.1", false},
		{"10.0.0.7", "10.0.0.7", "10.0.0.7", true},
		{"10.0.0.7", "10.0.0.8", "10.0.0.8", false},
		{"edge.example", "EDGE.example.", "192.0.2.1", true},
		{"edge.example", "a.edge.example", "192.0.2.1", false},
		{"edge.example", "edge.example.evil", "192.0.2.1", false},
		{"fd00::/8", "fd12::1", "fd12::1", true},
		{"0.0.0.0/0", "::1", "::1", false},
	} {
		a, err := ParseAllow(tc.list)
		require.NoError(t, err, tc.list)
		require.Equal(t, tc.holds, a.holds(tc.host, netip.MustParseAddr(tc.ip)), "%v", tc)
	}
	for _, bad := range []string{
		"", ",", "10.0.0.0/8,", "010.0.0.1", "127.1", "2130706433", "0x7f000001", "a.0x7f",
		"fe80::1%eth0", "::ffff:10.0.0.0/104", "*.edge.example", "edge.example:9902", "https://edge.example", "a b", "-é-",
	} {
		_, err := ParseAllow(bad)
		require.Error(t, err, bad)
	}
	for list, want := range map[string]string{
		"10.0.0.0/33":             `"10.0.0.0/33" is not a network: prefix lengths end at 32`,
		"edge.example,fd00::/129": `"fd00::/129" is not a network: prefix lengths end at 128`,
		"10.0.0.0/":               `"10.0.0.0/" is not a network: prefix lengths end at 32`,
		"10.0.0/8":                `"10.0.0/8" is neither a network such as 10.0.0.0/8 nor a host name`,
	} {
		_, err := ParseAllow(list)
		require.EqualError(t, err, want)
	}
}

// What a proxy may announce, and where that leads.
func TestAnnouncedAddresses(t *testing.T) {
	const peer = "192.0.2.7:4711"
	for _, tc := range []struct{ address, peer, want, problem string }{
		{"127.0.0.1:9902", "127.0.0.1:4711", "http://127.0.0.1:9902/m/", ""},
		{"[::ffff:127.0.0.1]:9902", "127.0.0.1:4711", "http://127.0.0.1:9902/m/", ""},
		{"192.0.2.7:9902", peer, "http://192.0.2.7:9902/m/", ""},
		{"Edge.example:9902", peer, "http://edge.example:9902/m/", ""},
		{"https://edge.example:09902", peer, "https://edge.example:9902/m/", ""},
		{"0.0.0.0:9902", peer, "http://192.0.2.7:9902/m/", ""},
		{"[::ffff:0.0.0.0]:9902", peer, "http://192.0.2.7:9902/m/", ""},
		{"[::]:9902", "[2001:db8::1]:4711", "http://[2001:db8::1]:9902/m/", ""},
		{":9902", peer, "http://192.0.2.7:9902/m/", ""},
		{"127.0.0.1:9902", peer, "", "is loopback on its own machine"},
		{"localhost:9902", peer, "", "is loopback on its own machine"},
		{"LOCALHOST.:9902", peer, "", "is loopback on its own machine"},
		{"[::ffff:127.0.0.1]:9902", peer, "", "is loopback on its own machine"},
		{"", peer, "", "it has reported no management address"},
		{"9902", peer, "", `"9902" is not IP:PORT`},
		{"edge.example:http", peer, "", "is not IP:PORT"},
		{"edge.example:0", peer, "", "is not IP:PORT"},
		{"edge.example:65536", peer, "", "is not IP:PORT"},
		{"http://edge.example:9902", peer, "", "is not IP:PORT"},
		{"https://169.254.169.254/x:1", peer, "", "is not IP:PORT"},
		{"https://169.254.169.254/x", peer, "", "is not IP:PORT"},
		{"https://https://a:1", peer, "", "is not IP:PORT"},
		{"evil@127.0.0.1:1", peer, "", "is not IP:PORT"},
		{"127.0.0.1:1@evil:2", peer, "", "is not IP:PORT"},
		{"https://a/b?x:1", peer, "", "is not IP:PORT"},
		{"a\r\nx-evil: 1:1", peer, "", "is not IP:PORT"},
		{"2130706433:9902", peer, "", "is not IP:PORT"},
		{"0177.0.0.1:9902", peer, "", "is not IP:PORT"},
		{"127.1:9902", peer, "", "is not IP:PORT"},
		{"0x7f.0x1:9902", peer, "", "is not IP:PORT"},
		{"[fe80::1%eth0]:9902", peer, "", "is not IP:PORT"},
		{"[::1%25lo]:9902", peer, "", "is not IP:PORT"},
	} {
		u, err := Proxy{Revision: 1, Path: "/m/", Address: tc.address, Peer: tc.peer}.url()
		if tc.problem != "" {
			require.ErrorContains(t, err, tc.problem, tc.address)
			continue
		}
		require.NoError(t, err, tc.address)
		require.Equal(t, tc.want, u.String())
	}
}

// Whatever URL there is, the token goes nowhere that the rules forbid.
func TestRules(t *testing.T) {
	networks, err := ParseAllow("127.0.0.0/8,::1,10.0.0.0/8,edge.example")
	require.NoError(t, err)
	own := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:18080"), netip.MustParseAddrPort("[::]:18000")}
	r := Reach{Allow: &networks, Own: own}
	for _, tc := range []struct{ url, dialed, want string }{
		{"http://127.0.0.1:9902/m/", "127.0.0.1:9902", ""},
		{"http://localhost:9902/m/", "[::1]:9902", ""},
		{"http://localhost:9902/m/", "10.0.0.1:9902", "without TLS"},
		{"https://10.0.0.1:9902/m/", "10.0.0.1:9902", ""},
		{"https://10.0.0.1:9902/m/", "[::ffff:10.0.0.1]:9902", ""},
		{"http://10.0.0.1:9902/m/", "", "without TLS"},
		{"http://edge.example:9902/m/", "", "without TLS"},
		{"https://edge.example:9902/m/", "192.0.2.1:9902", ""},
		{"https://edge.example:9902/m/", "0.0.0.0:9902", "is not an address that a proxy can have"},
		{"https://edge.example:9902/m/", "224.0.0.1:9902", "is not an address that a proxy can have"},
		{"https://edge.example:9902/m/", "[fe80::1%eth0]:9902", "is not an address that a proxy can have"},
		{"https://other.example:9902/m/", "10.0.0.2:9902", ""},
		{"https://other.example:9902/m/", "169.254.169.254:9902", "not allowed by --manage-allow"},
		{"https://other.example:9902/m/", "[::ffff:169.254.169.254]:9902", "not allowed by --manage-allow"},
		{"https://other.example:9902/m/", "[64:ff9b::a9fe:a9fe]:9902", "not allowed by --manage-allow"},
		{"https://169.254.169.254/m/", "", "not allowed by --manage-allow"},
		{"https://[::ffff:169.254.169.254]/m/", "", "not allowed by --manage-allow"},
		{"http://0.0.0.0:9902/m/", "", "not allowed by --manage-allow"},
		{"https://[fe80::1%25eth0]:9902/m/", "", "has a zone"},
		{"https://2852039166/m/", "", "neither an IP address nor a host name"},
		{"https://0xa9fea9fe/m/", "", "neither an IP address nor a host name"},
		{"https://0251.0376.0251.0376/m/", "", "neither an IP address nor a host name"},
		{"http://127.0.0.1:18080/m/", "127.0.0.1:18080", "where sluice serve itself listens"},
		{"http://127.0.0.1:18000/m/", "127.0.0.1:18000", "where sluice serve itself listens"},
		{"http://127.0.0.2:18080/m/", "127.0.0.2:18080", ""},
	} {
		u, err := url.Parse(tc.url)
		require.NoError(t, err, tc.url)
		err = r.check(u)
		if tc.dialed != "" {
			require.NoError(t, err, tc.url)
			err = r.checkDialed(u, netip.MustParseAddrPort(tc.dialed))
		}
		if tc.want == "" {
			require.NoError(t, err, "%v", tc)
			continue
		}
		require.ErrorContains(t, err, tc.want, "%v", tc)
		var f *Failure
		require.ErrorAs(t, err, &f)
		require.NotEmpty(t, f.Hint)
	}
}

// Of proxies that announce one listener, the one that is connected from there is
// asked, or else the first; none is asked twice.
func TestOneListenerIsAskedOnce(t *testing.T) {
	targets := Targets([]Proxy{
		{Node: "evil", Revision: 1, Path: "/m/", Address: "10.0.0.1:9902", Peer: "10.6.6.6:1"},
		{Node: "honest", Revision: 1, Path: "/m/", Address: "0.0.0.0:9902", Peer: "10.0.0.1:1"},
		{Node: "late", Revision: 1, Path: "/m/", Address: "[::ffff:10.0.0.1]:9902", Peer: "10.0.0.1:2"},
		{Node: "new", Path: "/m/", Address: "10.0.0.2:9902", Peer: "10.0.0.2:1"},
		{Node: "closed", Revision: 2, Address: "10.0.0.3:9902", Peer: "10.0.0.3:1"},
	})
	require.NoError(t, targets[1].Err)
	for i, want := range map[int]string{
		0: "also that of honest", 2: "also that of honest", 3: "not accepted a policy", 4: "has no manage",
	} {
		require.ErrorContains(t, targets[i].Err, want)
	}
}

func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.1.2.3": true, "::1": true, "::ffff:127.0.0.1": true,
		"localhost": true, "LOCALHOST": true, "localhost.": true,
		"": false, "0.0.0.0": false, "::": false, "192.0.2.1": false, "example.com": false, "127.0.0.1.example.com": false,
		"::ffff:192.0.2.1": false, "localhost.example.com": false, "localhost..": false,
	} {
		require.Equal(t, want, IsLoopback(host), host)
	}
}
