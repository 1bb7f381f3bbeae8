//go:build etcd || long

package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-ratelimit/sluice/build/xdstest"
)

// crowdBack is how long proxies may take until each has the right revision.
const crowdBack = 5 * time.Second

// crowd is simulated proxies that know all serves, and go to the next when theirs ends. A third
// each is for the policies edge, core and default.
type crowd struct {
	size int

	mu   sync.Mutex
	runs map[string]uint64          // by node id
	seen map[string]map[uint64]bool // every revision that a proxy ever got
	last time.Time                  // when one got another revision
}

func startCrowd(t *testing.T, addresses []string, n int) *crowd {
	t.Helper()
	f := &crowd{size: n, runs: map[string]uint64{}, seen: map[string]map[uint64]bool{}}
	for i := range n {
		node, from := fmt.Sprintf("%s-%d", []string{"edge", "core", "rest"}[i%3], i), i%len(addresses)
		xdstest.Follow(t, append(addresses[from:len(addresses):len(addresses)], addresses[:from]...), node, 50*time.Millisecond,
			func(version string) { f.takes(node, version) })
	}
	return f
}

func (f *crowd) takes(node, version string) {
	number, _, _ := strings.Cut(version, "-")
	n, _ := strconv.ParseUint(number, 10, 64)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.runs[node] != n {
		f.last = time.Now()
	}
	if f.runs[node] = n; f.seen[node] == nil {
		f.seen[node] = map[uint64]bool{}
	}
	f.seen[node][n] = true
}

// policyOf is the policy of a node of the crowd.
func policyOf(node string) string {
	policy, _, _ := strings.Cut(node, "-")
	return strings.Replace(policy, "rest", "default", 1)
}

// headOf makes a policy one for its third of the crowd.
func headOf(policy string) string {
	if policy == "default" {
		return ""
	}
	return fmt.Sprintf("name: %s\nproxies: {node: \"%s-*\"}\n", policy, policy)
}

// wrong counts the proxies that do not run what they should, or nothing yet.
func (f *crowd) wrong(should func(node string) uint64) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n = f.size - len(f.runs)
	for node, runs := range f.runs {
		if runs != should(node) {
			n++
		}
	}
	return n
}
