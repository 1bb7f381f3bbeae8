package swapstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/proctest"
)

func swapOne(m *Memory, s Swap) (got Result) {
	m.Swap(context.Background(), []Swap{s}, func(_ int, r Result) { got = r })
	return got
}

func TestMemoryTime(t *testing.T) {
	now := int64(1000)
	m := NewMemory(func() int64 { return now })
	write := Swap{Kind: Replacing, New: []byte("nonce..1"), FromNs: 990, UntilNs: 1005, ExpireNs: 2000}
	for at, want := range map[int64]Status{989: Late, 990: Swapped, 1004: Swapped, 1005: Late, 1011: Late} {
		m.values[0].values = map[[16]byte]kept{}
		now = at
		require.Equal(t, want, swapOne(m, write).Status, "at %d", at)
	}
	m.values[0].values = map[[16]byte]kept{}
	now = 1004
	require.Equal(t, Swapped, swapOne(m, write).Status)
	now = 1999
	require.Equal(t, Result{Status: Read, Value: []byte("nonce..1"), NowNs: 1999}, swapOne(m, Swap{}))
	now = 2000
	require.Equal(t, Result{Status: Read, NowNs: 2000}, swapOne(m, Swap{}), "it has expired")
}

// crammed is a Memory that a test fills.
type crammed struct {
	*Memory
	t   *testing.T
	now int64
	n   uint32
}

func cram(t *testing.T, most int) *crammed {
	c := &crammed{t: t}
	c.Memory = NewMemory(func() int64 { return c.now })
	c.maxBytes = most
	return c
}

// fill writes new values of a domain until one is refused, at most so many.
func (c *crammed) fill(domain string, most, bytes int) (n int) {
	for n = range most {
		s := Swap{
			Kind: Replacing, Domain: domain, New: make([]byte, bytes), FromNs: c.now,
			UntilNs: math.MaxInt64, ExpireNs: c.now + int64(time.Second),
		}
		c.n++
		s.Key[0] = byte(c.n)
		binary.LittleEndian.PutUint32(s.Key[1:], c.n)
		if r := swapOne(c.Memory, s); r.Status != Swapped {
			require.ErrorIs(c.t, r.Err, ErrFull)
			return n
		}
	}
	return most
}

// TestMemoryIsBounded: bytes are, however few values they are, and what one domain takes
// leaves the others room. Nothing is left of what has expired.
func TestMemoryIsBounded(t *testing.T) {
	const most = 16 << 20
	for _, bytes := range []int{8, 100, 100_000} {
		t.Run(fmt.Sprint(bytes, " bytes each"), func(t *testing.T) {
			c := cram(t, most)
			c.fill("flood", most, bytes)
			one := c.bytesOf["flood"]
			require.InDelta(t, most*3/4, one, most/100, "alone")
			c.fill("another", most, bytes)
			require.InDelta(t, (most-one)*3/4, c.bytesOf["another"], most/100, "of what the first one has left")
			require.Less(t, c.bytes, most)
			require.Equal(t, 1, c.fill("third", 1, bytes))
			_, err := c.Live(t.Context(), "idle", 1)
			require.NoError(t, err)

			c.now += 2 * sweepAllNs
			_, _, err = c.Tend(t.Context())
			require.NoError(t, err)
			require.Zero(t, c.bytes)
			require.Empty(t, c.bytesOf)
			require.Empty(t, c.live)
			for i := range c.values {
				require.Empty(t, c.values[i].values)
				require.Less(t, c.values[i].most, 4, "the map's memory is free")
			}
			require.Equal(t, 1, c.fill("flood", 1, bytes))
		})
	}
}

// TestMemoryCountsWhatItTakes: what values count is what they take of the heap, and it is
// free when they have expired.
func TestMemoryCountsWhatItTakes(t *testing.T) {
	for _, bytes := range []int{40, 80, 500} {
		c := cram(t, 1<<30)
		before := proctest.Heap()
		c.fill("d", 300_000, bytes)
		took := proctest.Heap() - before
		require.InEpsilon(t, c.bytes, took, 0.25, "%d bytes each", bytes)
		c.now += 2 * sweepAllNs
		c.sweepDue()
		require.Less(t, proctest.Heap()-before, took/20)
	}
}
