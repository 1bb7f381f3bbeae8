package xds

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/shared/wire"
)

// TypeURL is the type of the resources served.
const TypeURL = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"

// revision is the part of a stored revision that proxies get.
type revision struct {
	number uint64
	wasm   string
	policy []byte // JSON, without its opening brace
	digest [sha256.Size]byte
	secret string // goes with the policy
	seal   []byte // of versions

	capabilities []string // that the policy needs
}

func (s *Server) newRevision(r store.Revision) (made revision, err error) {
	policy, ok := bytes.CutPrefix(bytes.TrimSpace(r.JSON), []byte("{"))
	if !ok {
		return made, errors.New("tag policy: not a JSON object")
	}
	made = revision{
		number: r.Number, wasm: r.Wasm, policy: policy, digest: sha256.Sum256(r.JSON), seal: s.seal,
		capabilities: envoy.Capabilities(r.JSON),
	}
	if bytes.Contains(r.JSON, []byte(`"report_keys":`)) { // a filter that is older refuses both
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
func (s *Server) plugin(r revision, n *node) envoy.Plugin {
	return envoy.Plugin{Name: envoy.ResourceName, VMID: n.vmID, Runtime: n.runtime, Wasm: cmp.Or(r.wasm, n.wasm, s.Wasm), Envoy: n.Version}
}

// kind is what of a node and a revision its configuration depends on.
type kind struct {
	number              uint64
	size                int // of the policy as it is pushed
	wasm, vmID, runtime string
	vmCapabilities      bool // see envoy.TakesVMCapabilities
}

// config is the filter as a google.protobuf.Any, without its policy.
type config struct{ before, after []byte }

func (s *Server) config(p envoy.Plugin, r revision, size int) (config, error) {
	return s.configs.get(kind{r.number, size, p.Wasm, p.VMID, p.Runtime, envoy.TakesVMCapabilities(p.Envoy)}, func() (c config, err error) {
		p.Policy, p.Capabilities = []byte(s.marker), r.capabilities
		filter, err := p.ExtensionConfig()
		if err != nil {
			return c, err
		}
		packed, err := anypb.New(filter)
		if err != nil {
			return c, err
		}
		text, err := proto.Marshal(packed)
		if err != nil {
			return c, err
		}
		if c.before, c.after = around(text, p.Policy, size); c.before == nil {
			err = errors.New("marshal push: the policy has no place in the resource")
		}
		return c, err
	})
}

// around returns what goes before and behind a marker that is nested in a message, with the
// lengths of all enclosing messages as they are with that many bytes in its place.
func around(message, marker []byte, size int) (before, after []byte) {
	for rest := message; len(rest) > 0 && !bytes.Equal(message, marker); {
		start := message[:len(message)-len(rest)]
		f, err := wire.Cut(&rest)
		if err != nil {
			break
		}
		if bytes.Contains(f.Bytes, marker) {
			left, right := around(f.Bytes, marker, size)
			before = protowire.AppendTag(bytes.Clone(start), protowire.Number(f.ID), protowire.BytesType)
			before = protowire.AppendVarint(before, uint64(len(left)+size+len(right)))
			return append(before, left...), append(right, rest...)
		}
	}
	return nil, nil
}

// response is a discoveryv3.DeltaDiscoveryResponse with a revision, marshaled. All of a
// revision share the text of its policy, the part in the middle: up to one MiB, which a fleet
// of a thousand, or a thousand streams of an attacker, would otherwise take a thousand times.
type response struct {
	version string
	parts   [3][]byte
}

// newResponse is the push of a revision to a node, with a nonce that is also its tag.
func (s *Server) newResponse(p envoy.Plugin, r revision, nonce string) (made response, err error) {
	head, version := r.head(nonce), version(r, nonce, p)
	c, err := s.config(p, r, len(head)+len(r.policy))
	if err != nil {
		return made, err
	}
	outer, err := proto.Marshal(&discoveryv3.DeltaDiscoveryResponse{SystemVersionInfo: version, TypeUrl: TypeURL, Nonce: nonce})
	if err != nil {
		return made, fmt.Errorf("marshal response: %w", err)
	}
	inner, err := proto.Marshal(&discoveryv3.Resource{Name: p.Name, Version: version})
	if err != nil {
		return made, fmt.Errorf("marshal resource: %w", err)
	}
	const field = 2 // of the resource in the response, and of the filter in the resource
	size := len(c.before) + len(head) + len(r.policy) + len(c.after)
	inner = protowire.AppendVarint(protowire.AppendTag(inner, field, protowire.BytesType), uint64(size))
	outer = protowire.AppendVarint(protowire.AppendTag(outer, field, protowire.BytesType), uint64(len(inner)+size))
	return response{version, [3][]byte{slices.Concat(outer, inner, c.before, head), r.policy, c.after}}, nil
}

// head is the begin of a JSON object, with the fields that only the control plane
// sets; the policy follows.
func (r revision) head(tag string) []byte {
	head := `{"revision":` + strconv.Quote(strconv.FormatUint(r.number, 10)+"-"+tag)
	if r.secret != "" {
		head += `,"report_secret":` + strconv.Quote(r.secret)
	}
	if !bytes.HasPrefix(bytes.TrimSpace(r.policy), []byte("}")) {
		head += ","
	}
	return []byte(head)
}

// version is what Envoy reports when it connects again: "12-<tag>-<seal>-<digest>". The
// digest shows whether this server would still push the same, even if another
// data directory numbers revisions anew. The seal shows whether a server with this store,
// or a copy of it, has pushed that at all.
func version(r revision, tag string, p envoy.Plugin) string {
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

func digest(r revision, p envoy.Plugin) string {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(p.Wasm), []byte(p.VMID), []byte(p.Runtime), r.digest[:], []byte(r.secret)} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
