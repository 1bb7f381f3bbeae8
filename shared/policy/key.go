package policy

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/state"
)

// The kinds of key parts.
const (
	KeyHeader   KeyKind = 1 + iota // Name = header, lower case; Scheme of a credential, lower case, or ""
	KeyClientIP                    // V4Prefix, V6Prefix
	KeyHost                        // authority, lower case, without port
	KeyMethod
	KeyPath     // Segment: 0 = the full path without query, n = its n-th segment from 1
	KeyQuery    // Name = parameter
	KeyCookie   // Name = cookie
	KeyRoute    // the name of Envoy's route
	KeyJWT      // Name = provider, Path = claim
	KeyProperty // Path = the attribute's segments
	KeyFirstOf  // Of = key parts; the first that the request has counts
	KeyAddress  // Name = header, lower case, that holds an address; V4Prefix, V6Prefix
)

// KeyKind says where a key part comes from.
type KeyKind uint8

var keyWords = [...]string{
	KeyHeader:   "header",
	KeyClientIP: "client_ip",
	KeyHost:     "host",
	KeyMethod:   "method",
	KeyPath:     "path",
	KeyQuery:    "query",
	KeyCookie:   "cookie",
	KeyRoute:    "route",
	KeyJWT:      "jwt",
	KeyProperty: "property",
	KeyFirstOf:  "first_of",
	KeyAddress:  "address",
}

// String is what a policy calls the kind.
func (k KeyKind) String() string { return keyWords[k] }

// bareKinds are those that a policy may write as a word alone.
var bareKinds = [...]KeyKind{KeyClientIP, KeyHost, KeyMethod, KeyPath, KeyRoute}

// BareKeys are the key parts that a policy may write as a word alone.
func BareKeys() (words []string) {
	for _, kind := range bareKinds {
		words = append(words, kind.String())
	}
	return words
}

// KeyPart is one part of what a rule counts by.
type KeyPart struct {
	Kind     KeyKind
	Name     string
	Scheme   string
	V4Prefix int
	V6Prefix int
	Segment  int
	Path     []string
	Of       []KeyPart
}

// Origin says what a client can do about a key part.
type Origin uint8

// The origins of key parts.
const (
	Inherent Origin = iota // every request has it
	Verified               // it is checked; the client can leave it out
	Sent                   // the client sends what it likes, or nothing
)

// Origin returns what a client can do about the part. Of a first_of ask its parts.
func (p *KeyPart) Origin() Origin {
	switch p.Kind {
	case KeyHeader, KeyQuery, KeyCookie, KeyAddress:
		return Sent
	case KeyJWT:
		return Verified
	default: // a property, or Inherent
	}
	switch strings.Join(p.Path[:min(2, len(p.Path))], ".") {
	case "request.headers", "request.referer", "request.useragent", "connection.requested_server_name":
		return Sent
	case "connection.subject_peer_certificate", "connection.dns_san_peer_certificate",
		"connection.uri_san_peer_certificate", "connection.sha256_peer_certificate_digest":
		return Verified
	}
	return Inherent
}

// OfClient reports whether the part tells clients apart. Host, method, path and route are
// the same for all. Of a first_of ask its parts.
func (p *KeyPart) OfClient() bool {
	switch p.Kind {
	case KeyHost, KeyMethod, KeyPath, KeyRoute:
		return false
	default:
		return true
	}
}

// OfRoute reports whether the part depends on the method, the path or the route, so that it differs
// between the requests of one client. A first_of does if one of its parts does.
func (p *KeyPart) OfRoute() bool {
	switch p.Kind {
	case KeyMethod, KeyPath, KeyRoute:
		return true
	case KeyFirstOf:
		return slices.ContainsFunc(p.Of, func(part KeyPart) bool { return part.OfRoute() })
	case KeyProperty:
		path := p.Path
		if path[0] == "xds" {
			path = path[1:]
		}
		switch path[0] {
		case "route_name", "route_metadata", "cluster_name", "cluster_metadata":
			return true
		}
		return len(path) > 1 && path[0] == "request" && (path[1] == "method" || path[1] == "path" || path[1] == "url_path")
	default:
		return false
	}
}

// nat64 is where a translator puts clients of the IPv4 internet (RFC 6052).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// Bits is how many bits of an address count. All bits of a translator's prefix count, and
// as many of the IPv4 address behind it as of any other: else all clients behind the
// translator had one counter.
func (p *KeyPart) Bits(ip netip.Addr) int {
	switch {
	case ip.Is4():
		return p.V4Prefix
	case nat64.Contains(ip):
		return nat64.Bits() + p.V4Prefix
	}
	return p.V6Prefix
}

// Network is what a key has of an address: "192.0.2.7" if the prefix is the whole
// address, else "192.0.2.0/24".
func (p *KeyPart) Network(ip netip.Addr) string {
	bits := p.Bits(ip)
	if network, err := ip.Prefix(bits); err == nil && bits < ip.BitLen() {
		return network.String()
	}
	return ip.String()
}

// Header is the request header that the part is read from, "" if there is none.
func (p *KeyPart) Header() string {
	if p.Kind == KeyHeader || p.Kind == KeyAddress {
		return p.Name
	}
	return ""
}

// Key is a key of a rule: the values of its parts. Re-use one from request to request: it
// keeps its memory.
type Key struct {
	Parts []Value
	Bytes []byte // all parts, as they are hashed

	readings []reading
}

// Value is one part of a key.
type Value struct {
	Label   string // of a first_of: which of its key parts the request has
	Text    string
	Present bool
}

// reading is what a server may take for a part beside its value.
type reading struct {
	part int
	text string
}

// Whole is the value for people and for patterns.
func (v *Value) Whole() string {
	if v.Label == "" {
		return v.Text
	}
	return v.Label + "=" + v.Text
}

// Reset empties the key.
func (k *Key) Reset() {
	k.Parts = k.Parts[:0]
	k.Bytes = k.Bytes[:0]
	k.readings = k.readings[:0]
}

// Add appends the value of the next key part.
func (k *Key) Add(v Value) {
	k.Parts = append(k.Parts, v)
	if !v.Present {
		k.Bytes = state.AppendMissing(k.Bytes)
		return
	}
	if v.Label != "" {
		k.Bytes = state.AppendPart(k.Bytes, v.Label)
	}
	k.Bytes = state.AppendPart(k.Bytes, v.Text)
}

// AddReading notes what else a server may take a part for. Overrides judge by it, too.
func (k *Key) AddReading(part int, text string) {
	k.readings = append(k.readings, reading{part, text})
}
