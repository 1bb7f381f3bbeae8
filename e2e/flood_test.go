package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// withoutUpstream makes the proxy itself respond to admitted requests, so that a flood
// measures the filter.
func withoutUpstream(bootstrap []byte) []byte {
	const route = "route: {cluster: upstream}"
	return bytes.Replace(bootstrap, []byte(route), []byte(`direct_response: {status: 200, body: {inline_string: "hello\n"}}`), 1)
}

// memoryOf returns the bytes that validate prints for the policy: for its counters and
// for vanished ones.
func memoryOf(t *testing.T, policy string) (counters, vanished int64) {
	t.Helper()
	out, errs, exit := sluice(t, "validate", "-f", file(t, "policy.yaml", policy), "--output", "json")
	require.Zero(t, exit, errs)
	var v struct {
		Memory struct {
			Bytes    int64 `json:"bytes"`
			Vanished int64 `json:"vanished_bytes"`
		} `json:"memory"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &v))
	require.NotZero(t, v.Memory.Bytes, out)
	return v.Memory.Bytes, v.Memory.Vanished
}

// settled returns the bytes that an idle Envoy has come down to, allocated or resident.
func settled(t *testing.T, bytes func(*testing.T) int64) int64 {
	t.Helper()
	lowest := bytes(t)
	for range 5 {
		time.Sleep(300 * time.Millisecond)
		lowest = min(lowest, bytes(t))
	}
	return lowest
}

// Clients that have used all but one unit before a flood get at most that one
// afterwards, for every kind of window.
func TestFloodRefundsNothing(t *testing.T) {
	const clients, flood, lim = 100, 3000, 5
	for name, rule := range map[string]string{
		"aligned": "limits: [5/" + far + "]",
		"per key": "algorithm: fixed_window_per_key, limits: [5/1h]",
		"layered": "limits: [5/1h, {requests: 8, per: 366d}, {requests: 5, per: 2h, algorithm: fixed_window_per_key}]",
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, d driver) {
				s := serve(t, d, "version: 1\nrules: [{name: r, key: [{header: x-user-id}], capacity: 256, "+rule+"}]\n")
				l := s.load(16)
				honest := func(i int) request { return request{"/", "x-user-id", fmt.Sprint("client-", i%clients)} }
				used := clients * (lim - 1)
				require.Equal(t, used, count(l.send(t, used, honest), allowed))
				l.send(t, flood, func(i int) request { return request{"/", "x-user-id", fmt.Sprint("flood-", i)} })
				passed := make([]int, clients)
				for i, status := range l.send(t, clients*lim, honest) {
					if status == allowed {
						passed[i%clients]++
					}
				}
				for i, n := range passed {
					require.LessOrEqual(t, n, 1, "client %d", i)
				}
			})
		})
	}
}
