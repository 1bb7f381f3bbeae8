package xds

import (
	"bytes"
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
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/envoy"
)

// TypeURL is the type of the resources served.
const TypeURL = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"

// nonces makes nonces that no other push has, of this process or of the one
// before it.
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

// stamp tells an edition of this process from all others of the revision.
func (n nonces) stamp(era, times uint64) string {
	return fmt.Sprintf("%08x.%x.%x", n.process, era, times)
}

// plugin is the filter as a node runs it: the revision's binary goes before
// the node's, which goes before the server's.
func (s *Server) plugin(r store.Revision, n node) envoy.Plugin {
	p := envoy.Plugin{Name: envoy.ResourceName, VMID: n.vmID, Runtime: n.runtime, Wasm: s.wasm, Policy: r.JSON}
	if n.wasm != "" {
		p.Wasm = n.wasm
	}
	if r.Wasm != "" {
		p.Wasm = r.Wasm
	}
	return p
}

// resource is the revision as a node gets it, unlike one with another stamp.
func resource(p envoy.Plugin, number uint64, mark string) (*discoveryv3.Resource, error) {
	version := version(number, mark, p)
	stamped, err := stamp(p.Policy, strconv.FormatUint(number, 10)+"-"+mark)
	if err != nil {
		return nil, err
	}
	p.Policy = stamped
	config, err := p.ExtensionConfig()
	if err != nil {
		return nil, err
	}
	packed := new(anypb.Any)
	if err := anypb.MarshalFrom(packed, config, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, fmt.Errorf("marshal resource: %w", err)
	}
	return &discoveryv3.Resource{Name: config.GetName(), Version: version, Resource: packed}, nil
}

// stamp puts the field "revision" into a JSON object.
func stamp(policy []byte, revision string) ([]byte, error) {
	rest, ok := bytes.CutPrefix(bytes.TrimSpace(policy), []byte("{"))
	if !ok {
		return nil, errors.New("stamp policy: not a JSON object")
	}
	head := `{"revision":` + strconv.Quote(revision)
	if !bytes.HasPrefix(bytes.TrimSpace(rest), []byte("}")) {
		head += ","
	}
	return append([]byte(head), rest...), nil
}

// version is what Envoy reports when it connects again: "12-<stamp>-<digest>".
// The digest tells whether it still is what this server would push, even if
// the revisions were numbered anew in another data directory.
func version(number uint64, stamp string, p envoy.Plugin) string {
	return strconv.FormatUint(number, 10) + "-" + stamp + "-" + digest(p)
}

// heldRevision reads the number in a version Envoy reports, 0 if it is not ours.
func heldRevision(version string) uint64 {
	number, _, _ := strings.Cut(version, "-")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// sameContent says whether two versions differ in nothing but the stamp.
func sameContent(a, b string) bool {
	number := heldRevision(a)
	return number > 0 && number == heldRevision(b) && digestIn(a) != "" && digestIn(a) == digestIn(b)
}

// digestIn is what stands behind the last dash.
func digestIn(version string) string { return version[strings.LastIndexByte(version, '-')+1:] }

func digest(p envoy.Plugin) string {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(p.Wasm), []byte(p.VMID), []byte(p.Runtime), p.Policy} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
