package redisstore_test

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

// conform holds the stores that open returns to it. Each is closed by its test; they may
// share their values.
func conform(t *testing.T, open func() swapstore.Store) {
	for name, test := range map[string]func(*testing.T, swapstore.Store){
		"swap":                        swaps,
		"the clock decides":           clock,
		"values expire":               expiry,
		"one swap wins":               races,
		"many at once":                many,
		"a context that has ended":    ended,
		"what Swap was given is free": reuse,
		"live processes":              live,
		"a secret is made once":       secret,
		"its state has an age":        age,
		"numbers are added to":        adds,
	} {
		t.Run(name, func(t *testing.T) {
			store := open()
			defer func() { require.NoError(t, store.Close()) }()
			test(t, store)
		})
	}
}

const patience = 5 * time.Second

// swap carries out one swap and waits for its result.
func swap(t testing.TB, store swapstore.Store, w swapstore.Swap) swapstore.Result {
	t.Helper()
	return swapAll(t.Context(), t, store, []swapstore.Swap{w})[0]
}

// swapAll carries out swaps and waits for their results; each must come once.
func swapAll(
	ctx context.Context, t testing.TB, store swapstore.Store, swaps []swapstore.Swap,
) []swapstore.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	results := make([]swapstore.Result, len(swaps))
	times := make([]atomic.Int32, len(swaps))
	var all sync.WaitGroup
	all.Add(len(swaps))
	store.Swap(ctx, swaps, func(i int, r swapstore.Result) {
		results[i] = r
		if times[i].Add(1) == 1 {
			all.Done()
		}
	})
	all.Wait()
	for i := range times {
		require.EqualValues(t, 1, times[i].Load(), "results of swap %d", i)
	}
	return results
}

// newKey is a key that nothing else uses.
func newKey() (key [16]byte) {
	_, _ = rand.Read(key[:])
	return key
}

// newValue is a value with a nonce of its own.
func newValue(text string) []byte {
	value := make([]byte, swapstore.NonceBytes, swapstore.NonceBytes+len(text))
	_, _ = rand.Read(value)
	return append(value, text...)
}

// nonceOf is what Swap.Old takes of a value.
func nonceOf(value []byte) []byte { return value[:min(len(value), swapstore.NonceBytes)] }

func swapped(t testing.TB, r swapstore.Result) {
	t.Helper()
	require.NoError(t, r.Err)
	require.Equal(t, swapstore.Swapped, r.Outcome)
}

// timeOf is the store's clock.
func timeOf(t testing.TB, store swapstore.Store) int64 {
	t.Helper()
	r := swap(t, store, swapstore.Swap{Key: newKey()})
	require.NoError(t, r.Err)
	want := swapstore.Result{Outcome: swapstore.Read, NowNs: r.NowNs}
	require.Equal(t, want, r, "a key that is not there is read")
	return r.NowNs
}

// write is a swap that the store's clock does not refuse.
func write(now int64, key [16]byte, old, value []byte) swapstore.Swap {
	return swapstore.Swap{
		Key: key, Old: nonceOf(old), New: value, FromNs: now - int64(time.Minute),
		UntilNs: now + int64(time.Minute), ExpireNs: now + int64(time.Minute),
	}
}

