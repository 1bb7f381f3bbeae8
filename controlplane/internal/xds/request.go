package xds

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/selector"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/envoy"
)

// maxRequest bounds a request. The first one of an Envoy has 100 KB, most of it
// the list of its extensions; Istio adds the labels and annotations of a pod.
const maxRequest = 256 << 10

// request has the fields of a discoveryv3.DeltaDiscoveryRequest that the server
// needs. Only they are read from the wire: a generated message would take up to
// fifty times the bytes that a proxy sends.
type request struct {
	size         int
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

// node is what a proxy says about itself.
type node struct {
	id      string
	version string // of Envoy, may be empty
	wasm    string // metadata sluice.wasm
	vmID    string // metadata sluice.vm_id
	runtime string // metadata sluice.runtime
	manage  string // metadata sluice.manage: its address for management requests
	quota   string // metadata sluice.quota_cluster: Envoy's cluster of the quota service, * for any name

	cluster string            // the node's own, which a selector may ask about, cut
	texts   map[string]string // the same of texts in its metadata, see maxTextBytes
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
func (n node) check() error {
	if err := access.CheckNodeID(n.id); err != nil {
		return err
	}
	for name, value := range map[string]string{"wasm": n.wasm, "vm_id": n.vmID, "runtime": n.runtime, "manage": n.manage, "quota_cluster": n.quota} {
		switch {
		case len(value) > maxMetadata:
			return fmt.Errorf("metadata sluice.%s has more than %d bytes", name, maxMetadata)
		case !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl):
			return fmt.Errorf("metadata sluice.%s is not plain text in UTF-8", name)
		}
	}
	return nil
}

// fields calls visit for each field of a message, with its bytes or its value.
// Groups, which xDS does not use, are refused: they nest.
func fields(message []byte, visit func(number protowire.Number, text []byte, value uint64) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		var text []byte
		var value uint64
		switch kind {
		case protowire.BytesType:
			text, n = protowire.ConsumeBytes(message)
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(message)
		case protowire.Fixed32Type, protowire.Fixed64Type:
			n = protowire.ConsumeFieldValue(number, kind, message)
		default:
			return errors.New("a group in a discovery request")
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if err := visit(number, text, value); err != nil {
			return err
		}
	}
	return nil
}

// head copies the first bytes of a text, and one more than maxBytes where there
// are more, so that a check finds it too long.
func head(text []byte, maxBytes int) string { return string(text[:min(len(text), maxBytes+1)]) }

// unmarshal reads a DeltaDiscoveryRequest.
func (r *request) unmarshal(message []byte) error {
	*r = request{size: len(message)}
	return fields(message, func(number protowire.Number, text []byte, _ uint64) error {
		switch number {
		case 1:
			r.hasNode = true
			return r.node.unmarshal(text)
		case 2:
			r.typeURL = head(text, maxName)
		case 3:
			r.subscribe(text)
		case 4:
			r.unsubscribe(text)
		case 5:
			return r.version(text)
		case 6:
			r.nonce = head(text, maxName)
		case 7:
			r.refused = true
			return fields(text, func(number protowire.Number, text []byte, _ uint64) error {
				if number == 2 {
					r.text = printable.Cut(head(text, maxNackText), maxNackText)
				}
				return nil
			})
		default: // nothing here needs it
		}
		return nil
	})
}

func (r *request) subscribe(name []byte) {
	if string(name) == envoy.ResourceName || string(name) == "*" {
		r.subscribes = true
		return
	}
	r.unserved = appendName(r.unserved, name)
	r.others++
}

func (r *request) unsubscribe(name []byte) {
	if string(name) == envoy.ResourceName {
		r.unsubscribes = true
		return
	}
	r.dropped = appendName(r.dropped, name)
}

// appendName keeps at most maxUnserved names.
func appendName(names []string, name []byte) []string {
	if len(names) == maxUnserved {
		return names
	}
	return append(names, printable.Cut(head(name, maxName), maxShown))
}

// version reads an entry of initial_resource_versions.
func (r *request) version(entry []byte) error {
	name, version, err := mapEntry(entry)
	if string(name) == envoy.ResourceName {
		r.held = head(version, maxName)
	}
	return err
}

// mapEntry reads an entry of a map.
func mapEntry(message []byte) (name, value []byte, err error) {
	err = fields(message, func(number protowire.Number, text []byte, _ uint64) error {
		switch number {
		case 1:
			name = text
		case 2:
			value = text
		default: // nothing else is in one
		}
		return nil
	})
	return name, value, err
}

// unmarshal reads a corev3.Node.
func (n *node) unmarshal(message []byte) error {
	return fields(message, func(number protowire.Number, text []byte, _ uint64) error {
		switch number {
		case 1:
			n.id = head(text, access.MaxNodeID)
		case 2:
			n.cluster = head(text, maxName)
		case 3:
			return n.metadata(text)
		case 8:
			return n.build(text)
		default: // nothing here needs it
		}
		return nil
	})
}

// metadata reads texts, and those of structs, within the struct that metadata is.
func (n *node) metadata(message []byte) error {
	left := maxTextBytes
	keep := func(name string, text []byte) {
		takes := len(name) + len(text) + perText
		if len(name) > maxName || len(text) > maxName || takes > left {
			return
		}
		if n.texts == nil {
			n.texts = map[string]string{}
		}
		if _, twice := n.texts[name]; !twice {
			n.texts[name] = string(text)
			left -= takes
		}
	}
	return entries(message, func(outer string, value []byte) error {
		return fields(value, func(number protowire.Number, text []byte, _ uint64) error {
			switch number {
			case 3: // string_value
				keep(outer, text)
			case 5: // struct_value
				return entries(text, func(name string, value []byte) error {
					if outer == "sluice" {
						return n.own(name, value)
					}
					return fields(value, func(number protowire.Number, text []byte, _ uint64) error {
						if number == 3 {
							keep(outer+"."+name, text)
						}
						return nil
					})
				})
			default: // no selector asks about it
			}
			return nil
		})
	})
}

// place is what selectors ask about.
func (n node) place(who store.Identity) selector.Proxy {
	return selector.Proxy{Node: n.id, Cluster: n.cluster, SAN: who.SAN, Metadata: n.texts}
}

// own takes a field of the struct "sluice".
func (n *node) own(name string, value []byte) error {
	into, ok := map[string]*string{"wasm": &n.wasm, "vm_id": &n.vmID, "runtime": &n.runtime, "manage": &n.manage, "quota_cluster": &n.quota}[name]
	if !ok {
		return nil
	}
	return fields(value, func(number protowire.Number, text []byte, _ uint64) error {
		if number == 3 { // string_value
			*into = head(text, maxMetadata)
		}
		return nil
	})
}

// entries visits the fields of a google.protobuf.Struct.
func entries(message []byte, visit func(name string, value []byte) error) error {
	return fields(message, func(number protowire.Number, entry []byte, _ uint64) error {
		if number != 1 {
			return nil
		}
		name, value, err := mapEntry(entry)
		if err != nil {
			return err
		}
		return visit(head(name, maxName), value)
	})
}

// build reads a corev3.BuildVersion.
func (n *node) build(message []byte) error {
	return fields(message, func(number protowire.Number, text []byte, _ uint64) error {
		if number != 1 {
			return nil
		}
		var version [4]uint32 // by field number
		err := fields(text, func(number protowire.Number, _ []byte, value uint64) error {
			if number < 4 {
				version[number] = uint32(value)
			}
			return nil
		})
		n.version = fmt.Sprintf("%d.%d.%d", version[1], version[2], version[3])
		return err
	})
}
