package quota

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"
)

// shards are looked through one after the other, so that no swap waits long.
const shards = 256

// maxValues bounds a Memory: about 1 GiB of ordinary values.
const maxValues = 4_000_000

// Memory is a Store in this process, for one service. What it holds is lost with it.
type Memory struct {
	now       func() int64
	maxValues int

	mu      sync.Mutex
	values  [shards]map[[16]byte]kept // by the key's first byte
	n       int
	swept   int   // shard that was looked through last for what has expired
	sweepNs int64 // when to look through the next
	live    map[string]map[uint64]int64
	secrets map[string][]byte
}

type kept struct {
	value    []byte
	expireNs int64
}

var errFull = errors.New("the memory store is full: more keys are counted than it holds")

// NewMemory returns an empty store with a clock, in nanoseconds since the Unix
// epoch. The clock must not step back.
func NewMemory(now func() int64) *Memory {
	m := &Memory{now: now, maxValues: maxValues, live: map[string]map[uint64]int64{}, secrets: map[string][]byte{}}
	for i := range m.values {
		m.values[i] = map[[16]byte]kept{}
	}
	return m
}

// SteadyClock returns a clock that goes on evenly from the time that it is now.
func SteadyClock() func() int64 {
	start := time.Now()
	return func() int64 { return start.UnixNano() + int64(time.Since(start)) }
}

// Swap implements Store. It has called done for each when it returns.
func (m *Memory) Swap(_ context.Context, swaps []Swap, done func(i int, r Result)) {
	for i := range swaps {
		done(i, m.swap(&swaps[i]))
	}
}

func (m *Memory) swap(s *Swap) Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	m.sweep(now)
	shard := m.values[s.Key[0]]
	there, held := shard[s.Key]
	if there.expireNs <= now {
		there = kept{}
	}
	r := Result{Value: there.value, NowNs: now}
	switch {
	case s.New == nil || !isNonce(there.value, s.Old):
		r.Outcome = Differs
	case now < s.AtNs-s.SlackNs || now > s.AtNs+s.SlackNs || now >= s.UntilNs:
		r.Outcome = Late
	case m.n >= m.maxValues && !held:
		return Result{Outcome: Failed, Err: errFull}
	default:
		if !held {
			m.n++
		}
		shard[s.Key] = kept{bytes.Clone(s.New), s.ExpireNs}
		return Result{Outcome: Swapped, NowNs: now}
	}
	return r
}

func isNonce(value, nonce []byte) bool {
	if value == nil || nonce == nil {
		return value == nil && nonce == nil
	}
	return bytes.HasPrefix(value, nonce)
}

// sweep drops what has expired: of all shards in ten seconds.
func (m *Memory) sweep(now int64) {
	if now < m.sweepNs {
		return
	}
	m.sweepNs = now + linger/shards
	m.swept = (m.swept + 1) % shards
	shard := m.values[m.swept]
	for key, there := range shard {
		if there.expireNs <= now {
			delete(shard, key)
			m.n--
		}
	}
}

// Live implements Store.
func (m *Memory) Live(_ context.Context, domain string, process uint64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	if m.live[domain] == nil {
		m.live[domain] = map[uint64]int64{}
	}
	of := m.live[domain]
	of[process] = now + int64(LiveFor)
	for p, until := range of {
		if until <= now {
			delete(of, p)
		}
	}
	return len(of), nil
}

// Secret implements Store.
func (m *Memory) Secret(_ context.Context, name string, fresh func() []byte) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.secrets[name] == nil {
		m.secrets[name] = bytes.Clone(fresh())
	}
	return bytes.Clone(m.secrets[name]), nil
}

// Close implements Store.
func (m *Memory) Close() error { return nil }
