package keyed

import (
	"reflect"
	"runtime"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

const (
	// perShard is how many keys a shard is for at least: with fewer, what every
	// shard needs for itself would outweigh them.
	perShard = 2048
	// maxShardBits bounds the shards to 64.
	maxShardBits = 6
	// tableBytes is what a shard's table takes beside its pages, at most:
	// directory, seed and the maps that hold them.
	tableBytes = 3 << 10
)

// shardBits is the logarithm of how many shards there are: eight for each
// processor, as long as each has enough keys. Keys go to shards and to the
// buckets in them by the same even chance, so that more shards make no bucket
// fuller; but a capacity of a few keys is exact only in one.
func shardBits(capacity uint32) uint {
	bits := uint(0)
	for bits < maxShardBits && 1<<bits < 8*runtime.GOMAXPROCS(0) && capacity>>(bits+1) >= perShard {
		bits++
	}
	return bits
}

// MaxBytes is the most memory the limiter takes, in bytes, whatever keys come.
// It takes that much once every part of its tables has been used, and a small
// part of it before.
func (l *Limiter) MaxBytes() int64 { return l.maxBytes }

// bytes is what the store's pages take now.
func (s *store) bytes() uint64 { return s.made * s.chunkSize }

// allocated is what the allocator takes for so many bytes.
func allocated(bytes int) int { return cap(slices.Grow([]byte(nil), bytes)) }

// allocatedSlice is the same for a slice of n values that hold pointers, before
// which the allocator may put a word.
func allocatedSlice[T any](n int) int64 {
	return int64(allocated(n*int(reflect.TypeFor[T]().Size()) + 8))
}

// mostBytes is what a shard refers to with all its pages. Three empty ones serve
// as patterns and scratch; whoever decodes a log needs room for it in the
// shard's entry, and for another key's.
func (s *shard) mostBytes(windows []limit.Window) int64 {
	size := tableBytes + allocatedSlice[[]byte](len(s.store.chunks))
	size += int64(len(s.store.chunks)) * int64(s.store.chunkSize)
	size += 3*int64(allocated(len(s.store.empty))) + 8*int64(len(windows))*int64(reflect.TypeFor[limit.Window]().Size())
	for _, w := range windows {
		if w.Algorithm == limit.SlidingWindowLog {
			size += 3 * limit.MaxLog * 8
		}
	}
	return size
}
