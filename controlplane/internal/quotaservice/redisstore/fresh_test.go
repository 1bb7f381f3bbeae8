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

var numberOfKeys = flag.Int("quota-keys", 5_000, "how many fresh keys are asked for while others ask, too")

const (
	floods, keysOfMessage = 4, 64 // streams, and keys a message
	// every is for 20,000 keys a second together, less than saturates two processors.
	every = floods * keysOfMessage * time.Second / 20_000
)

// TestFreshKeys: a flood of fresh keys gets each limit once, delays nobody, and is forgotten. On a
// machine that is busy otherwise the service may give up some asks, which counts nothing.
func TestFreshKeys(t *testing.T) {
	server := servertest.StartRedis(t, servertest.Redis(t), "--maxmemory", "6gb", "--maxmemory-policy", "noeviction")
	options := quotaservice.Options{Store: open(t, "redis://"+server.Addr()), StoreTimeout: time.Minute}
	s, err := quotaservice.NewService(t.Context(), options)
	require.NoError(t, err)
	f := &freshKeys{t: t, service: s, ended: make(chan struct{})}
	var flooding, other sync.WaitGroup
	for range floods {
		flooding.Go(f.flood)
	}
	other.Go(f.askMeanwhile)
	flooding.Wait()
	close(f.ended)
	other.Wait()
	require.EqualValues(t, *numberOfKeys, f.got[quota.Granted].Load())
	require.EqualValues(t, *numberOfKeys, f.got[quota.Denied].Load())
	for range 10 { // of almost only such keys
		if key := server.Do("RANDOMKEY"); server.Do("TYPE", key) == "string" {
			ms, err := strconv.Atoi(server.Do("PTTL", key))
			require.NoError(t, err)
			require.LessOrEqual(t, ms, 20_000, "10 s longer than the window")
		}
	}
	slices.Sort(f.took)
	p99 := f.took[len(f.took)*99/100]
	t.Logf("99 of 100 asks of others within %s, %d asked again; the store holds %s keys",
		p99, f.again.Load(), server.Do("DBSIZE"))
	if *numberOfKeys > 100_000 {
		require.Zero(t, f.again.Load())
		require.LessOrEqual(t, p99, 15*time.Millisecond)
		require.Eventually(t, func() bool {
			n, err := strconv.Atoi(server.Do("DBSIZE"))
			return err == nil && n < 10
		}, 2*time.Minute, time.Second, "the store's keys expire")
	}
}

// freshKeys are a flood of keys and one that asks meanwhile.
type freshKeys struct {
	t       *testing.T
	service *quotaservice.Service
	ended   chan struct{} // the flood has
	next    atomic.Int64  // key of the flood
	got     [quota.Busy + 1]atomic.Int64
	again   atomic.Int64    // asks that were repeated
	took    []time.Duration // of those that ask meanwhile
}

func (f *freshKeys) asker(counter byte, n uint32) *asker {
	w := limit.Window{Algorithm: limit.FixedWindowPerKey, Limit: n, PeriodNs: int64(10 * time.Second)}
	d := quota.Definition{ID: 1, Counter: [16]byte{counter}, Windows: []limit.Window{w}, Lease: quota.LeaseOff}
	return newAsker(f.t, f.service, d)
}

// flood asks twice for each key.
func (f *freshKeys) flood() {
	a := f.asker(1, 1)
	defer a.Close()
	for tick := time.NewTicker(every); ; <-tick.C {
		from := int(f.next.Add(keysOfMessage)) - keysOfMessage
		var keys [][16]byte
		for i := from; i < min(from+keysOfMessage, *numberOfKeys); i++ {
			k := quota.KeyOf(uint64(i), 1)
			keys = append(keys, k, k)
		}
		if len(keys) == 0 {
			return
		}
		results, more := a.decided(f.t, keys...)
		for _, result := range results {
			f.got[result].Add(1)
		}
		f.again.Add(int64(more))
	}
}

// askMeanwhile asks for one other key until the flood has ended.
func (f *freshKeys) askMeanwhile() {
	a := f.asker(2, 1_000_000)
	defer a.Close()
	for tick := time.NewTicker(5 * time.Millisecond); ; <-tick.C {
		start := time.Now()
		results, more := a.decided(f.t, quota.KeyOf(1, 1))
		if results[0] != quota.Granted {
			f.t.Errorf("another one's result is %d", results[0])
		}
		f.again.Add(int64(more))
		f.took = append(f.took, time.Since(start))
		select {
		case <-f.ended:
			return
		default:
		}
	}
}

// asker is a stream that waits for its answers.
type asker struct {
	*quotaservice.Stream
	ready chan struct{}
	asks  quota.Asks
}

func newAsker(t *testing.T, s *quotaservice.Service, d quota.Definition) *asker {
	a := &asker{ready: make(chan struct{}, 1)}
	a.asks = quota.Asks{Domain: "d", Process: 1, Definitions: []quota.Definition{d}}
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
func (a *asker) decided(t *testing.T, keys ...[16]byte) (results []quota.Outcome, again int) {
	for round := 0; len(keys) > 0; round++ {
		require.Less(t, round, 1000, "the service gives up each time")
		var left [][16]byte
		for _, answer := range a.ask(t, keys...) {
			if answer.Outcome == quota.Unavailable {
				left = append(left, keys[answer.ID])
				continue
			}
			results = append(results, answer.Outcome)
		}
		keys, again = left, again+len(left)
	}
	return results, again
}

// ask asks for a unit of each key.
func (a *asker) ask(t *testing.T, keys ...[16]byte) (got []quota.AskResult) {
	for i, key := range keys {
		part := quota.Part{Definition: 1, Key: key, Cost: 1, Waiting: 1}
		a.asks.Asks = append(a.asks.Asks, quota.Ask{ID: uint32(i), Parts: []quota.Part{part}})
	}
	require.NoError(t, a.Receive(a.asks.Append(nil)))
	a.asks = quota.Asks{}
	for len(got) < len(keys) {
		<-a.ready
		for b, ok := a.Next(); ok; b, ok = a.Next() {
			a.Sent()
			var m quota.Results
			require.NoError(t, m.Decode(b))
			got = append(got, m.Results...)
		}
	}
	return got
}
