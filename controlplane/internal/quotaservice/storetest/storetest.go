// Package storetest tests that a swapstore.Store keeps its promises. Swap and what follows it help these and other
// tests to swap.
package storetest

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

// Conform tests that a store keeps each promise of swapstore.Store. Each test opens a store, and closes it. These
// stores may share their values.
func Conform(t *testing.T, open func() swapstore.Store) {
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

func swaps(t *testing.T, store swapstore.Store) {
	key, now := NewKey(), TimeOf(t, store)
	a, c := NewValue("a"), NewValue("")
	b := NewValue("\x00\r\n{}\x7f\x80\xff" + strings.Repeat("\x00", 4096))
	steps := []struct {
		name  string
		swap  swapstore.Swap
		want  swapstore.Status
		value []byte
	}{
		{"read nothing", swapstore.Swap{Key: key}, swapstore.Read, nil},
		{"expect a value where none is", Write(now, key, a, b), swapstore.Read, nil},
		{"write the first", Write(now, key, nil, a), swapstore.Swapped, nil},
		{"read it", swapstore.Swap{Key: key}, swapstore.Read, a},
		{"read it, expecting it", swapstore.Swap{Key: key, Old: NonceOf(a)}, swapstore.Read, a},
		{"expect nothing where a value is", Write(now, key, nil, b), swapstore.Read, a},
		{"expect another", Write(now, key, c, b), swapstore.Read, a},
		{"swap", Write(now, key, a, b), swapstore.Swapped, nil},
		{"swap again", Write(now, key, a, b), swapstore.Read, b},
		{"another key", Write(now, NewKey(), b, c), swapstore.Read, nil},
		{"a nonce alone is a value", Write(now, key, b, c), swapstore.Swapped, nil},
		{"read the last", swapstore.Swap{Key: key}, swapstore.Read, c},
	}
	for _, step := range steps {
		r := Swap(t, store, step.swap)
		require.NoError(t, r.Err, step.name)
		require.Equal(t, step.want, r.Status, step.name)
		require.Equal(t, step.value, r.Value, step.name)
		require.GreaterOrEqual(t, r.NowNs, now, "%s: the clock comes with each result", step.name)
		require.Less(t, r.NowNs, now+int64(patience), step.name)
	}
}

// age: a swap that needs an older store changes nothing, says what is there, and how old the
// store is. A swap without AgeNs is not held up by a young store.
func age(t *testing.T, store swapstore.Store) {
	_, _, err := store.Tend(t.Context())
	require.NoError(t, err)
	first, anew, err := store.Tend(t.Context())
	require.NoError(t, err)
	require.False(t, anew, "it is the same later")
	key, value := NewKey(), NewValue("a")
	w := Write(TimeOf(t, store), key, nil, value)
	w.AgeNs = first + int64(time.Hour)
	for range 2 {
		refused := Swap(t, store, w)
		require.Equal(t, swapstore.Young, refused.Status)
		require.Less(t, refused.AgeNs, first+int64(patience))
		require.Nil(t, refused.Value)
	}
	w.AgeNs = 1000
	Swapped(t, Swap(t, store, w))
	w.AgeNs = first + int64(time.Hour)
	require.Equal(t, swapstore.Young, Swap(t, store, w).Status)
	require.Equal(t, value, Swap(t, store, w).Value)
	w.Old, w.New = NonceOf(value), NewValue("b")
	require.Equal(t, swapstore.Young, Swap(t, store, w).Status, "also where it is what is expected")
	read := swapstore.Swap{Key: key, AgeNs: w.AgeNs}
	require.Equal(t, swapstore.Young, Swap(t, store, read).Status, "and where it is only read")
	w.AgeNs = 0
	Swapped(t, Swap(t, store, w))
	w.AgeNs = 1000
	require.Equal(t, swapstore.Read, Swap(t, store, w).Status)
}

func clock(t *testing.T, store swapstore.Store) {
	// Far from the edges, which the time that passes meanwhile would cross.
	const far, near = int64(time.Hour), int64(time.Minute)
	now := TimeOf(t, store)
	for _, c := range []struct {
		name        string
		from, until int64
		want        swapstore.Status
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
		w := swapstore.Swap{
			Kind: swapstore.Replacing, New: NewValue("x"), FromNs: c.from, UntilNs: c.until, ExpireNs: now + far,
		}
		for _, there := range [][]byte{nil, NewValue("there")} {
			w.Key = NewKey()
			if there != nil {
				Swapped(t, Swap(t, store, Write(now, w.Key, nil, there)))
			}
			w.Old = NonceOf(there)
			r := Swap(t, store, w)
			require.Equal(t, c.want, r.Status, "%s: %v", c.name, r.Err)
			is := Swap(t, store, swapstore.Swap{Key: w.Key}).Value
			if c.want == swapstore.Late {
				require.Equal(t, there, r.Value, "%s: what is there comes with it", c.name)
				require.Equal(t, there, is, c.name)
			} else {
				require.Equal(t, w.New, is, c.name)
			}
		}
	}
	// Another value decides before the clock does.
	key := NewKey()
	Swapped(t, Swap(t, store, Write(now, key, nil, NewValue("a"))))
	w := Write(now, key, nil, NewValue("b"))
	w.UntilNs = 0
	require.Equal(t, swapstore.Read, Swap(t, store, w).Status)
}

func expiry(t *testing.T, store swapstore.Store) {
	const life = 300 * time.Millisecond
	now := TimeOf(t, store)
	short := Write(now, NewKey(), nil, NewValue("short"))
	short.ExpireNs = now + int64(life)
	long := Write(now, NewKey(), nil, NewValue("long"))
	long.ExpireNs = math.MaxInt64
	past := Write(now, NewKey(), nil, NewValue("past"))
	past.ExpireNs = now - int64(time.Second)
	for _, r := range SwapAll(t.Context(), t, store, []swapstore.Swap{short, long, past}) {
		Swapped(t, r)
	}
	for {
		r := Swap(t, store, swapstore.Swap{Key: short.Key})
		if r.NowNs < short.ExpireNs-int64(5*time.Millisecond) {
			require.Equal(t, short.New, r.Value)
		} else if r.NowNs > short.ExpireNs+int64(5*time.Millisecond) {
			// Redis looks what has expired before a script asks for the time: the next read looks after it.
			require.Nil(t, Swap(t, store, swapstore.Swap{Key: short.Key}).Value)
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	require.Nil(t, Swap(t, store, swapstore.Swap{Key: past.Key}).Value)
	require.Equal(t, long.New, Swap(t, store, swapstore.Swap{Key: long.Key}).Value)
	// A swap renews it, and where a value has expired, none is there.
	short.ExpireNs = now + int64(time.Hour)
	Swapped(t, Swap(t, store, short))
}

// races counts in values, from many goroutines: each win counts one.
func races(t *testing.T, store swapstore.Store) {
	const goroutines, each = 16, 25
	now, key := TimeOf(t, store), NewKey()
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			var old []byte
			for won := 0; won < each; {
				var n uint64
				if old != nil {
					n = binary.BigEndian.Uint64(old[swapstore.NonceBytes:])
				}
				value := binary.BigEndian.AppendUint64(NewValue(""), n+1)
				switch r := Swap(t, store, Write(now, key, old, value)); r.Status {
				case swapstore.Swapped:
					won++
					old = value
				case swapstore.Read:
					old = r.Value
				default:
					t.Errorf("a swap came to %d: %v", r.Status, r.Err)
					return
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	last := Swap(t, store, swapstore.Swap{Key: key}).Value
	require.Equal(t, uint64(goroutines*each), binary.BigEndian.Uint64(last[swapstore.NonceBytes:]))
}

// many sends more swaps at once than travel together, half of them in vain.
func many(t *testing.T, store swapstore.Store) {
	const n = 2000
	now := TimeOf(t, store)
	all := make([]swapstore.Swap, n)
	for i := range all {
		all[i] = Write(now, NewKey(), nil, NewValue("v"))
		if i%2 == 1 {
			all[i].Key, all[i].Old = all[i-1].Key, NonceOf(NewValue("another"))
		}
	}
	for i, r := range SwapAll(t.Context(), t, store, all) {
		require.NoError(t, r.Err)
		if i%2 == 0 {
			Swapped(t, r)
		} else {
			require.Equal(t, swapstore.Read, r.Status)
		}
	}
}

// adds: sums go up while the clock is between the times of the swap, at any age of the store. Only the sum is said.
func adds(t *testing.T, store swapstore.Store) {
	key, now := NewKey(), TimeOf(t, store)
	add := func(units uint64, from, until time.Duration) swapstore.Result {
		first, last := now+int64(from), now+int64(until)
		return Swap(t, store, swapstore.Swap{
			Key: key, Kind: swapstore.Adding, Units: units, AgeNs: math.MaxInt64 / 2,
			FromNs: first, UntilNs: last, ExpireNs: last + int64(time.Second),
		})
	}
	for _, step := range []struct {
		units       uint64
		from, until time.Duration
		want        swapstore.Status
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
		require.Equal(t, swapstore.Result{Status: step.want, Sum: step.sum, NowNs: r.NowNs}, r, "%+v", step)
		require.GreaterOrEqual(t, r.NowNs, now)
	}
	now = TimeOf(t, store)
	brief := Write(now, NewKey(), nil, nil)
	brief.Kind, brief.Units = swapstore.Adding, 7
	brief.ExpireNs = now + int64(time.Second)
	Swapped(t, Swap(t, store, brief))
	require.Eventually(t, func() bool {
		return Swap(t, store, swapstore.Swap{Key: brief.Key}).Value == nil
	}, patience, 20*time.Millisecond, "it expires")
}

func ended(t *testing.T, store swapstore.Store) {
	now := TimeOf(t, store)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := Write(now, NewKey(), nil, NewValue("x"))
	if r := SwapAll(ctx, t, store, []swapstore.Swap{w})[0]; r.Status != swapstore.Swapped {
		require.Equal(t, swapstore.Failed, r.Status)
		require.Error(t, r.Err)
		require.Nil(t, r.Value)
	}
	store.Swap(ctx, nil, func(int, swapstore.Result) { t.Error("a result of no swap") })
}

// reuse changes what it gave to Swap as soon as that returns.
func reuse(t *testing.T, store swapstore.Store) {
	now, done := TimeOf(t, store), make(chan swapstore.Result, 1)
	value := NewValue("right")
	want := string(value)
	w := []swapstore.Swap{Write(now, NewKey(), nil, value)}
	key := w[0].Key
	store.Swap(t.Context(), w, func(_ int, r swapstore.Result) { done <- r })
	clear(value)
	clear(w)
	Swapped(t, <-done)
	require.Equal(t, want, string(Swap(t, store, swapstore.Swap{Key: key}).Value))
}

func live(t *testing.T, store swapstore.Store) {
	a, b := string(NewValue("a")), string(NewValue("b"))
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
	name := string(NewValue("secret"))
	var made sync.Map
	var all sync.WaitGroup
	results := make([][]byte, 8)
	for i := range results {
		all.Go(func() {
			got, err := store.Secret(t.Context(), name, func() []byte {
				fresh := NewValue("\x00\xff")
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

	// The store waits for none while a secret is made, which may take long.
	_, err = store.Secret(t.Context(), string(NewValue("slow")), func() []byte {
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			if _, _, err := store.Tend(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		select {
		case <-answered:
		case <-time.After(patience):
			t.Error("the store did not answer while a secret was made")
		}
		return []byte("made")
	})
	require.NoError(t, err)
}

// patience is how long a test waits for what the store does at once.
const patience = 5 * time.Second

// Swap carries out one swap and waits for its result.
func Swap(t testing.TB, store swapstore.Store, w swapstore.Swap) swapstore.Result {
	t.Helper()
	return SwapAll(t.Context(), t, store, []swapstore.Swap{w})[0]
}

// SwapAll carries out swaps and waits for their results; each must come once.
func SwapAll(
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

// NewKey is a key that nothing else uses.
func NewKey() (key [16]byte) {
	_, _ = rand.Read(key[:])
	return key
}

// NewValue is a value with a nonce of its own.
func NewValue(text string) []byte {
	value := make([]byte, swapstore.NonceBytes, swapstore.NonceBytes+len(text))
	_, _ = rand.Read(value)
	return append(value, text...)
}

// NonceOf is what Swap.Old takes of a value.
func NonceOf(value []byte) []byte { return value[:min(len(value), swapstore.NonceBytes)] }

// Swapped requires that a swap was carried out.
func Swapped(t testing.TB, r swapstore.Result) {
	t.Helper()
	require.NoError(t, r.Err)
	require.Equal(t, swapstore.Swapped, r.Status)
}

// TimeOf is the store's clock.
func TimeOf(t testing.TB, store swapstore.Store) int64 {
	t.Helper()
	r := Swap(t, store, swapstore.Swap{Key: NewKey()})
	require.NoError(t, r.Err)
	want := swapstore.Result{Status: swapstore.Read, NowNs: r.NowNs}
	require.Equal(t, want, r, "a key that is not there is read")
	return r.NowNs
}

// Write is a swap that the store's clock does not refuse.
func Write(now int64, key [16]byte, old, value []byte) swapstore.Swap {
	return swapstore.Swap{
		Key: key, Kind: swapstore.Replacing, Old: NonceOf(old), New: value,
		FromNs: now - int64(time.Minute), UntilNs: now + int64(time.Minute), ExpireNs: now + int64(time.Minute),
	}
}