func swaps(t *testing.T, store swapstore.Store) {
	key, now := newKey(), timeOf(t, store)
	a, c := newValue("a"), newValue("")
	b := newValue("\x00\r\n{}\x7f\x80\xff" + strings.Repeat("\x00", 4096))
	steps := []struct {
		name  string
		swap  swapstore.Swap
		want  swapstore.Outcome
		value []byte
	}{
		{"read nothing", swapstore.Swap{Key: key}, swapstore.Read, nil},
		{"expect a value where none is", write(now, key, a, b), swapstore.Read, nil},
		{"write the first", write(now, key, nil, a), swapstore.Swapped, nil},
		{"read it", swapstore.Swap{Key: key}, swapstore.Read, a},
		{"read it, expecting it", swapstore.Swap{Key: key, Old: nonceOf(a)}, swapstore.Read, a},
		{"expect nothing where a value is", write(now, key, nil, b), swapstore.Read, a},
		{"expect another", write(now, key, c, b), swapstore.Read, a},
		{"swap", write(now, key, a, b), swapstore.Swapped, nil},
		{"swap again", write(now, key, a, b), swapstore.Read, b},
		{"another key", write(now, newKey(), b, c), swapstore.Read, nil},
		{"a nonce alone is a value", write(now, key, b, c), swapstore.Swapped, nil},
		{"read the last", swapstore.Swap{Key: key}, swapstore.Read, c},
	}
	for _, step := range steps {
		r := swap(t, store, step.swap)
		require.NoError(t, r.Err, step.name)
		require.Equal(t, step.want, r.Outcome, step.name)
		require.Equal(t, step.value, r.Value, step.name)
		require.GreaterOrEqual(t, r.NowNs, now, "%s: the clock comes with each result", step.name)
		require.Less(t, r.NowNs, now+int64(patience), step.name)
	}
}

// age: a swap that needs an older store changes nothing, says what is there, and how old the
// store is. One that does not, as what is stated, is not kept up.
func age(t *testing.T, store swapstore.Store) {
	_, _, err := store.Age(t.Context())
	require.NoError(t, err)
	first, anew, err := store.Age(t.Context())
	require.NoError(t, err)
	require.False(t, anew, "it is the same later")
	key, value := newKey(), newValue("a")
	w := write(timeOf(t, store), key, nil, value)
	w.AgeNs = first + int64(time.Hour)
	for range 2 {
		refused := swap(t, store, w)
		require.Equal(t, swapstore.Young, refused.Outcome)
		require.Less(t, refused.AgeNs, first+int64(patience))
		require.Nil(t, refused.Value)
	}
	w.AgeNs = 1000
	swapped(t, swap(t, store, w))
	w.AgeNs = first + int64(time.Hour)
	require.Equal(t, swapstore.Young, swap(t, store, w).Outcome)
	require.Equal(t, value, swap(t, store, w).Value)
	w.Old, w.New = nonceOf(value), newValue("b")
	require.Equal(t, swapstore.Young, swap(t, store, w).Outcome, "also where it is what is expected")
	read := swapstore.Swap{Key: key, AgeNs: w.AgeNs}
	require.Equal(t, swapstore.Young, swap(t, store, read).Outcome, "and where it is only read")
	w.AgeNs = 0
	swapped(t, swap(t, store, w))
	w.AgeNs = 1000
	require.Equal(t, swapstore.Read, swap(t, store, w).Outcome)
}

func clock(t *testing.T, store swapstore.Store) {
	// Far from the edges, which the time that passes meanwhile would cross.
	const far, near = int64(time.Hour), int64(time.Minute)
	now := timeOf(t, store)
	for _, c := range []struct {
		name        string
		from, until int64
		want        swapstore.Outcome
	}{
		{"between both", now - near, now + near, swapstore.Swapped},
		{"between both, soon before the end", now - far - near, now + far - near, swapstore.Swapped},
		{"between both, soon after the beginning", now + near - far, now + near + far, swapstore.Swapped},
		{"long after the end", now - far - near, now - far + near, swapstore.Late},
		{"long before the beginning", now + far - near, now + far + near, swapstore.Late},
		{"after the end", now - near - far, now - 1, swapstore.Late},
		{"at the end, which has come", now - far, now, swapstore.Late},
		{"a moment, which has gone", now - int64(time.Millisecond), now - int64(time.Millisecond) + 1, swapstore.Late},
		{"no beginning, no end", -math.MaxInt64, math.MaxInt64, swapstore.Swapped},
	} {
		w := swapstore.Swap{New: newValue("x"), FromNs: c.from, UntilNs: c.until, ExpireNs: now + far}
		for _, there := range [][]byte{nil, newValue("there")} {
			w.Key = newKey()
			if there != nil {
				swapped(t, swap(t, store, write(now, w.Key, nil, there)))
			}
			w.Old = nonceOf(there)
			r := swap(t, store, w)
			require.Equal(t, c.want, r.Outcome, "%s: %v", c.name, r.Err)
			is := swap(t, store, swapstore.Swap{Key: w.Key}).Value
			if c.want == swapstore.Late {
				require.Equal(t, there, r.Value, "%s: what is there comes with it", c.name)
				require.Equal(t, there, is, c.name)
			} else {
				require.Equal(t, w.New, is, c.name)
			}
		}
	}
	// Another value decides before the clock does.
	key := newKey()
	swapped(t, swap(t, store, write(now, key, nil, newValue("a"))))
	w := write(now, key, nil, newValue("b"))
	w.UntilNs = 0
	require.Equal(t, swapstore.Read, swap(t, store, w).Outcome)
}

