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

// A payload is a revision as it goes over the wire, with one tag in it. All
// proxies of one kind share it, and all payloads of a revision share the text of
// its policy: up to one MiB, which a fleet of a thousand, or a thousand streams
// of an attacker, would otherwise take a thousand times.
//
// What Envoy must never get is the bytes it got before. So a proxy's second
// push of a revision is of the second payload, and so on; and whenever the
// ledger forgets a proxy, and with it what that one has had, a new era of
// payloads begins.
type payload struct {
	version  string
	resource [3][]byte // a discoveryv3.Resource, marshaled; the middle is the policy's text
}

// payloadID is what a payload's bytes depend on.
type payloadID struct {
	number             uint64
	wasm, vmID, engine string // of the node
	tag                string
}

func (n node) payload(number uint64, tag string) payloadID {
	return payloadID{number, n.wasm, n.vmID, n.runtime, tag}
}

const (
	// maxPayloads bounds the payloads that are kept; a fleet with more kinds of
	// nodes than that takes longer.
	maxPayloads = 16
	// maxTexts bounds the policies that are kept: the newest revision, and what
	// some proxies fall back on.
	maxTexts = 4
)

// cache keeps what was made last. Its lock is held while something is made: when
// a fleet asks, it asks for the same.
type cache[K comparable, V any] struct {
	mu      sync.Mutex
	maxKept int
	kept    map[K]V
}

func newCache[K comparable, V any](maxKept int) *cache[K, V] {
	return &cache[K, V]{maxKept: maxKept, kept: map[K]V{}}
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
		if len(c.kept) < c.maxKept {
			break
		}
		delete(c.kept, old)
	}
	c.kept[key] = built
	return built, nil
}

// payload returns the revision as the node gets it, with that tag.
func (s *Server) payload(ctx context.Context, n node, number uint64, tag string) (payload, error) {
	return s.payloads.get(n.payload(number, tag), func() (payload, error) {
		r, err := s.revision(ctx, number)
		if err != nil {
			return payload{}, err
		}
		return newPayload(s.plugin(r, n), r, tag)
	})
}

// versionNow is the version that a payload of the revision would have for the
// node, without a tag.
func (s *Server) versionNow(ctx context.Context, n node, number uint64) (string, error) {
	r, err := s.revision(ctx, number)
	if err != nil {
		return "", err
	}
	return version(r, "", s.plugin(r, n)), nil
}

// response is a DeltaDiscoveryResponse in parts: what is this push's alone, and
// the payload.
type response struct {
	own      []byte
	resource [3][]byte
}

func newResponse(e payload, nonce string) (response, error) {
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

// codec writes a response without copying the payload, reads a request without
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
