package redisstore_test

import (
	"flag"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/redistest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quota"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	lease "github.com/sluice-ratelimit/sluice/shared/quota"
)

var freshKeys = flag.Int("quota-keys", 5_000, "how many fresh keys are asked for while others ask, too")

const (
	freshWindow = 10 * time.Second
	freshBatch  = 64 // keys a message
	// freshFloods streams ask every freshEvery: for 20,000 keys a second together, which
	// is less than saturates two processors.
	freshFloods = 4
	freshEvery  = freshFloods * freshBatch * time.Second / 20_000
	// freshWait bounds 99 of 100 asks of others, freshHeap what the service grows by.
	freshWait = 15 * time.Millisecond
	freshHeap = 64 << 20
)

// A flood of fresh keys gets each limit once, holds up nobody, and is forgotten: the
// service keeps the last of them, and the store's expire.
func TestFreshKeys(t *testing.T) {
	long := *freshKeys > 100_000
	server := redistest.Start(t, redistest.Redis(t)[0], "--maxmemory", "6gb", "--maxmemory-policy", "noeviction")
	s, err := quota.NewService(t.Context(), quota.Options{Store: open(t, "redis://"+server.Addr())})
	require.NoError(t, err)
	window := func(n uint32) []limit.Window {
		return []limit.Window{{Algorithm: limit.FixedWindow, Limit: n, PeriodNs: int64(freshWindow)}}
	}
	var flooding, all sync.WaitGroup
	var next, granted, denied atomic.Int64
	began := time.Now()
	for range freshFloods {
		flooding.Go(func() {
			a := newAsker(t, s, lease.Definition{ID: 1, Counter: [16]byte{1}, Windows: window(1), Lease: lease.LeaseAuto})
			defer a.Close()
			tick := time.NewTicker(freshEvery)
			defer tick.Stop()
			for ; ; <-tick.C {
				from := int(next.Add(freshBatch)) - freshBatch
				if from >= *freshKeys {
					return
				}
				var keys [][16]byte
				for i := range min(freshBatch, *freshKeys-from) {
					k := lease.KeyOf(uint64(from+i), 1)
					keys = append(keys, k, k)
				}
				for _, got := range a.ask(t, keys...) {
					switch got.Result {
					case lease.Granted:
						granted.Add(int64(got.Grants[0].Units))
					case lease.Denied:
						denied.Add(1)
					default:
						t.Errorf("result %d", got.Result)
					}
				}
			}
		})
	}
	flooded := make(chan struct{})
	var took []time.Duration
	var heap []uint64
	all.Go(func() {
		a := newAsker(t, s, lease.Definition{ID: 1, Counter: [16]byte{2}, Windows: window(1_000_000), Lease: lease.LeaseOff})
		defer a.Close()
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			select {
			case <-flooded:
				return
			case <-tick.C:
			}
			start := time.Now()
			got := a.ask(t, lease.KeyOf(1, 1))
			took = append(took, time.Since(start))
			if got[0].Result != lease.Granted {
				t.Errorf("another one's result is %d", got[0].Result)
			}
			if done := int(next.Load()) * 10 / *freshKeys; done > len(heap) {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				heap = append(heap, m.HeapInuse)
			}
		}
	})
	flooding.Wait()
	close(flooded)
	all.Wait()
	passed := time.Since(began)
	require.EqualValues(t, *freshKeys, granted.Load())
	require.EqualValues(t, *freshKeys, denied.Load())
	for range 10 {
		if key := server.Do("RANDOMKEY"); key != "" && server.Do("TYPE", key) == "string" && len(key) > 20 {
			ms, err := strconv.Atoi(server.Do("PTTL", key))
			require.NoError(t, err)
			require.LessOrEqual(t, ms, int((freshWindow + 10*time.Second).Milliseconds()))
		}
	}
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	t.Logf("%d keys in %s: half of the asks of others within %s, 99 of 100 within %s; the store holds %s keys", *freshKeys, passed.Round(time.Millisecond), took[len(took)/2], p99, server.Do("DBSIZE"))
	if !long {
		return
	}
	t.Logf("heap, MiB, at each tenth of the keys: %d", mebibytes(heap))
	require.LessOrEqual(t, p99, freshWait)
	require.Less(t, slices.Max(heap[2:]), heap[1]+freshHeap)
	require.Eventually(t, func() bool {
		n, err := strconv.Atoi(server.Do("DBSIZE"))
		return err == nil && n < 10
	}, 2*time.Minute, time.Second, "the store's keys expire")
}

func mebibytes(all []uint64) (n []uint64) {
	for _, b := range all {
		n = append(n, b>>20)
	}
	return n
}

// asker is a stream that waits for its answers.
type asker struct {
	*quota.Stream
	ready chan struct{}
	asks  lease.Asks
}

func newAsker(t *testing.T, s *quota.Service, d lease.Definition) *asker {
	a := &asker{ready: make(chan struct{}, 1), asks: lease.Asks{Domain: "d", Process: 1, Definitions: []lease.Definition{d}}}
	st, err := s.Open(quota.Peer{Address: "test"}, func() {
		select {
		case a.ready <- struct{}{}:
		default:
		}
	})
	require.NoError(t, err)
	a.Stream = st
	return a
}

// ask asks for a unit of each key.
func (a *asker) ask(t *testing.T, keys ...[16]byte) (got []lease.Answer) {
	for i, key := range keys {
		a.asks.Asks = append(a.asks.Asks, lease.Ask{ID: uint32(i), Parts: []lease.Part{{Definition: 1, Key: key, Cost: 1, Waiting: 1}}})
	}
	require.NoError(t, a.Receive(a.asks.Append(nil)))
	a.asks = lease.Asks{}
	for len(got) < len(keys) {
		<-a.ready
		for b, ok := a.Next(); ok; b, ok = a.Next() {
			var m lease.Answers
			require.NoError(t, m.Decode(b))
			got = append(got, m.Answers...)
		}
	}
	return got
}
