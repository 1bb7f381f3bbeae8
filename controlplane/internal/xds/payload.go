package xds

import (
	"context"
	"fmt"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that writes everything else
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// A payload is a revision as bytes for one push, with a tag in it. All payloads of a
// revision share the text of its policy: up to one MiB, which a fleet of a thousand, or
// a thousand streams of an attacker, would otherwise take a thousand times.
type payload struct {
	version  string
	resource [3][]byte // a discoveryv3.Resource, marshaled; the middle is the policy's text
}

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

// payload returns the revision as the node gets it, with that tag.
func (s *Server) payload(ctx context.Context, n *node, number uint64, tag string) (payload, error) {
	r, err := s.revision(ctx, number)
	if err != nil {
		return payload{}, err
	}
	return s.newPayload(s.plugin(r, n), r, tag)
}

// response is a DeltaDiscoveryResponse in two parts: the push's own, and the
// payload.
type response struct {
	own      []byte
	resource [3][]byte
}

func newResponse(p payload, nonce string) (response, error) {
	own, err := proto.Marshal(&discoveryv3.DeltaDiscoveryResponse{
		SystemVersionInfo: p.version, TypeUrl: TypeURL, Nonce: nonce,
	})
	if err != nil {
		return response{}, fmt.Errorf("marshal response: %w", err)
	}
	const resources = 2 // the field's number
	size := 0
	for _, part := range p.resource {
		size += len(part)
	}
	own = protowire.AppendTag(own, resources, protowire.BytesType)
	own = protowire.AppendVarint(own, uint64(size))
	return response{own, p.resource}, nil
}

// codec writes a response without copying the payload and reads a request
// without the fields that are not needed. The rest it leaves to gRPC's codec.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(response)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	parts := mem.BufferSlice{mem.SliceBuffer(r.own)}
	for _, part := range r.resource {
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
