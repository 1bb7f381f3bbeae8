package libraries

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// round is what one limiter took in one round; see row.
type round struct {
	Bytes, Allocs         int
	Many, ManyShared, One float64
}

// each is how long a figure is taken for.
const each = 400 * time.Millisecond

func measure(l limiter, n int) (m round, err error) {
	before := heap()
	allow, err := l.build(n)
	if err != nil {
		return m, err
	}
	for i := range n { // each key is made for one hit, as a request's is
		if !allow(key(i)) {
			return m, errors.New("a hit was denied: it must pass")
		}
	}
	m.Bytes = int((heap() - before) / int64(n))

	keys := shuffled(n)
	half := len(keys) / 2
	rest := slices.Concat(keys[half:], keys[:half])
	m.Many = timed(allow, keys)
	m.ManyShared = timed(allow, keys, rest)
	m.One = timed(allow, []string{strings.Clone(keys[0])})
	m.Allocs = int(testing.AllocsPerRun(1000, func() { allow(keys[0]) }))
	runtime.KeepAlive(allow)
	return m, nil
}

func key(i int) string { return "user-" + strconv.Itoa(100_000_000+i) }

// shuffled returns the keys in a random order, none of them the very bytes that
// a limiter may have kept, and each near the one before, as a request that was
// just read is near.
func shuffled(n int) []string {
	order := rand.Perm(n)
	keys := make([]string, n)
	for i := range keys {
		keys[i] = key(order[i])
	}
	return keys
}

// timed returns the nanoseconds of a decision, by a goroutine for each list of
// keys: the time over the decisions of all of them.
func timed(allow func(string) bool, lists ...[]string) float64 {
	runtime.GC()
	repeat(allow, lists[0], each/8) // into the caches
	perSecond := make([]float64, len(lists))
	var done sync.WaitGroup
	for i, keys := range lists {
		done.Go(func() { perSecond[i] = repeat(allow, keys, each) })
	}
	done.Wait()
	sum := 0.0
	for _, rate := range perSecond {
		sum += rate
	}
	return 1e9 / sum
}

// repeat asks for one key after the other, for that long, and returns how many
// it did in a second.
func repeat(allow func(string) bool, keys []string, during time.Duration) float64 {
	begin, n := time.Now(), 0
	for i := 0; ; {
		for range 256 {
			allow(keys[i])
			if i++; i == len(keys) {
				i = 0
			}
		}
		n += 256
		if took := time.Since(begin); took >= during {
			return float64(n) / took.Seconds()
		}
	}
}

// heap returns the bytes of the heap that are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
