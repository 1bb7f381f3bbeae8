package quota

import (
	"context"
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func swapOne(m *Memory, s Swap) (got Result) {
	m.Swap(context.Background(), []Swap{s}, func(_ int, r Result) { got = r })
	return got
}

func TestMemoryTime(t *testing.T) {
	now := int64(1000)
	m := NewMemory(func() int64 { return now })
	write := Swap{New: []byte("nonce..1"), AtNs: 1000, SlackNs: 10, UntilNs: 1005, ExpireNs: 2000}
	for at, want := range map[int64]Outcome{989: Late, 990: Swapped, 1004: Swapped, 1005: Late, 1011: Late} {
		m.values[0] = map[[16]byte]kept{}
		now = at
		require.Equal(t, want, swapOne(m, write).Outcome, "at %d", at)
	}
	m.values[0][[16]byte{}] = kept{[]byte("nonce..1"), 2000}
	now = 1999
	require.Equal(t, Result{Outcome: Differs, Value: []byte("nonce..1"), NowNs: 1999}, swapOne(m, Swap{}))
	now = 2000
	require.Equal(t, Result{Outcome: Differs, NowNs: 2000}, swapOne(m, Swap{}), "it has expired")
}

// TestMemoryIsBounded: a full store takes no new key until old ones expire.
func TestMemoryIsBounded(t *testing.T) {
	now := int64(0)
	m := NewMemory(func() int64 { return now })
	m.maxValues = 1000
	put := func(i int) Outcome {
		s := Swap{New: make([]byte, 8), AtNs: now, SlackNs: 1, UntilNs: math.MaxInt64, ExpireNs: now + second}
		s.Key[0] = byte(i)
		binary.LittleEndian.PutUint32(s.Key[1:], uint32(i))
		return swapOne(m, s).Outcome
	}
	for i := range 1000 {
		require.Equal(t, Swapped, put(i))
	}
	require.Equal(t, Failed, put(1000))
	for range shards {
		now += linger/shards + 1
		put(1000)
	}
	require.Equal(t, Swapped, put(1001))
	require.Less(t, m.n, 300)
	held := 0
	for _, shard := range m.values {
		held += len(shard)
	}
	require.Equal(t, held, m.n)
}
