package xds

import (
	"bytes"
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
// proxies of one kind share it: a fleet of a thousand would otherwise take a
// thousand times a policy of up to one MiB, in memory and in time. The editions
// of one revision share the text of its policy, so that proxies of a thousand
// kinds do not take that either.
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
	// maxTexts bounds the policies that are kept.
	maxTexts = 4
)

// editions keeps those in use.
type editions struct {
	mu   sync.Mutex
	kept map[editionID]edition

	building sync.Mutex // held while one is made: when a fleet asks, it asks for the same one
	texts    map[uint64][]byte
}

func newEditions() *editions {
	return &editions{kept: map[editionID]edition{}, texts: map[uint64][]byte{}}
}

func (e *editions) find(id editionID) (edition, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	kept, ok := e.kept[id]
	return kept, ok
}

// get returns an edition, built if it is not there.
func (e *editions) get(id editionID, build func() (edition, error)) (edition, error) {
	if kept, ok := e.find(id); ok {
		return kept, nil
	}
	e.building.Lock()
	defer e.building.Unlock()
	if kept, ok := e.find(id); ok {
		return kept, nil
	}
	built, err := build()
	if err != nil {
		return edition{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for old := range e.kept {
		if len(e.kept) < maxEditions {
			break
		}
		delete(e.kept, old)
	}
	e.kept[id] = built
	return built, nil
}

// share cuts the policy's text out of a marshaled resource, for the one that all
// editions of the revision share. The caller holds building.
func (e *editions) share(number uint64, resource, text []byte) [3][]byte {
	text = text[1:] // behind the stamp, which goes behind the brace
	at := bytes.LastIndex(resource, text)
	if at < 0 {
		return [3][]byte{resource}
	}
	if shared := e.texts[number]; !bytes.Equal(shared, text) {
		if len(e.texts) >= maxTexts {
			clear(e.texts)
		}
		e.texts[number] = bytes.Clone(text)
	}
	return [3][]byte{bytes.Clone(resource[:at]), e.texts[number], bytes.Clone(resource[at+len(text):])}
}

// edition returns the revision as the node gets it, with that stamp.
func (s *Server) edition(ctx context.Context, n node, number uint64, stamp string) (edition, error) {
	return s.editions.get(n.edition(number, stamp), func() (edition, error) {
		r, err := s.store.Get(ctx, number)
		if err != nil {
			return edition{}, err
		}
		built, err := resource(s.plugin(r, n), number, stamp)
		if err != nil {
			return edition{}, err
		}
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(built)
		if err != nil {
			return edition{}, fmt.Errorf("marshal resource: %w", err)
		}
		return edition{built.GetVersion(), s.editions.share(number, text, bytes.TrimSpace(r.JSON))}, nil
	})
}

// versionNow is the version that an edition of the revision would have for the
// node, without a stamp.
func (s *Server) versionNow(ctx context.Context, n node, number uint64) (string, error) {
	e, err := s.editions.get(n.edition(number, ""), func() (edition, error) {
		r, err := s.store.Get(ctx, number)
		if err != nil {
			return edition{}, err
		}
		return edition{version: version(number, "", s.plugin(r, n))}, nil
	})
	return e.version, err
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
	own = protowire.AppendVarint(own, uint64(size)) //nolint:gosec // a length
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
