package redisstore_test

import (
	"flag"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/servertest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

var freshKeys = flag.Int("quota-keys", 5_000, "how many fresh keys are asked for while others ask, too")

// A flood of fresh keys gets each limit once, holds up nobody, and is forgotten. On a
// machine that is busy otherwise the service may give up some asks, which counts nothing.
func TestFreshKeys(t *testing.T) {
	const (
		floods, batch = 4, 64 // streams, and keys a message
		// every is for 20,000 keys a second together, less than saturates two processors.
		every = floods * batch * time.Second / 20_000
	)
	server := servertest.StartRedis(t, servertest.Redis(t), "--maxmemory", "6gb", "--maxmemory-policy", "noeviction")
	s, err := quotaservice.NewService(t.Context(), quotaservice.Options{Store: open(t, "redis://"+server.Addr()), StoreTimeout: time.Minute})
	require.NoError(t, err)
	asking := func(counter byte, n uint32) *asker {
		w := limit.Window{Algorithm: limit.FixedWindowPerKey, Limit: n, PeriodNs: int64(10 * time.Second)}
		return newAsker(t, s, quota.Definition{ID: 1, Counter: [16]byte{counter}, Windows: []limit.Window{w}, Lease: quota.LeaseOff})
	}
	var flooding, other sync.WaitGroup
	var next, again atomic.Int64
	var got [quota.Busy + 1]atomic.Int64
	for range floods {
		flooding.Go(func() {
			a := asking(1, 1)
			defer a.Close()
			for tick := time.NewTicker(every); ; <-tick.C {
				from := int(next.Add(batch)) - batch
				var keys [][16]byte
				for i := from; i < min(from+batch, *freshKeys); i++ {
					k := quota.KeyOf(uint64(i), 1)
					keys = append(keys, k, k)
				}
				if len(keys) == 0 {
					return
				}
				results, more := a.decided(t, keys...)
				for _, result := range results {
					got[result].Add(1)
				}
				again.Add(int64(more))
			}
		})
	}
	flooded := make(chan struct{})
	var took []time.Duration
	other.Go(func() {
		a := asking(2, 1_000_000)
		defer a.Close()
		for tick := time.NewTicker(5 * time.Millisecond); ; <-tick.C {
			start := time.Now()
			results, more := a.decided(t, quota.KeyOf(1, 1))
			if results[0] != quota.Granted {
				t.Errorf("another one's result is %d", results[0])
			}
			again.Add(int64(more))
			took = append(took, time.Since(start))
			select {
			case <-flooded:
				return
			default:
			}
		}
	})
	flooding.Wait()
	close(flooded)
	other.Wait()
	require.EqualValues(t, *freshKeys, got[quota.Granted].Load())
	require.EqualValues(t, *freshKeys, got[quota.Denied].Load())
	for range 10 { // of almost only such keys
		if key := server.Do("RANDOMKEY"); server.Do("TYPE", key) == "string" {
			ms, err := strconv.Atoi(server.Do("PTTL", key))
			require.NoError(t, err)
			require.LessOrEqual(t, ms, 20_000, "10 s longer than the window")
		}
	}
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	t.Logf("99 of 100 asks of others within %s, %d asked again; the store holds %s keys", p99, again.Load(), server.Do("DBSIZE"))
	if *freshKeys > 100_000 {
		require.Zero(t, again.Load())
		require.LessOrEqual(t, p99, 15*time.Millisecond)
		require.Eventually(t, func() bool {
			n, err := strconv.Atoi(server.Do("DBSIZE"))
			return err == nil && n < 10
		}, 2*time.Minute, time.Second, "the store's keys expire")
	}
}

// asker is a stream that waits for its answers.
type asker struct {
	*quotaservice.Stream
	ready chan struct{}
	asks  quota.Asks
}

func newAsker(t *testing.T, s *quotaservice.Service, d quota.Definition) *asker {
	a := &asker{ready: make(chan struct{}, 1), asks: quota.Asks{Domain: "d", Process: 1, Definitions: []quota.Definition{d}}}
	st, err := s.Open(quotaservice.Peer{Address: "test"}, func() {
		select {
		case a.ready <- struct{}{}:
		default:
		}
	})
	require.NoError(t, err)
	a.Stream = st
	return a
}

// decided asks for a unit of each key until it is granted or denied, and returns how many
// asks it has repeated.
func (a *asker) decided(t *testing.T, keys ...[16]byte) (results []quota.Result, again int) {
	for round := 0; len(keys) > 0; round++ {
		require.Less(t, round, 1000, "the service gives up each time")
		var left [][16]byte
		for _, answer := range a.ask(t, keys...) {
			if answer.Result == quota.Unavailable {
				left = append(left, keys[answer.ID])
				continue
			}
			results = append(results, answer.Result)
		}
		keys, again = left, again+len(left)
	}
	return results, again
}

// ask asks for a unit of each key.
func (a *asker) ask(t *testing.T, keys ...[16]byte) (got []quota.AskResult) {
	for i, key := range keys {
		a.asks.Asks = append(a.asks.Asks, quota.Ask{ID: uint32(i), Parts: []quota.Part{{Definition: 1, Key: key, Cost: 1, Waiting: 1}}})
	}
	require.NoError(t, a.Receive(a.asks.Append(nil)))
	a.asks = quota.Asks{}
	for len(got) < len(keys) {
		<-a.ready
		for b, ok := a.Next(); ok; b, ok = a.Next() {
			var m quota.Grants
			require.NoError(t, m.Decode(b))
			got = append(got, m.Results...)
		}
	}
	return got
}
