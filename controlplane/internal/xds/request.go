package xds

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/selector"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/shared/wire"
)

// request has the fields of a discoveryv3.DeltaDiscoveryRequest that the server
// needs. Only they are read from the wire: a generated message would take up to
// fifty times the bytes that a proxy sends.
type request struct {
	hasNode      bool
	node         node
	typeURL      string
	subscribes   bool     // to the resource that is served
	unsubscribes bool     // from it
	others       int      // resources that are not served
	unserved     []string // the first maxUnserved of them, cut
	dropped      []string // the same of those that it no longer wants
	held         string   // version of the resource that the proxy reports to hold, cut
	nonce        string
	refused      bool
	text         string // why, cut
}

// node is what a proxy says about itself. Other control planes are told what is exported.
type node struct {
	Place   selector.Proxy // its id, and what else selectors ask about, cut; of the metadata see maxTextBytes
	Version string         `json:",omitzero"` // of Envoy, may be empty
	Manage  string         `json:",omitzero"` // metadata sluice.manage: its address for management requests
	Quota   string         `json:",omitzero"` // metadata sluice.quota_cluster: its cluster of the quota service, * for any
	wasm    string         // metadata sluice.wasm
	vmID    string         // metadata sluice.vm_id
	runtime string         // metadata sluice.runtime
}

func (n *node) who() store.Identity { return store.Identity{SAN: n.Place.SAN, Node: n.Place.Node} }

// own are the fields of the struct "sluice" in its metadata.
func (n *node) own() map[string]*string {
	return map[string]*string{
		"wasm": &n.wasm, "vm_id": &n.vmID, "runtime": &n.runtime, "manage": &n.Manage, "quota_cluster": &n.Quota,
	}
}

const (
	// maxMetadata is the longest path there is on Linux.
	maxMetadata = 4096
	// maxName bounds what is kept of names and versions. Those of this server are
	// shorter.
	maxName = 256
	// maxShown bounds what a log line repeats of a proxy's words.
	maxShown = 100
	// maxUnserved bounds what is kept of names that are not served.
	maxUnserved = 8
	// maxTextBytes bounds what is kept of names and texts of the metadata, the first in
	// its order. A text beyond maxName is passed over, so no selector finds it.
	maxTextBytes = 16 << 10
	perText      = 64 // what a text takes beside its bytes, about
	// maxNackText bounds what is kept of a refusal's text, as Envoy does.
	maxNackText = 4096
)

// check says whether the node can be served.
func (n *node) check() error {
	if err := access.CheckNodeID(n.Place.Node); err != nil {
		return err
	}
	for name, value := range n.own() {
		switch {
		case len(*value) > maxMetadata:
			return fmt.Errorf("metadata sluice.%s has more than %d bytes", name, maxMetadata)
		case !utf8.ValidString(*value) || strings.ContainsFunc(*value, unicode.IsControl):
			return fmt.Errorf("metadata sluice.%s is not plain text in UTF-8", name)
		}
	}
	return nil
}

// reader reads messages. Its error is of the first that is malformed.
type reader struct{ err error }

// fields calls visit for each field of a message that is a text or a message itself.
func (r *reader) fields(message []byte, visit func(f wire.Field[[]byte])) {
	r.each(message, wire.Bytes, visit)
}

// each calls visit for the fields that are written so. One that is written otherwise than its
// message says is not known to protobuf either.
func (r *reader) each(message []byte, written byte, visit func(f wire.Field[[]byte])) {
	for len(message) > 0 && r.err == nil {
		f, err := wire.Cut(&message)
		if err != nil {
			r.err = err
			return
		}
		if f.Wire == written {
			visit(f)
		}
	}
}

// field returns the last field of that number, nil if there is none.
func (r *reader) field(message []byte, number uint64) (found []byte) {
	r.fields(message, func(f wire.Field[[]byte]) {
		if f.ID == number {
			found = f.Bytes
		}
	})
	return found
}

// entries visits the fields of a google.protobuf.Struct: those that are texts, and structs.
func (r *reader) entries(message []byte, visit func(name string, text, inner []byte)) {
	r.fields(message, func(f wire.Field[[]byte]) {
		if value := r.field(f.Bytes, 2); f.ID == 1 {
			visit(head(r.field(f.Bytes, 1), maxName), r.field(value, 3), r.field(value, 5))
		}
	})
}

// head copies the first bytes of a text, and one more than maxBytes where there
// are more, so that a check finds it too long.
func head(text []byte, maxBytes int) string { return string(text[:min(len(text), maxBytes+1)]) }

// unmarshal reads a DeltaDiscoveryRequest.
func (r *request) unmarshal(message []byte) error {
	*r = request{}
	var in reader
	in.fields(message, func(f wire.Field[[]byte]) {
		switch text := f.Bytes; f.ID {
		case 1:
			r.hasNode = true
			r.node.read(&in, text)
		case 2:
			r.typeURL = head(text, maxName)
		case 3:
			if string(text) == envoy.ResourceName || string(text) == "*" {
				r.subscribes = true
				return
			}
			r.unserved = appendName(r.unserved, text)
			r.others++
		case 4:
			if string(text) == envoy.ResourceName {
				r.unsubscribes = true
			} else {
				r.dropped = appendName(r.dropped, text)
			}
		case 5: // an entry of initial_resource_versions
			if string(in.field(text, 1)) == envoy.ResourceName {
				r.held = head(in.field(text, 2), maxName)
			}
		case 6:
			r.nonce = head(text, maxName)
		case 7:
			r.refused = true
			r.text = printable.Cut(head(in.field(text, 2), maxNackText), maxNackText)
		default: // nothing here needs it
		}
	})
	return in.err
}

// appendName keeps at most maxUnserved names.
func appendName(names []string, name []byte) []string {
	if len(names) == maxUnserved {
		return names
	}
	return append(names, printable.Cut(head(name, maxName), maxShown))
}

// read reads a corev3.Node.
func (n *node) read(in *reader, message []byte) {
	in.fields(message, func(f wire.Field[[]byte]) {
		switch text := f.Bytes; f.ID {
		case 1:
			n.Place.Node = head(text, access.MaxNodeID)
		case 2:
			n.Place.Cluster = head(text, maxName)
		case 3:
			n.metadata(in, text)
		case 8: // user_agent_build_version
			var version [4]uint32 // by field number
			in.each(in.field(text, 1), wire.Varint, func(f wire.Field[[]byte]) {
				if f.ID < 4 {
					version[f.ID] = uint32(f.Number)
				}
			})
			n.Version = fmt.Sprintf("%d.%d.%d", version[1], version[2], version[3])
		default: // nothing here needs it
		}
	})
}

// metadata reads texts, and those of structs, within the struct that metadata is.
func (n *node) metadata(in *reader, message []byte) {
	own, left := n.own(), maxTextBytes
	keep := func(name string, text []byte) {
		takes := len(name) + len(text) + perText
		isTooLong := len(name) > maxName || len(text) > maxName || takes > left
		if _, twice := n.Place.Metadata[name]; text == nil || twice || isTooLong {
			return
		}
		if n.Place.Metadata == nil {
			n.Place.Metadata = map[string]string{}
		}
		n.Place.Metadata[name] = string(text)
		left -= takes
	}
	in.entries(message, func(outer string, text, inner []byte) {
		keep(outer, text)
		in.entries(inner, func(name string, text, _ []byte) {
			if outer != "sluice" {
				keep(outer+"."+name, text)
			} else if into := own[name]; into != nil && text != nil {
				*into = head(text, maxMetadata)
			}
		})
	})
}
