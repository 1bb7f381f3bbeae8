package xds

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/envoy"
)

// TypeURL is the type of the resources served.
const TypeURL = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"

// nonces makes nonces that differ from those of all other pushes, of this process
// or an earlier one.
type nonces struct {
	process uint32
	last    *atomic.Uint32
}

func newNonces() (nonces, error) {
	var b [4]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nonces{}, fmt.Errorf("make nonce: %w", err)
	}
	return nonces{process: binary.BigEndian.Uint32(b[:]), last: new(atomic.Uint32)}, nil
}

func (n nonces) next() string { return fmt.Sprintf("%08x%06x", n.process, n.last.Add(1)) }

// tag differs from all other tags of payloads of the revision.
func (n nonces) tag(era, times uint64) string {
	return fmt.Sprintf("%08x.%x.%x", n.process, era, times)
}

// revision is the part of a stored revision that proxies get.
type revision struct {
	number uint64
	wasm   string
	policy []byte // JSON, without its opening brace
	digest [sha256.Size]byte
	secret string // goes with the policy
	seal   []byte // of versions; see lineage

	capabilities []string // that the policy needs
}

func newRevision(r store.Revision) (revision, error) {
	policy, ok := bytes.CutPrefix(bytes.TrimSpace(r.JSON), []byte("{"))
	if !ok {
		return revision{}, errors.New("tag policy: not a JSON object")
	}
	return revision{
		number: r.Number, wasm: r.Wasm, policy: policy, digest: sha256.Sum256(r.JSON),
		capabilities: envoy.Capabilities(r.JSON),
	}, nil
}

// secrets come with the store, so they are the same after a restart and from a backup:
// what proxies hash the keys with that they report, and the key of versions' seals.
func secrets(ctx context.Context, s store.Store) (report string, seal []byte, err error) {
	secret, err := s.Secret(ctx)
	if err != nil {
		return "", nil, err
	}
	return hex.EncodeToString(keyed(secret, "report_secret")), keyed(secret, "version"), nil
}

func keyed(secret []byte, text string) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// revision reads a revision from the store.
func (s *Server) revision(ctx context.Context, number uint64) (revision, error) {
	return s.texts.get(number, func() (revision, error) {
		r, err := s.store.Get(ctx, number)
		if err != nil {
			return revision{}, err
		}
		made, err := newRevision(r)
		made.seal = s.seal
		if bytes.Contains(r.JSON, []byte(`"report_keys":`)) { // a filter that is older refuses both
			made.secret = s.secret
		}
		return made, err
	})
}

// plugin is the filter as a node runs it, without a policy. The revision's path of
// the binary counts before the node's, and that before the server's.
func (s *Server) plugin(r revision, n node) envoy.Plugin {
	p := envoy.Plugin{Name: envoy.ResourceName, VMID: n.vmID, Runtime: n.runtime, Wasm: s.wasm, Envoy: n.version}
	if n.wasm != "" {
		p.Wasm = n.wasm
	}
	if r.wasm != "" {
		p.Wasm = r.wasm
	}
	return p
}

// newPayload is the revision as a node gets it.
func newPayload(p envoy.Plugin, r revision, tag string) (payload, error) {
	version := version(r, tag, p)
	p.Policy, p.Capabilities = r.head(tag), r.capabilities
	config, err := p.ExtensionConfig()
	if err != nil {
		return payload{}, err
	}
	packed := new(anypb.Any)
	if err := anypb.MarshalFrom(packed, config, proto.MarshalOptions{Deterministic: true}); err != nil {
		return payload{}, fmt.Errorf("marshal resource: %w", err)
	}
	short, err := proto.Marshal(&discoveryv3.Resource{Name: config.GetName(), Version: version, Resource: packed})
	if err != nil {
		return payload{}, fmt.Errorf("marshal resource: %w", err)
	}
	before, after, err := insert(short, p.Policy, len(r.policy))
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

// insert makes room for more bytes behind a string that is nested in a message.
// It returns what goes before and behind them, with the lengths of all enclosing
// messages grown.
func insert(message, text []byte, more int) (before, after []byte, err error) {
	if bytes.Equal(message, text) {
		return text, nil, nil
	}
	rest := message
	for len(rest) > 0 {
		number, kind, n := protowire.ConsumeTag(rest)
		size := protowire.ConsumeFieldValue(number, kind, rest[max(n, 0):])
		if n < 0 || size < 0 {
			break
		}
		if value := rest[n : n+size]; kind == protowire.BytesType && bytes.Contains(value, text) {
			inner, _ := protowire.ConsumeBytes(value)
			left, right, err := insert(inner, text, more)
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

// lineage is where a version comes from.
type lineage int

const (
	unsealed lineage = iota // no version, or one of a release without seals
	own                     // this store, or one that was copied from it or to it
	foreign                 // another store
)

func (s *Server) lineage(version string) lineage {
	parts := strings.Split(version, "-")
	switch {
	case len(parts) != 4:
		return unsealed
	case hmac.Equal([]byte(parts[2]), []byte(sealOf(s.seal, parts[0], parts[1], parts[3]))):
		return own
	}
	return foreign
}

// heldRevision reads the number in a version that Envoy reports, 0 if it is not
// ours.
func heldRevision(version string) uint64 {
	number, _, _ := strings.Cut(version, "-")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// sameContent says whether two versions differ in the tag alone.
func sameContent(a, b string) bool {
	number := heldRevision(a)
	return number > 0 && number == heldRevision(b) && digestIn(a) != "" && digestIn(a) == digestIn(b)
}

// digestIn is what stands behind the last dash.
func digestIn(version string) string { return version[strings.LastIndexByte(version, '-')+1:] }

func digest(r revision, p envoy.Plugin) string {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(p.Wasm), []byte(p.VMID), []byte(p.Runtime), r.digest[:], []byte(r.secret)} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
