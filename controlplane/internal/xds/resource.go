package xds

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	wasmfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that writes everything else
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/envoy"
)

// TypeURL is the type of the resources served.
const TypeURL = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"

// pushable is the part of a stored revision that proxies get.
type pushable struct {
	number uint64
	wasm   string
	policy []byte // JSON, without its opening brace
	digest [sha256.Size]byte
	secret string // goes with the policy
	seal   []byte // of versions

	capabilities []string // that the policy needs
}

// maxRevisions bounds the revisions that are kept: the newest, and those that proxies fall
// back on.
const maxRevisions = 4

// pushableCache keeps those that were read last. Its lock is held while a revision is read: a fleet asks
// for the same one at once.
type pushableCache struct {
	mu   sync.Mutex
	kept map[uint64]pushable
}

// readPushable returns a revision of the store as proxies get it.
func (s *Server) readPushable(ctx context.Context, number uint64) (pushable, error) {
	s.pushables.mu.Lock()
	defer s.pushables.mu.Unlock()
	if kept, ok := s.pushables.kept[number]; ok {
		return kept, nil
	}
	stored, err := s.Store.Get(ctx, number)
	if err != nil {
		return pushable{}, err
	}
	made, err := s.newPushable(stored)
	if err != nil {
		return pushable{}, err
	}
	if len(s.pushables.kept) == maxRevisions {
		clear(s.pushables.kept)
	}
	s.pushables.kept[number] = made
	return made, nil
}

func (s *Server) newPushable(r store.Revision) (made pushable, err error) {
	policy, ok := bytes.CutPrefix(bytes.TrimSpace(r.JSON), []byte("{"))
	if !ok {
		return made, errors.New("tag policy: not a JSON object")
	}
	made = pushable{
		number: r.Number, wasm: r.Wasm, policy: policy, digest: sha256.Sum256(r.JSON), seal: s.seal,
		capabilities: envoy.Capabilities(r.JSON),
	}
	// A filter that is older knows neither report_keys nor report_secret, and refuses a policy with either.
	if bytes.Contains(r.JSON, []byte(`"report_keys":`)) {
		made.secret = s.secret
	}
	return made, nil
}

func keyed(secret []byte, text string) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// plugin is the filter as a node runs it, without a policy. The revision's path of
// the binary counts before the node's, and that before the server's.
func (s *Server) plugin(r pushable, n *node) envoy.Plugin {
	return envoy.Plugin{
		Name: envoy.ResourceName, VMID: n.vmID, Runtime: n.runtime,
		Wasm: cmp.Or(r.wasm, n.wasm, s.Wasm), Envoy: n.Version,
	}
}

// response is a discoveryv3.DeltaDiscoveryResponse with a revision, marshaled.
type response struct {
	version string
	message message
}

// message is a marshaled message with a policy at its end. All messages with a revision share
// the text of its policy, up to one MiB, which a fleet of a thousand would otherwise take a
// thousand times.
type message struct{ own, policy []byte }

// in puts a message into the last field of another one, which is marshaled without it.
func (m message) in(outer proto.Message, field protoreflect.Name) (message, error) {
	own, err := proto.MarshalOptions{Deterministic: true}.Marshal(outer)
	if err != nil {
		return m, fmt.Errorf("marshal push: %w", err)
	}
	number := outer.ProtoReflect().Descriptor().Fields().ByName(field).Number()
	own = protowire.AppendTag(own, number, protowire.BytesType)
	own = protowire.AppendVarint(own, uint64(len(m.own)+len(m.policy)))
	return message{append(own, m.own...), m.policy}, nil
}

// newResponse is the push of a revision to a node, with a nonce that is also its tag.
func newResponse(p envoy.Plugin, r pushable, nonce string) (response, error) {
	p.Capabilities = r.capabilities
	filter, err := p.Filter()
	if err != nil {
		return response{}, err
	}
	config, version := filter.GetConfig(), versionOf(r, nonce, p)
	policy := config.GetConfiguration() // its type, without a value
	policy.Value, config.Configuration = nil, nil
	m := message{r.head(nonce), r.policy}
	for _, outer := range []struct {
		message proto.Message
		field   protoreflect.Name
	}{
		{&wrapperspb.StringValue{}, "value"},
		{policy, "value"},
		{config, "configuration"},
		{&wasmfilterv3.Wasm{}, "config"},
		{&anypb.Any{TypeUrl: envoy.FilterTypeURL}, "value"},
		{&corev3.TypedExtensionConfig{Name: p.Name}, "typed_config"},
		{&anypb.Any{TypeUrl: TypeURL}, "value"},
		{&discoveryv3.Resource{Name: p.Name, Version: version}, "resource"},
		{&discoveryv3.DeltaDiscoveryResponse{SystemVersionInfo: version, TypeUrl: TypeURL, Nonce: nonce}, "resources"},
	} {
		m, err = m.in(outer.message, outer.field)
		if err != nil {
			return response{}, err
		}
	}
	return response{version, m}, nil
}

// head is the begin of a JSON object, with the fields that only the control plane
// sets; the policy follows.
func (r pushable) head(tag string) []byte {
	head := `{"revision":` + strconv.Quote(strconv.FormatUint(r.number, 10)+"-"+tag)
	if r.secret != "" {
		head += `,"report_secret":` + strconv.Quote(r.secret)
	}
	if !bytes.HasPrefix(bytes.TrimSpace(r.policy), []byte("}")) {
		head += ","
	}
	return []byte(head)
}

// versionOf is what Envoy reports when it connects again: "12-<tag>-<seal>-<digest>". The
// digest shows whether this server would still push the same, even if another
// data directory numbers revisions anew. The seal shows whether a server with this store,
// or a copy of it, has pushed that at all.
func versionOf(r pushable, tag string, p envoy.Plugin) string {
	number, digest := strconv.FormatUint(r.number, 10), digest(r, p)
	return number + "-" + tag + "-" + sealOf(r.seal, number, tag, digest) + "-" + digest
}

func sealOf(key []byte, number, tag, digest string) string {
	return hex.EncodeToString(keyed(key, number+"-"+tag+"-"+digest)[:8])
}

// held reads a version that Envoy reports: the revision's number, 0 if it is none of ours,
// its digest, and whether this store gave it, or one that was copied from it or to it.
func (s *Server) held(version string) (number uint64, digest string, own bool) {
	parts := strings.Split(version, "-")
	number, err := strconv.ParseUint(parts[0], 10, 64)
	if err != nil {
		return 0, "", false
	}
	own = len(parts) == 4 && hmac.Equal([]byte(parts[2]), []byte(sealOf(s.seal, parts[0], parts[1], parts[3])))
	return number, parts[len(parts)-1], own
}

func digest(r pushable, p envoy.Plugin) string {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(p.Wasm), []byte(p.VMID), []byte(p.Runtime), r.digest[:], []byte(r.secret)} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// codec writes a response without copying its policy, and reads a request without the fields
// that are not needed. The rest it leaves to gRPC's codec.
type codec struct{ encoding.CodecV2 }

// NewCodec returns the codec of the discovery services.
func NewCodec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(response)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	return mem.BufferSlice{mem.SliceBuffer(r.message.own), mem.SliceBuffer(r.message.policy)}, nil
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
