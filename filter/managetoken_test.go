package main_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// managedBy returns a policy with this management token.
func managedBy(token string) []byte {
	sum := sha256.Sum256([]byte(token))
	return []byte(`{"version":1,"manage":{"path":"/.sluice/","token_sha256":"` + hex.EncodeToString(sum[:]) + `"},"rules":[{"name":"r","limits":["1/1h"]}]}`)
}

// manage is a policy's field with the management token "test".
const manage = `"manage":{"path":"/.sluice/","token_sha256":"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}`

// managed returns a policy with these rules and the management token "test".
func managed(rules string) []byte {
	return []byte(`{"version":1,` + manage + `,"rules":[` + rules + `]}`)
}

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
		{"Bearer " + long, 200}, {"bearer  " + long + " ", 200}, {"Bearer " + long + "k", 401}, {"Bearer " + strings.Repeat("k", 60_000), 401},
		{"Bearer", 401}, {"Bearer ", 401}, {"", 401}, {"Basic " + long, 401}, {long, 401},
	} {
		require.Equal(t, tc.want, b.serve(t, 0, statsWith(tc.authorization, "192.0.2.1")).Status, "%.20q", tc.authorization)
	}
}

// Wrong tokens are counted by the client's address. After ten it gets 429 for the
// rest of the second, with the right token too, because it could go on guessing
// otherwise. Operators with other addresses are not affected.
func TestWrongTokensAreLimited(t *testing.T) {
	b := start(t)
	require.NoError(t, b.Configure(managedBy("right")))
	const attacker = "192.0.2.1"
	statuses := map[int]int{}
	for i := range 1000 {
		statuses[b.serve(t, 0, statsWith(fmt.Sprint("Bearer wrong", i), attacker)).Status]++
	}
	require.Equal(t, map[int]int{401: 10, 429: 990}, statuses)
	res := b.serve(t, 0, statsWith("Bearer right", attacker))
	require.Equal(t, 429, res.Status)
	require.Contains(t, res.Headers, [2]string{"retry-after", "1"})
	require.True(t, json.Valid(res.Body))
	through := 0
	for i := range 100 { // one in 64 shares the attacker's count
		if b.serve(t, 0, statsWith("Bearer right", fmt.Sprintf("198.51.100.%d", i))).Status == 200 {
			through++
		}
	}
	require.Greater(t, through, 85)
	b.now += 1_000_000_000
	require.Equal(t, 200, b.serve(t, 0, statsWith("Bearer right", attacker)).Status)
	for i := range 10 {
		require.Equal(t, 401, b.serve(t, 0, statsWith(fmt.Sprint("Bearer wrong", i), attacker)).Status)
	}
	require.Equal(t, 429, b.serve(t, 0, statsWith("Bearer right", attacker)).Status)
	b.now -= 5_000_000_000 // a clock that was set back does not extend the block
	require.Equal(t, 200, b.serve(t, 0, statsWith("Bearer right", attacker)).Status)
}

// Neither the right token nor a missing one is counted.
func TestRightTokensAreNotLimited(t *testing.T) {
	b := start(t, func(o *sim.Options) { o.OnCall = nil })
	require.NoError(t, b.Configure(managedBy("right")))
	for range 100 {
		require.Equal(t, 401, b.serve(t, 0, statsWith("Bearer", "192.0.2.1")).Status)
		require.Equal(t, 200, b.serve(t, 0, statsWith("Bearer right", "192.0.2.1")).Status)
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
		{"", "", 80, 200}, {"99", "", 99, 200}, {"99", "", 80, 404}, {"99", `"port":80,`, 80, 200}, {"99", `"port":80,`, 99, 404},
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
