//go:build long

package e2e

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	changes         = flag.Int("changes", 60, "changes of policy under traffic, after which Envoy is as large as before")
	clusterRequests = flag.Int("cluster-requests", 100_000, "requests of cluster rules, in whose last nine tenths Envoy does not grow")
)

// settledResident is the least of some looks at Envoy's resident memory.
func settledResident(t *testing.T, p *proxy) int64 {
	t.Helper()
	lowest := p.resident(t)
	for range 10 {
		time.Sleep(300 * time.Millisecond)
		lowest = min(lowest, p.resident(t))
	}
	return lowest
}

// Changes of policy under traffic leave nothing in Envoy's memory.
func TestEnvoyDoesNotGrowWithChanges(t *testing.T) {
	s := siteOf(t, flooded(newest(t)))
	policy := func(i int) string { return s.inDomain(perUser(fmt.Sprintf("%d/%s", 5+i, far))) }
	key := func(i int) request { return request{direct, "x-user-id", fmt.Sprint("k", i%1000)} }
	s.control.apply(t, policy(0))
	first, l := s.runs(t), s.load(8)
	l.send(t, 20_000, key)
	before := settledResident(t, s.proxy)
	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
				if _, err := l.try(2000, key); err != nil {
					stopped <- err
					return
				}
			}
		}
	}()
	for i := 1; i <= *changes; i++ {
		s.control.push(t, policy(i))
	}
	eventually(t, time.Minute, "the last revision to run", func() bool { return s.runs(t) == first+uint64(*changes) })
	close(stop)
	require.NoError(t, <-stopped)
	grown := settledResident(t, s.proxy) - before
	t.Logf("%d changes: grown by %d KiB", *changes, grown>>10)
	require.Less(t, grown, int64(5<<20))
}

// A hot key on leases, keys that are asked for once, and keys that are denied: after the
// first tenth of the requests Envoy's memory stays as it is.
func TestEnvoyDoesNotGrowWithClusterRules(t *testing.T) {
	service := startQuota(t, "memory")
	p := newest(t).start(t, proxyOptions{quota: service.address, edit: withoutUpstream, policy: clusterPolicy +
		"  - {name: hot, scope: cluster, key: [{header: x-user-id}], limits: [100000000/1h]}\n" +
		"  - {name: many, scope: cluster, match: {paths: [/many]}, capacity: 4096, key: [{header: x-key}], limits: [5/1m]}\n"})
	l, sent := p.load(16), 0
	send := func(n int) (refused int) {
		refused = count(l.send(t, n, func(i int) request {
			switch i % 100 {
			case 0:
				return request{"/many", "x-key", fmt.Sprint("denied-", i/100%50)}
			case 50:
				return request{"/many", "x-key", fmt.Sprint("once-", sent+i)}
			}
			return request{"/", "x-user-id", "hot"}
		}), denied)
		sent += n
		return refused
	}
	send(*clusterRequests / 10)
	before := settledResident(t, p)
	refused := 0
	for sent < *clusterRequests {
		refused += send(*clusterRequests / 20)
	}
	grown := settledResident(t, p) - before
	t.Logf("%d requests, %d denied: grown by %d KiB", sent, refused, grown>>10)
	require.Positive(t, refused)
	require.Less(t, grown, int64(5<<20))
}
