package main_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// managedBy returns a policy with this management token.
func managedBy(token string) []byte {
	sum := sha256.Sum256([]byte(token))
	return []byte(`{"version":1,"manage":{"path":"/.sluice/",` +
		`"token_sha256":"` + hex.EncodeToString(sum[:]) + `"},"rules":[{"name":"r","limits":["1/1h"]}]}`)
}

// manage is a policy's field with the management token "test".
const manage = `"manage":{"path":"/.sluice/",` +
	`"token_sha256":"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}`

// statsWith returns a management request with these credentials from that address.
func statsWith(authorization, address string) *sim.Request {
	return &sim.Request{
		Method: "POST", Path: "/.sluice/counters/stats", ClientIP: address, ClientPort: 4711,
		Headers: [][2]string{{"authorization", authorization}},
	}
}

// A policy cannot have an empty token, a long token works, and everything else is
// refused.
func TestBearer(t *testing.T) {
	b := start(t)
	require.Error(t, b.Configure(managedBy("")))
	long := strings.Repeat("k", 1024)
	require.NoError(t, b.Configure(managedBy(long)))
	for _, tc := range []struct {
		authorization string
		want          int
	}{
		{"Bearer " + long, 200},
		{"bearer  " + long + " ", 200},
		{"Bearer " + long + "k", 401},
		{"Bearer " + strings.Repeat("k", 60_000), 401},
		{"Bearer", 401}, {"Bearer ", 401}, {"", 401}, {"Basic " + long, 401}, {long, 401},
	} {
		require.Equal(t, tc.want, b.serve(t, 0, statsWith(tc.authorization, "192.0.2.1")).Status, "%.20q", tc.authorization)
	}
}

// guess sends wrong tokens and counts the answers by status.
func (b *bench) guess(t *testing.T, n int, from func(i int) string) map[int]int {
	t.Helper()
	statuses := map[int]int{}
	for i := range n {
		statuses[b.serve(t, 0, statsWith(fmt.Sprint("Bearer wrong", i), from(i))).Status]++
	}
	return statuses
}

// However many addresses send wrong tokens, one that sent none is served. As many as
// are remembered get ten looks each and no more; an IPv6 network of 64 bits is one
// address.
func TestWrongTokensLockNobodyElseOut(t *testing.T) {
	v4 := func(n int) func(int) string {
		return func(i int) string { return fmt.Sprintf("10.0.%d.%d", i%n>>8, i%n&255) }
	}
	v6 := func(n int) func(int) string {
		return func(i int) string { return fmt.Sprintf("2001:db8:0:%x::%x", i%n, i+1) }
	}
	for _, tc := range []struct {
		name string
		n    int
		from func(int) string
		want map[int]int
	}{
		{"250 addresses", 5000, v4(250), map[int]int{401: 2500, 429: 2500}},
		{"256 networks", 5120, v6(256), map[int]int{401: 2560, 429: 2560}},
		{"a network", 100, v6(1), map[int]int{401: 10, 429: 90}},
		{"10,000 addresses", 20_000, v4(10_000), map[int]int{401: 20_000}},
		{"10,000 networks", 20_000, v6(10_000), map[int]int{401: 20_000}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := start(t, func(o *sim.Options) { o.OnCall = nil })
			require.NoError(t, b.Configure(managedBy("right")))
			require.Equal(t, tc.want, b.guess(t, tc.n, tc.from))
			for i := range 64 {
				for _, operator := range []string{"198.51.100.%d", "2001:db8:1:%x::1"} {
					operator = fmt.Sprintf(operator, i)
					require.Equal(t, 200, b.serve(t, 0, statsWith("Bearer right", operator)).Status, operator)
				}
			}
		})
	}
}

// If the bootstrap names the port of the management listener, management works only
// there, unless the policy names another port.
func TestNodeConfinesManagement(t *testing.T) {
	port := func(n byte) []byte { return []byte{n, 0, 0, 0, 0, 0, 0, 0} }
	for _, tc := range []struct {
		node, policy string
		at           byte
		want         int
	}{
		{"", "", 80, 200},
		{"99", "", 99, 200},
		{"99", "", 80, 404},
		{"99", `"port":80,`, 80, 200},
		{"99", `"port":80,`, 99, 404},
		{"0", "", 80, 200}, {"x", "", 80, 200}, {"70000", "", 80, 200},
	} {
		b := start(t, func(o *sim.Options) {
			if tc.node != "" {
				o.Properties = map[string][]byte{"xds.node.metadata.sluice.manage_port": []byte(tc.node)}
			}
		})
		policy := strings.Replace(string(managedBy("right")), `"manage":{`, `"manage":{`+tc.policy, 1)
		require.NoError(t, b.Configure([]byte(policy)))
		r := statsWith("Bearer right", "192.0.2.1")
		r.Properties = map[string][]byte{"destination.port": port(tc.at)}
		require.Equal(t, tc.want, b.serve(t, 0, r).Status, "%v", tc)
	}
}