func expiry(t *testing.T, store swapstore.Store) {
	const life = 300 * time.Millisecond
	now := timeOf(t, store)
	short := write(now, newKey(), nil, newValue("short"))
	short.ExpireNs = now + int64(life)
	long := write(now, newKey(), nil, newValue("long"))
	long.ExpireNs = math.MaxInt64
	past := write(now, newKey(), nil, newValue("past"))
	past.ExpireNs = now - int64(time.Second)
	for _, r := range swapAll(t.Context(), t, store, []swapstore.Swap{short, long, past}) {
		swapped(t, r)
	}
	for {
		r := swap(t, store, swapstore.Swap{Key: short.Key})
		if r.NowNs < short.ExpireNs-int64(5*time.Millisecond) {
			require.Equal(t, short.New, r.Value)
		} else if r.NowNs > short.ExpireNs+int64(5*time.Millisecond) {
			require.Nil(t, r.Value)
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	require.Nil(t, swap(t, store, swapstore.Swap{Key: past.Key}).Value)
	require.Equal(t, long.New, swap(t, store, swapstore.Swap{Key: long.Key}).Value)
	// A swap renews it, and where a value has expired, none is there.
	short.ExpireNs = now + int64(time.Hour)
	swapped(t, swap(t, store, short))
}

// races counts in values, from many goroutines: each win counts one.
func races(t *testing.T, store swapstore.Store) {
	const goroutines, each = 16, 25
	now, key := timeOf(t, store), newKey()
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			var old []byte
			for won := 0; won < each; {
				var n uint64
				if old != nil {
					n = binary.BigEndian.Uint64(old[swapstore.NonceBytes:])
				}
				value := binary.BigEndian.AppendUint64(newValue(""), n+1)
				switch r := swap(t, store, write(now, key, old, value)); r.Outcome {
				case swapstore.Swapped:
					won++
					old = value
				case swapstore.Read:
					old = r.Value
				default:
					t.Errorf("a swap came to %d: %v", r.Outcome, r.Err)
					return
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	last := swap(t, store, swapstore.Swap{Key: key}).Value
	require.Equal(t, uint64(goroutines*each), binary.BigEndian.Uint64(last[swapstore.NonceBytes:]))
}

// many sends more swaps at once than travel together, half of them in vain.
func many(t *testing.T, store swapstore.Store) {
	const n = 2000
	now := timeOf(t, store)
	all := make([]swapstore.Swap, n)
	for i := range all {
		all[i] = write(now, newKey(), nil, newValue("v"))
		if i%2 == 1 {
			all[i].Key, all[i].Old = all[i-1].Key, nonceOf(newValue("another"))
		}
	}
	for i, r := range swapAll(t.Context(), t, store, all) {
		require.NoError(t, r.Err)
		if i%2 == 0 {
			swapped(t, r)
		} else {
			require.Equal(t, swapstore.Read, r.Outcome)
		}
	}
}

func adds(t *testing.T, store swapstore.Store) {
	key, now := newKey(), timeOf(t, store)
	add := func(units uint64, from, until time.Duration) swapstore.Result {
		first, last := now+int64(from), now+int64(until)
		return swap(t, store, swapstore.Swap{
			Key: key, Adds: true, Units: units,
			FromNs: first, UntilNs: last, ExpireNs: last + int64(time.Second),
		})
	}
	for _, step := range []struct {
		units       uint64
		from, until time.Duration
		want        swapstore.Outcome
		sum         uint64
	}{
		{0, -time.Minute, time.Minute, swapstore.Swapped, 0},
		{3, -time.Minute, time.Minute, swapstore.Swapped, 3},
		{4_294_967_295, -time.Minute, time.Minute, swapstore.Swapped, 4_294_967_298},
		{0, -time.Minute, time.Minute, swapstore.Swapped, 4_294_967_298},
		{5, time.Minute, 2 * time.Minute, swapstore.Late, 0},
		{5, -2 * time.Minute, -time.Minute, swapstore.Late, 0},
		{1, -time.Minute, time.Minute, swapstore.Swapped, 4_294_967_299},
	} {
		r := add(step.units, step.from, step.until)
		require.NoError(t, r.Err)
		require.Equal(t, step.want, r.Outcome, "%+v", step)
		require.Equal(t, step.sum, r.Sum, "%+v", step)
		require.GreaterOrEqual(t, r.NowNs, now)
	}
	now = timeOf(t, store)
	brief := write(now, newKey(), nil, nil)
	brief.Adds, brief.Units = true, 7
	brief.ExpireNs = now + int64(time.Second)
	swapped(t, swap(t, store, brief))
	require.Eventually(t, func() bool {
		return swap(t, store, swapstore.Swap{Key: brief.Key}).Value == nil
	}, patience, 20*time.Millisecond, "it expires")
}

func ended(t *testing.T, store swapstore.Store) {
	now := timeOf(t, store)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := write(now, newKey(), nil, newValue("x"))
	if r := swapAll(ctx, t, store, []swapstore.Swap{w})[0]; r.Outcome != swapstore.Swapped {
		require.Equal(t, swapstore.Failed, r.Outcome)
		require.Error(t, r.Err)
		require.Nil(t, r.Value)
	}
	store.Swap(ctx, nil, func(int, swapstore.Result) { t.Error("a result of no swap") })
}

// reuse changes what it gave to Swap as soon as that returns.
func reuse(t *testing.T, store swapstore.Store) {
	now, done := timeOf(t, store), make(chan swapstore.Result, 1)
	value := newValue("right")
	want := string(value)
	w := []swapstore.Swap{write(now, newKey(), nil, value)}
	key := w[0].Key
	store.Swap(t.Context(), w, func(_ int, r swapstore.Result) { done <- r })
	clear(value)
	clear(w)
	swapped(t, <-done)
	require.Equal(t, want, string(swap(t, store, swapstore.Swap{Key: key}).Value))
}

func live(t *testing.T, store swapstore.Store) {
	a, b := string(newValue("a")), string(newValue("b"))
	for i, step := range []struct {
		domain  string
		process uint64
		want    int
	}{
		{a, 1, 1}, {a, 1, 1}, {a, math.MaxUint64, 2}, {b, 1, 1}, {a, 0, 3}, {a, 1, 3},
	} {
		n, err := store.Live(t.Context(), step.domain, step.process)
		require.NoError(t, err)
		require.Equal(t, step.want, n, "step %d", i)
	}
}

func secret(t *testing.T, store swapstore.Store) {
	name := string(newValue("secret"))
	var made sync.Map
	var all sync.WaitGroup
	results := make([][]byte, 8)
	for i := range results {
		all.Go(func() {
			got, err := store.Secret(t.Context(), name, func() []byte {
				fresh := newValue("\x00\xff")
				made.Store(string(fresh), true)
				return fresh
			})
			if err != nil {
				t.Error(err)
			}
			results[i] = got
		})
	}
	all.Wait()
	for _, got := range results {
		require.Equal(t, results[0], got)
		_, ok := made.Load(string(got))
		require.True(t, ok, "it is one that was made")
	}
	got, err := store.Secret(t.Context(), name, func() []byte { t.Error("made again"); return nil })
	require.NoError(t, err)
	require.Equal(t, results[0], got)
}
