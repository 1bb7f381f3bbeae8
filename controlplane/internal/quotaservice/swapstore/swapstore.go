// Package swapstore is where the quota service keeps its values: a Store changes them by compare-and-swap, and by
// its own clock. Memory is one in this process; package redisstore has those in Redis.
//
// Its invariant: a value changes only by a swap whose conditions hold at the store, and a swap is carried out at most
// once. It must not know what a value means.
//
// The store compares a swap in this order, in one go with carrying it out:
//
//	AgeNs            has the store had its state for so long?  else Young
//	Kind             is it Replacing, not ReadOnly?            else Read
//	Old              is it the nonce of the value there?       else Read
//	FromNs, UntilNs  is its clock between them?                else Late
//	New              is the value from now on                  Swapped
//
// Young, Read and Late come with the value that is there.
//
// A swap that is Adding is for a value that is a sum, in decimal digits. Its result has no Value:
//
//	FromNs, UntilNs  is the clock between them?                else Late
//	Units            are in the sum from now on                Swapped, with the Sum
package swapstore

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math"
	"strconv"
	"sync"
	"time"
)

// Store keeps values of at most a few KiB under keys of 16 bytes, and changes
// them by compare-and-swap, or adds to them. Its clock is the one that decides: see Swap.
type Store interface {
	// Swap carries out many swaps in one go, in no order, and calls done for each
	// exactly once, from any goroutine, before the context's deadline or soon
	// after. It may return before that, and keeps nothing of swaps once it has
	// returned. It never repeats a swap of which it does not know whether it was
	// carried out.
	Swap(ctx context.Context, swaps []Swap, done func(i int, r Result))
	// Tend has the store do what is due beside swaps, and says how long it has had its state: of several servers, the
	// one that has had it for the shortest time. What has none begins with its first Tend, or Swap with an AgeNs. anew
	// says that some server has another state than at the last call. Services call it all the time.
	Tend(ctx context.Context) (ageNs int64, anew bool, err error)
	// Live notes that the process of a domain is alive, and returns how many of
	// the domain have been noted within the last LiveFor.
	Live(ctx context.Context, domain string, process uint64) (int, error)
	// Secret returns what the store keeps under the name, after storing what
	// fresh returns if it keeps nothing. fresh may take long, and the store goes on meanwhile.
	Secret(ctx context.Context, name string, fresh func() []byte) ([]byte, error)
	Close() error
}

// LiveFor is how long a process counts as alive after it was noted.
const LiveFor = 10 * time.Second

// Swap reads or changes a value. It replaces one if that is what the caller expects, and if the caller's decision holds
// at the time of the store's clock. The package comment says how.
type Swap struct {
	Key      [16]byte
	Kind     Kind
	Domain   string // whose key it is: a store may bound what each domain keeps
	FromNs   int64  // the store's clock must have reached this instant
	UntilNs  int64  // and must be before this one
	ExpireNs int64  // when the value may be forgotten, by the store's clock

	AgeNs int64  // unless Adding: for how long the store must have had its state, or the swap is Young; 0 = it need not
	Old   []byte // of one Replacing: nonce of the value that is expected; nil = none is there
	New   []byte // of one Replacing: the value; its first NonceBytes are its nonce
	Units uint64 // of one Adding; 0 = only read the sum
}

// Kind is what a Swap does.
type Kind uint8

// The kinds of a Swap.
const (
	ReadOnly  Kind = iota // it reads the value
	Replacing             // it puts New in the place of the value
	Adding                // it adds Units to the value, which is a sum
)

// NonceBytes is the size of the random number that a value begins with. Each
// write has another, so equal nonces mean equal values.
const NonceBytes = 8

// Status is what became of a Swap.
type Status uint8

// What became of a Swap.
const (
	Swapped Status = iota + 1
	Read           // nothing has changed: it only reads, or what it expects is not there, but another value or none
	Late           // the store's clock is before FromNs, or not before UntilNs
	Young          // the store has not had its state for AgeNs
	Failed         // the store did not answer, or refused: whether it swapped is not known
)

// Result is what the store has answered to a Swap.
type Result struct {
	Status Status
	Value  []byte // what is in the store, unless Swapped, Failed or of one Adding; nil = nothing
	Sum    uint64 // of a swap that is Adding and was Swapped: the value with its units
	NowNs  int64  // the store's clock, unless Failed
	AgeNs  int64  // of Young
	Err    error  // of Failed
}

// ErrFull is the error of a Failed swap that was not carried out because the domain has
// no room for more.
var ErrFull = errors.New("the domain has no room for more in the memory store: its keys count more than their share")

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
	case s.Kind == Adding && isOnTime:
		return m.add(s, number(value), &there, now)
	case s.Kind == Adding:
		return Result{Status: Late, NowNs: now}
	case age < s.AgeNs:
		r.Status, r.AgeNs = Young, age
	case s.Kind == ReadOnly || !isNonce(value, s.Old):
		r.Status = Read
	case !isOnTime:
		r.Status = Late
	default:
		if !m.put(s, bytes.Clone(s.New), &there) {
			return Result{Status: Failed, Err: ErrFull}
		}
		return Result{Status: Swapped, NowNs: now}
	}
	return r
}

// add adds the units of a swap to the sum.
func (m *Memory) add(s *Swap, sum uint64, there *kept, now int64) Result {
	sum += s.Units
	if s.Units > 0 && !m.put(s, strconv.AppendUint(nil, sum, 10), there) {
		return Result{Status: Failed, Err: ErrFull}
	}
	return Result{Status: Swapped, NowNs: now, Sum: sum}
}

// put puts the value of a swap in the place of what is there, and reports whether there is room.
func (m *Memory) put(s *Swap, value []byte, there *kept) bool {
	fresh := kept{value, s.Domain, s.ExpireNs}
	if !m.reserve(s.Domain, fresh.size()-there.size()) {
		return false
	}
	in := &m.values[s.Key[0]]
	in.values[s.Key] = fresh
	in.most = max(in.most, len(in.values))
	return true
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

// Tend implements Store. It drops what has expired, as swaps would do if there were some. What a Memory has lost is
// lost with its service, so its state is never another.
func (m *Memory) Tend(context.Context) (ageNs int64, anew bool, err error) {
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
	secret := m.secrets[name]
	m.mu.Unlock()
	if secret == nil {
		secret = m.keepSecret(name, bytes.Clone(fresh()))
	}
	return bytes.Clone(secret), nil
}

// keepSecret keeps a secret under the name, and returns what is kept: if another caller was faster, its own.
func (m *Memory) keepSecret(name string, secret []byte) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.secrets[name] == nil {
		m.secrets[name] = secret
	}
	return m.secrets[name]
}

// Close implements Store.
func (m *Memory) Close() error { return nil }
