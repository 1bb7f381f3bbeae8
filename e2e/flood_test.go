package e2e

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"strings"
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

// settled returns the bytes that Envoy has allocated once it is idle.
func settled(t *testing.T, p *proxy) int64 {
	t.Helper()
	lowest := p.allocated(t)
	for range 5 {
		time.Sleep(300 * time.Millisecond)
		lowest = min(lowest, p.allocated(t))
	}
	return lowest
}

var (
	floodKeys = flag.Int("flood-keys", 25_000, "keys that come to a capacity of a third of them, or of 65,536; three times the capacity fill all slots")
	renames   = flag.Int("renames", 60, "times that a rule is renamed under traffic")
)

// Many more keys come than the capacity, and memory stays within what validate printed.
func TestMoreKeysThanCapacity(t *testing.T) {
	capacity := 1
	for capacity < 1<<16 && 6*capacity <= *floodKeys {
		capacity *= 2
	}
	rule := func(name, limits string) string {
		return fmt.Sprintf("\n  - {name: %s, match: {paths: [/%s]}, key: [{header: x-user-id}], capacity: %d, limits: [%s]}", name, name, capacity, limits)
	}
	aligned := rule("aligned", "{requests: 5, per: 366d}")
	layered := rule("layered", "{requests: 5, per: 366d}, {requests: 9, per: 365d, algorithm: fixed_window_per_key}")
	p := newest(t).start(t, proxyOptions{policy: "version: 1\nrules:" + aligned + layered + "\n", edit: withoutUpstream})
	l := p.load(16)
	for _, c := range []struct{ name, rule string }{{"aligned", aligned}, {"layered", layered}} {
		t.Run(c.name, func(t *testing.T) {
			l.send(t, 2000, func(int) request { return request{"/" + c.name, "x-user-id", "one"} })
			before := settled(t, p)
			l.send(t, *floodKeys, func(i int) request { return request{"/" + c.name, "x-user-id", fmt.Sprint("k", i)} })
			grown := settled(t, p) - before
			printed, _ := memoryOf(t, "version: 1\nrules:"+c.rule+"\n")
			t.Logf("%d keys: grown by %d bytes, validate printed %d: %.3f", *floodKeys, grown, printed, float64(grown)/float64(printed))
			require.InDelta(t, 1, float64(grown)/float64(printed), 0.15)
		})
	}
}

// Clients that have used all but one unit before a flood get at most that one
// afterwards, for every kind of window.
func TestFloodRefundsNothing(t *testing.T) {
	const clients, flood, lim = 200, 5000, 5
	for name, rule := range map[string]string{
		"aligned": "limits: [5/" + far + "]",
		"per key": "algorithm: fixed_window_per_key, limits: [5/1h]",
		"layered": "limits: [5/1h, {requests: 8, per: 366d}, {requests: 5, per: 2h, algorithm: fixed_window_per_key}]",
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, d driver) {
				s := serve(t, d, "version: 1\nrules: [{name: r, key: [{header: x-user-id}], capacity: 512, "+rule+"}]\n")
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

// Revision after revision renames the only rule under traffic. Memory stays within what
// validate printed for tables in use and vanished ones.
func TestRenames(t *testing.T) {
	d := newest(t)
	c := startControlPlane(t)
	p := d.start(t, proxyOptions{node: "edge", xds: c.xds, edit: withoutUpstream})
	c.awaitConnected(t, "edge")
	policy := func(i int) string {
		return strings.Replace(perUser("5/"+far), "per-user", fmt.Sprint("rule-", i), 1)
	}
	c.apply(t, policy(0))
	l := p.load(8)
	l.send(t, 20_000, user("one"))
	before := settled(t, p)
	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		var err error
		for n := 0; err == nil; n += 2000 {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
				_, err = l.try(2000, func(i int) request { return request{"/", "x-user-id", fmt.Sprint("k", n+i)} })
			}
		}
		stopped <- err
	}()
	for i := 1; i <= *renames; i++ {
		c.push(t, policy(i))
	}
	eventually(t, time.Minute, "the last revision to run", func() bool { return c.proxies(t)["edge"].Runs == uint64(*renames)+1 })
	close(stop)
	require.NoError(t, <-stopped)
	grown := settled(t, p) - before
	counters, vanished := memoryOf(t, policy(0))
	t.Logf("%d renames: grown by %d bytes, validate printed %d and %d for vanished ones", *renames, grown, counters, vanished)
	require.LessOrEqual(t, grown, counters+vanished)
}
