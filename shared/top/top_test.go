package top_test

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/top"
)

func add(s *top.Sketch, id uint64) {
	if fresh := s.Add(id); fresh != nil {
		fresh.SetText(strconv.AppendUint(nil, id, 10))
	}
}

// holds demands that the list is true of what was counted.
func holds(t *testing.T, l top.List, counted map[uint64]uint32) {
	t.Helper()
	listed := map[uint64]bool{}
	for i := range l.Keys {
		k := &l.Keys[i]
		require.False(t, listed[k.ID], "listed twice")
		listed[k.ID] = true
		require.LessOrEqual(t, k.Denied, counted[k.ID])
		require.GreaterOrEqual(t, k.Most(), counted[k.ID])
		require.Equal(t, strconv.FormatUint(k.ID, 10), string(k.Text()))
	}
	for id, n := range counted {
		require.True(t, listed[id] || n <= l.Rest, "%d was denied %d times, and the rest at most %d", id, n, l.Rest)
	}
}

func TestListsAreTrue(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		all, sketches := map[uint64]uint32{}, make([]top.Sketch, 1+random.IntN(5))
		lists := make([]top.List, len(sketches))
		zipf := rand.NewZipf(random, 1.01+random.Float64(), 1, 1+random.Uint64N(300))
		for i := range sketches {
			own := map[uint64]uint32{}
			for range random.IntN(3000) {
				id := zipf.Uint64()
				add(&sketches[i], id)
				own[id]++
				all[id]++
			}
			lists[i] = sketches[i].List()
			holds(t, lists[i], own)
			holds(t, top.Merge(lists[i]).Cut(random.IntN(top.MaxKeys)), own)
		}
		merged := top.Merge(lists...)
		require.LessOrEqual(t, len(merged.Keys), top.MaxKeys)
		holds(t, merged, all)
		holds(t, top.Merge(merged, top.List{}), all)
	}
}

// A key that has more than its share of the denials is listed, whatever else comes.
func TestHeavyKeysAreListed(t *testing.T) {
	var s top.Sketch
	for i := range uint64(100_000) {
		add(&s, 1000+i)
		if i%20 == 0 {
			add(&s, 7)
		}
	}
	heaviest := top.Merge(s.List()).Keys[0]
	require.EqualValues(t, 7, heaviest.ID)
	require.LessOrEqual(t, heaviest.Error, uint32(105_000/top.MaxKeys))
}

func TestFewKeysAreCountedExactly(t *testing.T) {
	var s top.Sketch
	for i := range top.MaxKeys {
		for range i + 1 {
			add(&s, uint64(i))
		}
	}
	l := top.Merge(s.List())
	require.Len(t, l.Keys, top.MaxKeys)
	for i, k := range l.Keys {
		require.Equal(t, []uint32{uint32(top.MaxKeys - i), 0}, []uint32{k.Denied, k.Error})
	}
	require.EqualValues(t, 1, l.Rest)
}

func TestKey(t *testing.T) {
	require.EqualValues(t, 64, unsafe.Sizeof(top.Key{}), "two sketches of a rule take 128 bytes a key")
	long := make([]byte, 100)
	var k top.Key
	k.SetText(long)
	require.Equal(t, long[:top.MaxText], k.Text())
	k.Denied, k.Error = 1<<31, 1<<31
	require.Equal(t, uint32(1<<32-1), k.Most())
}
