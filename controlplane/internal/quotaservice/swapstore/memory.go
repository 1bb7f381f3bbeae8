package swapstore

import (
	"bytes"
	"context"
	"maps"
	"math"
	"strconv"
	"sync"
	"time"
)

const (
	// shards are looked through one after the other, so that no swap waits long: all in sweepAllNs.
	shards     = 256
	sweepAllNs = int64(10 * time.Second)
	// maxBytes bounds what a Memory holds. The process takes up to twice that before Go
	// collects what has expired.
	maxBytes = 512 << 20
	// timesFree is how many times the memory that is free one domain may hold. Alone it has three quarters of all, and
	// leaves the rest to the others.
	timesFree = 3
	// keptBytes is what a value takes beside its bytes, which count in steps.
	keptBytes = 120
	stepBytes = 32
)

// Memory is a Store in this process, for one service. What it holds is lost with it.
type Memory struct {
	now      func() int64
	maxBytes int
	sinceNs  int64 // since when it has its state

	mu      sync.Mutex
	values  [shards]shard               // by the key's first byte
	bytes   int                         // of all values
	bytesOf map[string]int              // those of each domain
	swept   int                         // shard that was looked through last for what has expired
	sweepNs int64                       // when to look through the next
	live    map[string]map[uint64]int64 // by domain and process, until when
	secrets map[string][]byte
}

// shard is some of the values. A map keeps its memory when values leave it, so it is made
// anew where most have left.
type shard struct {
	values map[[16]byte]kept
	most   int // values that this map has had at once
}

type kept struct {
	value    []byte
	domain   string
	expireNs int64
}

// size is 0 where nothing is kept.
func (k *kept) size() int {
	if k.value == nil {
		return 0
	}
	return keptBytes + (len(k.value)+stepBytes-1)/stepBytes*stepBytes
}

// NewMemory returns an empty store with a clock, in nanoseconds since the Unix
// epoch.
func NewMemory(now func() int64) *Memory {
	m := &Memory{
		now: now, sinceNs: now(), maxBytes: maxBytes,
		bytesOf: map[string]int{}, live: map[string]map[uint64]int64{}, secrets: map[string][]byte{},
	}
	for i := range m.values {
		m.values[i].values = map[[16]byte]kept{}
	}
	return m
}

// Aged makes the store one that has lost nothing, however short it has been there: nobody
// holds anything of it.
func (m *Memory) Aged() *Memory {
	m.sinceNs = math.MinInt64 / 2
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
	if now >= m.sweepNs || now < m.sweepNs-sweepAllNs { // or the clock was set back
		m.sweep(now)
	}
	there := m.values[s.Key[0]].values[s.Key]
	value := there.value
	if there.expireNs <= now {
		value = nil
	}
	r := Result{Value: value, NowNs: now}
	age, isOnTime := m.age(now), s.FromNs <= now && now < s.UntilNs
	switch {
	case s.Adds && isOnTime:
		return m.add(s, number(value), &there, now)
	case s.Adds:
		return Result{Status: Late, NowNs: now}
	case age < s.AgeNs:
		r.Status, r.AgeNs = Young, age
	case s.New == nil || !isNonce(value, s.Old):
		r.Status = Read
	case !isOnTime:
		r.Status = Late
	default:
		return m.put(s, bytes.Clone(s.New), &there, Result{Status: Swapped, NowNs: now})
	}
	return r
}

// add adds the units of a swap to the sum.
func (m *Memory) add(s *Swap, sum uint64, there *kept, now int64) Result {
	sum += s.Units
	added := Result{Status: Swapped, NowNs: now, Sum: sum}
	if s.Units == 0 {
		return added
	}
	return m.put(s, strconv.AppendUint(nil, sum, 10), there, added)
}

// put puts the value of a swap in the place of what is there. It returns what became of that: swapped if there is room.
func (m *Memory) put(s *Swap, value []byte, there *kept, swapped Result) Result {
	fresh := kept{value, s.Domain, s.ExpireNs}
	if !m.reserve(s.Domain, fresh.size()-there.size()) {
		return Result{Status: Failed, Err: ErrFull}
	}
	in := &m.values[s.Key[0]]
	in.values[s.Key] = fresh
	in.most = max(in.most, len(in.values))
	return swapped
}

// number reads a value that swaps have added to; 0 if there is none.
func number(value []byte) uint64 {
	n, _ := strconv.ParseUint(string(value), 10, 64) // this store wrote it
	return n
}

// age is for how long the store has had its state: since now, if its clock was set back before
// that began.
func (m *Memory) age(now int64) int64 {
	m.sinceNs = min(m.sinceNs, now)
	return now - m.sinceNs
}

// Age implements Store. What a Memory has lost is lost with its service, so it is never another. Services ask for it
// all the time, so it also does what swaps would do if there were some.
func (m *Memory) Age(context.Context) (ns int64, anew bool, err error) {
	m.sweepDue()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.age(m.now()), false, nil
}

// reserve counts more bytes of a domain's values, or fewer, and reports whether there is room for them:
//
//	bytes of the domain, with these ≤ timesFree × bytes that nobody has then
func (m *Memory) reserve(domain string, more int) bool {
	own, free := m.bytesOf[domain]+more, m.maxBytes-m.bytes-more
	fits := more <= 0 || own <= timesFree*free
	if fits {
		m.bytesOf[domain] = own
		m.bytes += more
	}
	if m.bytesOf[domain] == 0 {
		delete(m.bytesOf, domain)
	}
	return fits
}

func isNonce(value, nonce []byte) bool {
	if value == nil || nonce == nil {
		return value == nil && nonce == nil
	}
	return bytes.HasPrefix(value, nonce)
}

// sweep drops what has expired in the next shard.
func (m *Memory) sweep(now int64) {
	m.sweepNs = now + sweepAllNs/shards
	m.swept = (m.swept + 1) % shards
	if m.swept == 0 {
		for domain := range m.live {
			m.keepLive(domain, now)
		}
	}
	in := &m.values[m.swept]
	for key, there := range in.values {
		if there.expireNs <= now {
			delete(in.values, key)
			m.reserve(there.domain, -there.size())
		}
	}
	if len(in.values) < in.most/4 {
		fresh := make(map[[16]byte]kept, len(in.values))
		maps.Copy(fresh, in.values)
		*in = shard{fresh, len(fresh)}
	}
}

// sweepDue drops what has expired in the shards that swaps would have looked through since the last one.
func (m *Memory) sweepDue() {
	m.mu.Lock()
	due := min((m.now()-m.sweepNs)/(sweepAllNs/shards), shards)
	m.mu.Unlock()
	for range due {
		m.mu.Lock()
		m.sweep(m.now())
		m.mu.Unlock()
	}
}

// Live implements Store.
func (m *Memory) Live(_ context.Context, domain string, process uint64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.live[domain] == nil {
		m.live[domain] = map[uint64]int64{}
	}
	m.live[domain][process] = m.now() + int64(LiveFor)
	return m.keepLive(domain, m.now()), nil
}

// keepLive forgets a domain's processes that are not alive any more, and counts the others.
func (m *Memory) keepLive(domain string, now int64) int {
	of := m.live[domain]
	maps.DeleteFunc(of, func(_ uint64, untilNs int64) bool {
		return untilNs <= now || untilNs > now+int64(LiveFor) // or the clock was set back
	})
	if len(of) == 0 {
		delete(m.live, domain)
	}
	return len(of)
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
