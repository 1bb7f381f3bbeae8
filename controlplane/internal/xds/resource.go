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

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
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

// node is what a proxy says of itself.
type node struct {
	id      string
	version string // of Envoy, may be empty
	wasm    string // metadata sluice.wasm
	vmID    string // metadata sluice.vm_id
	runtime string // metadata sluice.runtime
	manage  string // metadata sluice.manage: where it answers management requests, as it says
}

const (
	// maxNodeID is longer than any id in use and short enough for a store's key.
	maxNodeID = 1024
	// maxMetadata is the longest path there is on Linux.
	maxMetadata = 4096
)

func nodeOf(n *corev3.Node) (node, error) {
	if n.GetId() == "" {
		return node{}, errors.New("node id is empty: set node.id in the bootstrap or start Envoy with --service-node")
	}
	if len(n.GetId()) > maxNodeID {
		return node{}, fmt.Errorf("node id has %d bytes, at most %d are allowed", len(n.GetId()), maxNodeID)
	}
	metadata := n.GetMetadata().GetFields()["sluice"].GetStructValue().GetFields()
	d := node{
		id:      n.GetId(),
		wasm:    metadata["wasm"].GetStringValue(),
		vmID:    metadata["vm_id"].GetStringValue(),
		runtime: metadata["runtime"].GetStringValue(),
		manage:  metadata["manage"].GetStringValue(),
	}
	if longest := max(len(d.wasm), len(d.vmID), len(d.runtime), len(d.manage)); longest > maxMetadata {
		return node{}, fmt.Errorf("a field of the node's metadata has %d bytes, at most %d are allowed", longest, maxMetadata)
	}
	if v := n.GetUserAgentBuildVersion().GetVersion(); v != nil {
		d.version = fmt.Sprintf("%d.%d.%d", v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch())
	}
	return d, nil
}
