//go:build long

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/servertest"
)

const newStorePolicy = `
version: 1
quota: {timeout: 1s}
rules:
  - name: logins
    match: {paths: [/login]}
    scope: cluster
    key: [{header: x-tenant}]
    missing_key: deny
    on_unavailable: deny
    limits: [5/1d]
    settle: {}
  - name: in-flight
    match: {paths: [/flight]}
    scope: cluster
    on_unavailable: deny
    algorithm: concurrency
    limits: [50]
    linger: 0s
    hold: HOLD
  - name: plain
    match: {paths: [/plain, /login]}
    scope: cluster
    key: [{header: x-tenant}]
    missing_key: deny
    on_unavailable: deny
    limits: [1000/1d]
`

// newStore is a store that begins without state.
type newStore struct {
	name     string
	services int
	start    func(t *testing.T) (url string, events map[string]func(f *newStoreFleet))
}

var newStores = []newStore{
	{"memory", 1, func(*testing.T) (string, map[string]func(f *newStoreFleet)) {
		return "memory", map[string]func(f *newStoreFleet){"the service is killed": func(f *newStoreFleet) {
			f.services[0].kill()
			f.services[0].begin(f.t)
		}}
	}},
	{"Redis", 2, func(t *testing.T) (string, map[string]func(f *newStoreFleet)) {
		server := servertest.StartRedis(t, servertest.Redis(t))
		return "redis://" + server.Addr(), map[string]func(f *newStoreFleet){
			flushed: func(*newStoreFleet) { server.Do("FLUSHALL") },
			"it restarts without its data": func(*newStoreFleet) {
				server.Kill()
				server.Restart()
			},
		}
	}},
	{"a Cluster", 2, func(t *testing.T) (string, map[string]func(f *newStoreFleet)) {
		c := servertest.StartCluster(t, servertest.Redis(t))
		return c.URL(), map[string]func(f *newStoreFleet){flushed: func(*newStoreFleet) {
			for _, master := range c.Servers[:3] {
				master.Do("FLUSHALL")
			}
		}}
	}},
}

const flushed = "it is emptied"

// newStoreFleet is three Envoys of four workers, and the quota services that each of them asks.
type newStoreFleet struct {
	*answering
	t        *testing.T
	services []*quotaService
	proxies  []*proxy
	begun    time.Time // when the services answered
}

// newFleet starts services on a store, and then Envoys, whose policies have these holds.
func (s *newStore) newFleet(t *testing.T, url string, holds ...string) *newStoreFleet {
	f := &newStoreFleet{answering: startAnswering(t), t: t}
	var addresses []string
	for range s.services {
		q := &quotaService{address: freeAddress(t), http: freeAddress(t), store: url}
		f.services, addresses = append(f.services, q), append(addresses, q.address)
		q.begin(t)
		t.Cleanup(func() { end(t, q.Child) })
	}
	eventually(t, 20*time.Second, "the services to answer", func() bool { return f.count(0) == 0 })
	f.begun = time.Now()
	for _, hold := range holds {
		f.proxies = append(f.proxies, newest(t).start(t, proxyOptions{
			policy:   strings.Replace(newStorePolicy, "HOLD", hold, 1),
			quota:    newGate(t, addresses...).address(),
			upstream: f.URL,
		}))
	}
	return f
}

// count is how many services answer /healthz with a status.
func (f *newStoreFleet) count(status int) (n int) {
	for _, s := range f.services {
		got := 0
		if res, err := http.Get("http://" + s.http + "/healthz"); err == nil {
			got = res.StatusCode
			res.Body.Close()
		}
		if got == status {
			n++
		}
	}
	return n
}

// ready waits until all services have found that the store has no state, and then that it has, and
// returns when that was.
func (f *newStoreFleet) ready() time.Time {
	for f.count(http.StatusOK) == len(f.services) {
		time.Sleep(20 * time.Millisecond)
	}
	for f.count(http.StatusOK) < len(f.services) {
		time.Sleep(20 * time.Millisecond)
	}
	return time.Now()
}

// tenants sends a login and a plain request of each of a thousand new tenants, one tenant after the
// other, and returns how many logins were denied, and when the last of those was sent.
func (f *newStoreFleet) tenants(t *testing.T, name string, then func(i int)) (starting int, last time.Time) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := range 1000 {
		then(i)
		<-tick.C
		p := f.proxies[i%len(f.proxies)]
		tenant := fmt.Sprint(name, i)
		sent := time.Now()
		switch status := p.status(t, "/login", "x-tenant", tenant, "x-do", "200"); status {
		case allowed:
		case denied:
			starting++
			last = sent
		default:
			require.Fail(t, "a login failed", "status %d", status)
		}
		plain := p.status(t, "/plain", "x-tenant", tenant, "x-do", "200")
		require.Equal(t, allowed, plain, "what holds nothing does not wait")
	}
	return starting, last
}

