package keyed

import (
	"reflect"
	"runtime"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

const (
	// perShard is the smallest capacity of a shard if there are several. With fewer
	// keys, the fixed memory of each shard would outweigh that of its keys.
	perShard = 2048
	// maxShardBits bounds the shards to 64.
	maxShardBits = 6
	// tableBytes bounds the memory of a shard's table besides its pages: directory,
	// seed and their maps.
	tableBytes = 3 << 10
)

// shardBits returns the base-2 logarithm of the number of shards: eight for each
// processor, as long as each has enough keys. Keys are spread evenly over shards and
// over the pages in them, so more shards make no page fuller. A capacity of a few
// keys is exact only in one shard.
func shardBits(capacity uint32) uint {
	bits := uint(0)
	for bits < maxShardBits && 1<<bits < 8*runtime.GOMAXPROCS(0) && capacity>>(bits+1) >= perShard {
		bits++
	}
	return bits
}

// MaxBytes returns an upper bound of the limiter's memory in bytes, whatever keys
// come. The limiter uses about that much once all its pages have been used, and much
// less before.
func (l *Limiter) MaxBytes() int64 { return l.maxBytes }

// bytes returns the memory of the store's existing pages.
func (s *store) bytes() uint64 { return s.made * s.chunkSize }

// allocated returns the bytes that the allocator takes for a request of bytes.
func allocated(bytes int) int { return cap(slices.Grow([]byte(nil), bytes)) }

// allocatedSlice is allocated for a slice of n values that hold pointers. The
// allocator may put a word before them.
func allocatedSlice[T any](n int) int64 {
	return int64(allocated(n*int(reflect.TypeFor[T]().Size()) + 8))
}

// maxBytes bounds the memory that a shard refers to when all its pages exist. It
// includes three more pages, as patterns and scratch, and room to decode the log of
// the entry's key and of another key.
func (s *shard) maxBytes(windows []limit.Window) int64 {
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
