package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/servertest"
)

const (
	replicaClients = 32
	replicaCalls   = 250 // of each client
)

// Limits that no key may exceed, and one that no key reaches, so that what remains of it says what was
// counted.
const replicaConfig = `
domain: d
descriptors:
- {key: few, rate_limit: {unit: year, requests_per_unit: 100}}
- {key: all, rate_limit: {unit: year, requests_per_unit: 1000000}}
`

// TestRateLimitReplicas: two replicas on one Redis admit what one would, and count all.
func TestRateLimitReplicas(t *testing.T) {
	t.Parallel()
	replicas(t, ours(t))
}

func replicas(t *testing.T, program string) {
	for _, memory := range []string{"0", "1048576"} {
		t.Run("with a memory of "+memory, func(t *testing.T) {
			redis := servertest.StartRedis(t, servertest.Redis(t)).Addr()
			var pair []*rateLimiter
			for range 2 {
				pair = append(pair, newRateLimiter(t, program, redis))
			}
			for _, r := range pair {
				r.start(t, map[string]string{"config.yaml": replicaConfig}, "LOCAL_CACHE_SIZE_IN_BYTES="+memory)
			}
			c := &crowdOfCallers{pair: pair}
			atOnce(replicaClients, func(i int) { c.call(t, i) })
			c.require(t)
		})
	}
}

const (
	fewKeys = 4 // that all clients share
	allKeys = 2
)

// crowdOfCallers are clients that call two replicas at once.
type crowdOfCallers struct {
	pair     []*rateLimiter
	admitted [fewKeys]atomic.Int64 // hits on a key of few
	failed   atomic.Pointer[answer]
	sent     [allKeys]atomic.Int64 // hits on a key of all
}

// call sends the calls of one client. Each asks for a key of few and a key of all: what is denied
// by the one is counted in the other.
func (c *crowdOfCallers) call(t *testing.T, client int) {
	random := rand.New(rand.NewPCG(uint64(client), 1))
	for i := range replicaCalls {
		few, all := random.IntN(fewKeys), random.IntN(allKeys)
		hits := 1 + random.IntN(3)
		request := callOf(t, "d", fmt.Sprint("few=", few), fmt.Sprintf("all=%d hits:%d", all, hits))
		got := c.pair[(client+i)%2].call(t.Context(), request)
		c.sent[all].Add(int64(hits))
		switch {
		case got.response == nil:
			c.failed.Store(&got)
		case got.response.OverallCode == ratelimit.RateLimitResponse_OK:
			c.admitted[few].Add(1)
		}
	}
}

// require: of each key exactly the limit was admitted, nothing sent was lost, and the metrics of
// both replicas have it.
func (c *crowdOfCallers) require(t *testing.T) {
	require.Nil(t, c.failed.Load())
	look := func(text string) string {
		return statusText(c.pair[0].call(t.Context(), callOf(t, "d", text)).response.Statuses[0])
	}
	var sent int64
	for i := range fewKeys {
		require.EqualValues(t, 100, c.admitted[i].Load(), "key %d", i)
		require.Equal(t, "over, 0 of 100/year left", look(fmt.Sprintf("few=%d hits:0", i)))
	}
	for i := range allKeys {
		sent += c.sent[i].Load()
		require.Equal(t, fmt.Sprintf("ok, %d of 1000000/year left", 1_000_000-c.sent[i].Load()),
			look(fmt.Sprintf("all=%d hits:0", i)))
	}
	counted := map[string]float64{}
	for _, r := range c.pair {
		for name, value := range r.settled(t) {
			if short, ok := strings.CutPrefix(name, "ratelimit_service_rate_limit_"); ok {
				counted[short] += value
			}
		}
	}
	require.InDelta(t, float64(sent), counted[`total_hits{domain="d",key1="all"}`], 0)
	require.InDelta(t, float64(sent), counted[`within_limit{domain="d",key1="all"}`], 0)
	calls := float64(replicaClients * replicaCalls)
	require.InDelta(t, calls, counted[`total_hits{domain="d",key1="few"}`], 0)
	require.InDelta(t, calls-100*fewKeys, counted[`over_limit{domain="d",key1="few"}`], 0)
}

// TestRateLimitChanges: a changed file is in force without a restart, and a broken one is not.
func TestRateLimitChanges(t *testing.T) {
	t.Parallel()
	changes(t, ours(t))
}

func changes(t *testing.T, program string) {
	r := newRateLimiter(t, program, servertest.StartRedis(t, servertest.Redis(t)).Addr())
	limited := func(domain, requests string) string {
		limit := "{unit: year, requests_per_unit: " + requests + "}"
		return "domain: " + domain + "\ndescriptors: [{key: a, rate_limit: " + limit + "}]\n"
	}
	r.start(t, map[string]string{"a.yaml": limited("d", "5"), "b.yaml": limited("other", "1")})
	ask := func(domain, descriptor string) string {
		got := r.call(t.Context(), callOf(t, domain, descriptor))
		require.NotNil(t, got.response, got)
		return statusText(got.response.Statuses[0])
	}
	becomes := func(want, domain string) {
		eventually(t, 2*time.Second, want, func() bool { return ask(domain, "a=1 hits:0") == want })
	}
	loads := func(name string, n float64) {
		eventually(t, 2*time.Second, name, func() bool { return r.series(t)["ratelimit_service_config_load_"+name] >= n })
	}
	require.Equal(t, "ok, 4 of 5/year left", ask("d", "a=1"))
	r.write(t, "a.yaml", limited("d", "10")) // what was counted stays counted
	becomes("ok, 9 of 10/year left", "d")
	require.Equal(t, "ok, 8 of 10/year left", ask("d", "a=1"))
	r.write(t, "a.yaml", limited("d", "many"))
	loads("error", 1)
	require.Equal(t, "ok, 7 of 10/year left", ask("d", "a=1"))
	require.Equal(t, "ok, 0 of 1/year left", ask("other", "a=1"))
	require.True(t, answered("http://"+r.http+"/healthcheck"))
	r.write(t, "a.yaml", limited("d", "20"))
	becomes("ok, 17 of 20/year left", "d")
	require.NoError(t, os.Remove(filepath.Join(r.root, "ratelimit", "config", "b.yaml")))
	becomes("ok, no limit", "other")
	loads("success", 4)
}

func callOf(t *testing.T, domain string, descriptors ...string) *ratelimit.RateLimitRequest {
	request := &ratelimit.RateLimitRequest{Domain: domain}
	for _, text := range descriptors {
		request.Descriptors = append(request.Descriptors, descriptorOf(t, text))
	}
	return request
}