// TestANewStore: started from nothing, and emptied, a store has a thousand new tenants, one after the
// other, wait together for its start, and for nothing else; rules that hold nothing never wait, also
// of the same requests.
func TestANewStore(t *testing.T) {
	for _, s := range newStores {
		t.Run(s.name, func(t *testing.T) {
			url, events := s.start(t)
			f := s.newFleet(t, url, "10m", "10m", "10m")
			starting, last := f.tenants(t, "first-", func(int) {})
			t.Logf("%d of 1000 tenants waited; the last one %s after the services answered", starting, since(last, f.begun))
			require.Equal(t, len(f.services), f.count(http.StatusOK))
			require.Less(t, starting, 1000/2)

			empty := events[flushed]
			if empty == nil {
				return
			}
			var at time.Time
			ready := make(chan time.Time, 1)
			starting, last = f.tenants(t, "second-", func(i int) {
				if i == 100 {
					at = time.Now()
					empty(f)
					go func() { ready <- f.ready() }()
				}
			})
			end := <-ready
			t.Logf("%d of 1000 tenants waited; the last one %s after the store was emptied, which was ready after %s",
				starting, since(last, at), since(end, at))
			require.Positive(t, starting)
			require.True(t, last.Before(end.Add(time.Second)), "a message may be under way for so long")
			metrics := ""
			for _, q := range f.services {
				metrics += body(t, "http://"+q.http+"/metrics")
			}
			require.Regexp(t, `(?m)^sluice_quota_asks_total\{result="starting"\} [1-9]`, metrics)
		})
	}
}

func since(t, from time.Time) time.Duration { return max(0, t.Sub(from)).Round(time.Millisecond) }

// TestAStoreLosesItsStateUnderLoad: 30 of 50 slots are of requests that run for long, by proxies that
// say something every 75 s; clients of another proxy, with a short hold, compete for the rest.
// Whatever the store forgets, no more than 50 run at once, and all are used again.
func TestAStoreLosesItsStateUnderLoad(t *testing.T) {
	for _, s := range newStores {
		t.Run(s.name, func(t *testing.T) {
			url, events := s.start(t)
			f := s.newFleet(t, url, "10m", "10m", "10s")
			for name, lose := range events {
				t.Run(name, func(t *testing.T) { f.loses(t, lose) })
			}
		})
	}
}

func (f *newStoreFleet) loses(t *testing.T, lose func(f *newStoreFleet)) {
	const limit, long, lasts = 50, 30, 12 * time.Second // Envoy ends what takes 15 s
	eventually(t, 20*time.Second, "the store to have started", func() bool {
		return get(http.DefaultClient, f.proxies[2], "x-do", "200") == allowed
	})
	f.since()
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	var wg sync.WaitGroup
	var granted atomic.Int64 // when a short request was last sent that was allowed
	visit := func(p *proxy, ms int) int {
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		return get(client, p, "x-do", "200", "x-ms", fmt.Sprint(ms))
	}
	for i := range long {
		wg.Go(func() {
			if status := visit(f.proxies[i%2], int(lasts.Milliseconds())+1500); status != allowed {
				t.Errorf("a long request came to %d", status)
			}
		})
	}
	time.Sleep(time.Second)
	for range 2 * (limit - long) {
		wg.Go(func() {
			for ctx.Err() == nil {
				sent := time.Now()
				if visit(f.proxies[2], 50+rand.IntN(200)) == allowed {
					granted.Store(sent.UnixNano())
				} else {
					time.Sleep(20 * time.Millisecond)
				}
			}
		})
	}
	time.Sleep(time.Second)
	_, before := f.since()
	lost := time.Now()
	lose(f)
	time.Sleep(time.Second)
	f.since()
	paused := granted.Load()
	eventually(t, 12*time.Second, "slots to be granted again", func() bool {
		return granted.Load() > paused && time.Since(lost) > 2*time.Second
	})
	back := time.Since(lost)
	<-ctx.Done()
	_, after := f.since()
	wg.Wait()
	t.Logf("at most %d at once, then %d; slots are granted again after %s", before, after, back.Round(10*time.Millisecond))
	require.LessOrEqual(t, before, limit)
	require.Equal(t, limit, after, "all slots are used again, and not one more")
}
