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

// An edition is a revision as it goes over the wire, with one stamp in it. All
// proxies of one kind share it, and all editions of a revision share the text of
// its policy: up to one MiB, which a fleet of a thousand, or a thousand streams
// of an attacker, would otherwise take a thousand times.
//
// What Envoy must never get is the bytes it got before. So a proxy's second
// push of a revision is of the second edition, and so on; and whenever the
// ledger forgets a proxy, and with it what that one has had, a new era of
// editions begins.
type edition struct {
	version  string
	resource [3][]byte // a discoveryv3.Resource, marshaled; the middle is the policy's text
}

// editionID is what an edition's bytes depend on.
type editionID struct {
	number             uint64
	wasm, vmID, engine string // of the node
	stamp              string
}

func (n node) edition(number uint64, stamp string) editionID {
	return editionID{number, n.wasm, n.vmID, n.runtime, stamp}
}

const (
	// maxEditions bounds the editions that are kept; a fleet with more kinds of
	// nodes than that takes longer.
	maxEditions = 16
	// maxTexts bounds the policies that are kept: the newest revision, and what
	// some proxies fall back on.
	maxTexts = 4
)

// cache keeps what was made last. Its lock is held while something is made: when
// a fleet asks, it asks for the same.
type cache[K comparable, V any] struct {
	mu   sync.Mutex
	most int
	kept map[K]V
}

func newCache[K comparable, V any](most int) *cache[K, V] {
	return &cache[K, V]{most: most, kept: map[K]V{}}
}

// get returns a value, built if it is not there.
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
	for old := range c.kept {
		if len(c.kept) < c.most {
			break
		}
		delete(c.kept, old)
	}
	c.kept[key] = built
	return built, nil
}

// edition returns the revision as the node gets it, with that stamp.
func (s *Server) edition(ctx context.Context, n node, number uint64, stamp string) (edition, error) {
	return s.editions.get(n.edition(number, stamp), func() (edition, error) {
		r, err := s.revision(ctx, number)
		if err != nil {
			return edition{}, err
		}
		return newEdition(s.plugin(r, n), r, stamp)
	})
}

// versionNow is the version that an edition of the revision would have for the
// node, without a stamp.
func (s *Server) versionNow(ctx context.Context, n node, number uint64) (string, error) {
	r, err := s.revision(ctx, number)
	if err != nil {
		return "", err
	}
	return version(r, "", s.plugin(r, n)), nil
}

// response is a DeltaDiscoveryResponse in parts: what is this push's alone, and
// the edition.
type response struct {
	own      []byte
	resource [3][]byte
}

func newResponse(e edition, nonce string) (response, error) {
	own, err := proto.Marshal(&discoveryv3.DeltaDiscoveryResponse{
		SystemVersionInfo: e.version, TypeUrl: TypeURL, Nonce: nonce,
	})
	if err != nil {
		return response{}, fmt.Errorf("marshal response: %w", err)
	}
	const resources = 2 // the field's number
	size := 0
	for _, part := range e.resource {
		size += len(part)
	}
	own = protowire.AppendTag(own, resources, protowire.BytesType)
	own = protowire.AppendVarint(own, uint64(size))
	return response{own, e.resource}, nil
}

// codec writes a response without copying the edition, reads a request without
// what is not needed, and leaves all else to the usual one.
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
