package storetest

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

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
		Key: key, Old: NonceOf(old), New: value, FromNs: now - int64(time.Minute),
		UntilNs: now + int64(time.Minute), ExpireNs: now + int64(time.Minute),
	}
}
