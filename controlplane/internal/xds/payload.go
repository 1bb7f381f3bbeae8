package xds

import (
	"context"
	"sync"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that writes everything else
	"google.golang.org/grpc/mem"
)

const (
	// maxConfigs bounds the configurations that are kept. A fleet with more kinds of
	// nodes takes longer.
	maxConfigs = 16
	// maxTexts bounds the policies that are kept: the newest revision, and those
	// that proxies fall back on.
	maxTexts = 4
)

// cache keeps what was built last. Its lock is held while a value is built: a
// fleet asks for the same one at once.
type cache[K comparable, V any] struct {
	mu      sync.Mutex
	maxKept int
	kept    map[K]V
}

// get returns a value and builds it if it is not there.
func (c *cache[K, V]) get(key K, build func() (V, error)) (V, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kept, ok := c.kept[key]; ok {
		return kept, nil
	}
	built, err := build()
	if err != nil {
		return built, err
	}
	if len(c.kept) == c.maxKept || c.kept == nil {
		c.kept = map[K]V{}
	}
	c.kept[key] = built
	return built, nil
}

// revision returns a revision as the store has it.
func (s *Server) revision(ctx context.Context, number uint64) (revision, error) {
	return s.texts.get(number, func() (made revision, err error) {
		r, err := s.Store.Get(ctx, number)
		if err != nil {
			return made, err
		}
		return s.newRevision(r)
	})
}

// codec writes a response without copying the payload and reads a request
// without the fields that are not needed. The rest it leaves to gRPC's codec.
type codec struct{ encoding.CodecV2 }

// NewCodec returns the codec of the discovery services.
func NewCodec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(response)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	var parts mem.BufferSlice
	for _, part := range r.parts {
		if len(part) > 0 {
			parts = append(parts, mem.SliceBuffer(part))
		}
	}
	return parts, nil
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*request)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	text := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer text.Free()
	return r.unmarshal(text.ReadOnlyData())
}
