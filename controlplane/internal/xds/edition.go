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
// proxies of one kind share it: a fleet of a thousand would otherwise take a
// thousand times a policy of up to one MiB, in memory and in time.
//
// What Envoy must never get is the bytes it got before. So a proxy's second
// push of a revision is of the second edition, and so on; and whenever the
// ledger forgets a proxy, and with it what that one has had, a new era of
// editions begins.
type edition struct {
	version  string
	resource []byte // a discoveryv3.Resource, marshaled
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

// maxEditions bounds the editions that are kept; a fleet with more kinds of
// nodes than that takes longer.
const maxEditions = 16

// editions keeps those in use. Its lock is held while one is made: when a fleet
// asks, it asks for the same one.
type editions struct {
	mu   sync.Mutex
	kept map[editionID]edition
}

// get returns an edition, built if it is not there.
func (e *editions) get(id editionID, build func() (edition, error)) (edition, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if kept, ok := e.kept[id]; ok {
		return kept, nil
	}
	built, err := build()
	if err != nil {
		return edition{}, err
	}
	if len(e.kept) >= maxEditions {
		clear(e.kept)
	}
	e.kept[id] = built
	return built, nil
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
		return edition{built.GetVersion(), text}, nil
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

// response is a DeltaDiscoveryResponse in two parts: what is this push's alone,
// and the edition.
type response struct{ own, resource []byte }

func newResponse(e edition, nonce string) (response, error) {
	own, err := proto.Marshal(&discoveryv3.DeltaDiscoveryResponse{
		SystemVersionInfo: e.version, TypeUrl: TypeURL, Nonce: nonce,
	})
	if err != nil {
		return response{}, fmt.Errorf("marshal response: %w", err)
	}
	const resources = 2 // the field's number
	own = protowire.AppendTag(own, resources, protowire.BytesType)
	own = protowire.AppendVarint(own, uint64(len(e.resource)))
	return response{own, e.resource}, nil
}

// codec writes a response without copying the edition, and leaves all else to
// the usual one.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(response); ok {
		return mem.BufferSlice{mem.SliceBuffer(r.own), mem.SliceBuffer(r.resource)}, nil
	}
	return c.CodecV2.Marshal(v)
}
