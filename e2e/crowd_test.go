//go:build etcd

package e2e

import (
	"crypto/sha256"
	endian "encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-ratelimit/sluice/build/xdstest"
)

// crowdBack is how long proxies may take until each has the right revision.
const crowdBack = 5 * time.Second

// crowd is simulated proxies that know all serves, and go to the next when theirs ends: a third
// each for the policies edge, core and default. Envoys may join them.
type crowd struct {
	size int

	mu   sync.Mutex
	runs map[string]uint64          // by node id
	seen map[string]map[uint64]bool // every revision that a proxy ever got
	last time.Time                  // when one got another revision
}

func startCrowd(t *testing.T, addresses []string, n int) *crowd {
	f := &crowd{size: n, runs: map[string]uint64{}, seen: map[string]map[uint64]bool{}}
	for i := range n {
		node, from := fmt.Sprintf("%s-%d", []string{"edge", "core", "rest"}[i%3], i), i%len(addresses)
		xdstest.Follow(t, append(addresses[from:len(addresses):len(addresses)], addresses[:from]...), node,
			50*time.Millisecond,
			func(version string) { f.takes(node, version) })
	}
	return f
}

// join makes an Envoy one of the crowd: it is asked all the time what it runs.
func (f *crowd) join(t *testing.T, node string, p *proxy) {
	f.mu.Lock()
	f.size++
	f.mu.Unlock()
	version := regexp.MustCompile(`"version_info": "([^"]*)"`)
	go func() {
		for ; t.Context().Err() == nil; time.Sleep(50 * time.Millisecond) {
			dump, err := p.envoy.Get(t.Context(), "/config_dump?resource=ecds_filters")
			if is := version.FindSubmatch(dump); err == nil && is != nil {
				f.takes(node, string(is[1]))
			}
		}
	}()
}

func (f *crowd) takes(node, version string) {
	number, _, _ := strings.Cut(version, "-")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return // an Envoy that has nothing yet
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.runs[node] != n {
		f.last = time.Now()
	}
	f.runs[node] = n
	if f.seen[node] == nil {
		f.seen[node] = map[uint64]bool{}
	}
	f.seen[node][n] = true
}

// got goes through all revisions that a proxy ever got.
func (f *crowd) got(see func(node string, revision uint64)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for node, seen := range f.seen {
		for revision := range seen {
			see(node, revision)
		}
	}
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

// standing is what `sluice status` prints of a policy.
type standing struct {
	Policy  string
	Current struct{ Revision uint64 }
	Newest  struct{ Revision uint64 }
	Canary  *struct {
		Percent float64
		Except  []string
		State   string
		Says    string
	}
}

// expects is the revision that a node is to run.
func (s *standing) expects(node string) uint64 {
	hash := sha256.Sum256([]byte(node))
	place := float64(endian.BigEndian.Uint64(hash[:])>>11) / (1 << 53) * 100
	if s.Canary != nil && (place < s.Canary.Percent) != slices.Contains(s.Canary.Except, node) {
		return s.Newest.Revision
	}
	return s.Current.Revision
}

func (c *controlPlane) standings(t *testing.T) map[string]*standing {
	by := map[string]*standing{}
	for _, s := range asked[struct{ Policies []*standing }](t, c, "status").Policies {
		by[s.Policy] = s
	}
	return by
}
