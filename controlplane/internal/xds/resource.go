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
	"strconv"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/envoy"
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
	wasm, vmID, runtime string
	vmCapabilities      bool // see envoy.TakesVMCapabilities
}

// config is the filter with the server's marker for a policy.
func (s *Server) config(p envoy.Plugin, r revision) (*anypb.Any, error) {
	return s.configs.get(kind{r.number, p.Wasm, p.VMID, p.Runtime, envoy.TakesVMCapabilities(p.Envoy)}, func() (*anypb.Any, error) {
		p.Policy, p.Capabilities = []byte(s.marker), r.capabilities
		config, err := p.ExtensionConfig()
		if err != nil {
			return nil, err
		}
		packed := new(anypb.Any)
		return packed, anypb.MarshalFrom(packed, config, proto.MarshalOptions{Deterministic: true})
	})
}

// newPayload is the revision as a node gets it.
func (s *Server) newPayload(p envoy.Plugin, r revision, tag string) (payload, error) {
	config, err := s.config(p, r)
	if err != nil {
		return payload{}, err
	}
	version := version(r, tag, p)
	short, err := proto.Marshal(&discoveryv3.Resource{Name: p.Name, Version: version, Resource: config})
	if err != nil {
		return payload{}, fmt.Errorf("marshal resource: %w", err)
	}
	before, after, err := insert(short, []byte(s.marker), r.head(tag), len(r.policy))
	if err != nil {
		return payload{}, fmt.Errorf("marshal resource: %w", err)
	}
	return payload{version, [3][]byte{before, r.policy, after}}, nil
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

// insert puts a head, and room for more bytes behind it, in place of a marker that is
// nested in a message. It returns what goes before and behind them, with the lengths of
// all enclosing messages as they are then.
func insert(message, marker, head []byte, more int) (before, after []byte, err error) {
	if bytes.Equal(message, marker) {
		return head, nil, nil
	}
	rest := message
	for len(rest) > 0 {
		number, kind, n := protowire.ConsumeTag(rest)
		size := protowire.ConsumeFieldValue(number, kind, rest[max(n, 0):])
		if n < 0 || size < 0 {
			break
		}
		if value := rest[n : n+size]; kind == protowire.BytesType && bytes.Contains(value, marker) {
			inner, _ := protowire.ConsumeBytes(value)
			left, right, err := insert(inner, marker, head, more)
			if err != nil {
				return nil, nil, err
			}
			before = bytes.Clone(message[:len(message)-len(rest)+n])
			before = protowire.AppendVarint(before, uint64(len(left)+more+len(right)))
			return append(before, left...), append(right, rest[n+size:]...), nil
		}
		rest = rest[n+size:]
	}
	return nil, nil, errors.New("the policy is not in the resource")
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
