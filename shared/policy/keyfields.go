package policy

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
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

// keyObject is one item of "key", which has exactly one of the fields: the kinds.
var keyObject = newObject("key", []field[KeyPart]{
	part(KeyHeader, choice("header", token, objectOf("header")), readKeyHeader),
	partObject(KeyClientIP, clientIPObject),
	partObject(KeyHost, hostObject),
	partObject(KeyMethod, methodObject),
	part(KeyPath, choice("path", word("full"), objectOf("path")), readKeyPath),
	part(KeyQuery, text, func(r *reader, v value, k *KeyPart) { k.Name = r.shortText(v) }),
	part(KeyCookie, text, func(r *reader, v value, k *KeyPart) { k.Name = r.token(v, BadCookieName) }),
	partObject(KeyRoute, routeObject),
	partObject(KeyJWT, jwtObject),
	part(KeyProperty, segments, readProperty),
	part(KeyFirstOf, listOf(objectOf("key"), 2, MaxKeyParts), readFirstOf),
	partObject(KeyAddress, addressObject),
})

// part is the row of a kind.
func part(kind KeyKind, shape Shape, read func(*reader, value, *KeyPart)) field[KeyPart] {
	return field[KeyPart]{kind.String(), shape, "", func(r *reader, v value, k *KeyPart) {
		*k = KeyPart{Kind: kind}
		read(r, v, k)
	}}
}

func partObject(kind KeyKind, o *object[KeyPart]) field[KeyPart] {
	return part(kind, objectOf(o.Name), func(r *reader, v value, k *KeyPart) { readObject(r, v, o, k) })
}

var (
	segments = listOf(textOf("segment"), 1, 0)

	hostObject   = newObject[KeyPart]("host", nil)
	methodObject = newObject[KeyPart]("method", nil)
	routeObject  = newObject[KeyPart]("route", nil)

	keyHeaderObject = newObject("header", []field[KeyPart]{
		{"name", required(token), "", func(r *reader, v value, k *KeyPart) { k.Name = r.headerName(v) }},
		{"scheme", token, "", func(r *reader, v value, k *KeyPart) { k.Scheme = strings.ToLower(r.token(v, BadScheme)) }},
	})
	prefixFields = []field[KeyPart]{
		{"v4_prefix", integer(0, 32), "32", func(r *reader, v value, k *KeyPart) {
			k.V4Prefix = int(r.integer(v)) // fits: at most 32
		}},
		{"v6_prefix", integer(0, 128), "64", func(r *reader, v value, k *KeyPart) {
			k.V6Prefix = int(r.integer(v)) // fits: at most 128
		}},
	}
	clientIPObject = newObject("client_ip", prefixFields)
	addressObject  = newObject("address", append([]field[KeyPart]{
		{"header", required(token), "", func(r *reader, v value, k *KeyPart) { k.Name = r.headerName(v) }},
	}, prefixFields...))
	keyPathObject = newObject("path", []field[KeyPart]{
		{"segment", required(integer(1, 64)), "", func(r *reader, v value, k *KeyPart) {
			k.Segment = int(r.integer(v)) // fits: at most 64
		}},
	})
	jwtObject = newObject("jwt", []field[KeyPart]{
		{"provider", required(text), "", func(r *reader, v value, k *KeyPart) { k.Name = r.shortText(v) }},
		{"claim", required(choice("claim", text, segments)), "", func(r *reader, v value, k *KeyPart) {
			if v.Kind == String {
				k.Path = []string{r.shortText(v)}
			} else {
				k.Path = r.segments(v)
			}
		}},
	})
)

// keyObjects are the objects of a key part.
func keyObjects() (list []ObjectSchema) {
	for _, o := range []*object[KeyPart]{
		keyObject, keyHeaderObject, clientIPObject, addressObject, hostObject, methodObject, keyPathObject,
		routeObject, jwtObject,
	} {
		list = append(list, o.ObjectSchema)
	}
	return list
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

// KeyDefinition is the canonical text of what the rule's key is made of, the
// same for every way to write it. Names carry their length, so that no two
// definitions share a text. Counters are found by it: a change here loses them.
func (r *Rule) KeyDefinition() string { return string(appendDefinitions(nil, r.Key)) }

func appendDefinitions(b []byte, parts []KeyPart) []byte {
	for i := range parts {
		if i > 0 {
			b = append(b, ',')
		}
		p := &parts[i]
		b = append(b, p.Kind.String()...)
		for _, name := range [...]string{p.Name, p.Scheme} {
			if name != "" {
				b = appendSized(b, name)
			}
		}
		switch p.Kind {
		case KeyClientIP, KeyAddress:
			b = appendNumber(appendNumber(b, p.V4Prefix), p.V6Prefix)
		case KeyPath:
			b = appendNumber(b, p.Segment)
		case KeyJWT, KeyProperty:
			b = appendPath(b, p.Path)
		case KeyFirstOf:
			b = append(appendDefinitions(append(appendNumber(b, len(p.Of)), '('), p.Of), ')')
		default: // the names say all
		}
	}
	return b
}

func appendNumber(b []byte, n int) []byte { return append(append(b, ':'), itoa(int64(n))...) }

// appendSized writes ":3:abc".
func appendSized(b []byte, text string) []byte {
	return append(append(appendNumber(b, len(text)), ':'), text...)
}

// appendPath writes ":2:1:a:1:b", the number of texts before them.
func appendPath(b []byte, path []string) []byte {
	b = appendNumber(b, len(path))
	for _, text := range path {
		b = appendSized(b, text)
	}
	return b
}

// Label names the part in words: "header:x-user-id", "client_ip". Among the
// parts of one first_of all differ; there the text of a key is LABEL=VALUE, so
// that one part's value is never taken for another's.
func (p *KeyPart) Label() string {
	label := p.Kind.String()
	for _, detail := range [...]string{p.Name, p.Scheme, strings.Join(p.Path, ".")} {
		if detail != "" {
			label += ":" + detail
		}
	}
	if p.Segment > 0 {
		label += ":" + itoa(int64(p.Segment))
	}
	return label
}

// Cut divides a key part as people write it. If it is a first_of, label says which of its
// key parts the value is of; else label is empty.
func (p *KeyPart) Cut(text string) (label, value string, err error) {
	if p.Kind != KeyFirstOf {
		return "", text, nil
	}
	labels := ""
	for i := range p.Of {
		label := p.Of[i].Label()
		if value, found := strings.CutPrefix(text, label+"="); found {
			return label, value, nil
		}
		labels += " or " + string(AppendString(nil, label+"="))
	}
	return "", "", errors.New("a first_of begins with what it is, " + strings.TrimPrefix(labels, " or "))
}

// Labeled is the part of a first_of with that label; for any other kind, and for no
// label, p itself.
func (p *KeyPart) Labeled(label string) *KeyPart {
	for i := range p.Of {
		if p.Of[i].Label() == label {
			return &p.Of[i]
		}
	}
	return p
}

const (
	// MaxKeyParts is how many parts a key, and a first_of in it, may have.
	MaxKeyParts = 16
	// MaxPathSegments is how many segments an attribute's path, or a claim's,
	// may have.
	MaxPathSegments = 16
)

// readKeyHeader reads a header's name, or an object with the scheme before its value.
func readKeyHeader(r *reader, v value, k *KeyPart) {
	if v.Kind == String {
		k.Name = r.headerName(v)
	} else {
		readObject(r, v, keyHeaderObject, k)
	}
}

func readKey(r *reader, v value, rule *Rule) {
	if !r.items(v) {
		r.rule.anyKey = true
		return
	}
	if len(v.Items) > 0 {
		rule.Key = make([]KeyPart, len(v.Items))
	}
	for i := range rule.Key {
		readKeyPart(r, v.item(i), &rule.Key[i])
	}
}

func readKeyPart(r *reader, v value, k *KeyPart) {
	switch {
	case v.Kind == String:
		readBareKeyPart(r, v, k)
	case v.Kind != Object || len(v.Fields) == 0:
		r.fail(v, WrongValue)
	default:
		readObject(r, v, keyObject, k)
		if n := len(v.Fields); n > 1 {
			r.fail(v, ManyInKeyPart, itoa(int64(n)))
		}
	}
}

// readBareKeyPart reads a part that needs nothing but its kind: "- host".
func readBareKeyPart(r *reader, v value, k *KeyPart) {
	at := slices.IndexFunc(bareKinds[:], func(kind KeyKind) bool { return kind.String() == v.Text })
	if at < 0 {
		r.fail(v, WrongValue)
		return
	}
	*k = KeyPart{Kind: bareKinds[at]}
	if k.Kind == KeyClientIP {
		readObject(r, valueOf(&Node{Kind: Object}), clientIPObject, k)
	}
}

func readKeyPath(r *reader, v value, k *KeyPart) {
	if v.Kind != String || v.Text != "full" {
		readObject(r, v, keyPathObject, k)
	}
}

// segments reads a list of texts that is not empty.
func (r *reader) segments(v value) (path []string) {
	if !r.isList(v) {
		return nil
	}
	if n := len(v.Items); n == 0 || n > MaxPathSegments {
		r.fail(v, WrongCount, "1", itoa(MaxPathSegments))
		return nil
	}
	for i := range v.Items {
		path = append(path, r.shortText(value{v.Item(i), &text}))
	}
	return path
}

// readProperty reads the path of an attribute. Those that no request has yet,
// and those that are no single value, are refused: a rule would never apply.
func readProperty(r *reader, v value, k *KeyPart) {
	k.Path = r.segments(v)
	if len(k.Path) == 0 {
		return
	}
	switch k.Path[0] {
	// route_name is empty until the router has seen the request.
	case "response", "upstream", "upstream_host_metadata", "route_name":
		r.fail(v, PropertyTooEarly, k.Path[0])
	}
	if holdsMany(k.Path) {
		r.fail(v, PropertyNoValue)
	}
}

// holdsMany reports whether an attribute is known to be no single value.
func holdsMany(path []string) bool {
	switch path[0] {
	case "request":
		return len(path) == 1 || len(path) == 2 && path[1] == "headers"
	case "connection", "source", "destination", "filter_state", "xds", "node":
		return len(path) == 1
	case "metadata":
		return len(path) < 4
	}
	return false
}

// readFirstOf reads parts; the first that a request has counts.
func readFirstOf(r *reader, v value, k *KeyPart) {
	if !r.items(v) {
		return
	}
	seen := map[string]value{}
	for i := range v.Items {
		at := v.item(i)
		var of KeyPart
		before := r.count()
		r.keyPart(r, at, &of)
		if r.count() > before {
			continue
		}
		label := of.Label()
		switch {
		case of.Kind == KeyFirstOf:
			r.fail(at, FirstOfNested)
		case seen[label].Node != nil:
			r.failTwice(at, FirstOfTwice, seen[label], label)
		}
		seen[label] = at
		k.Of = append(k.Of, of)
	}
}

// What follows is the only place that says which values are credentials. Their value is
// never printed, neither in a report nor in a log.
var (
	// credentialWords are in the names of headers, parameters and attributes whose value
	// is a secret of the client.
	credentialWords = []string{
		"auth", "cookie", "key", "token", "secret", "passw", "passphrase", "session", "credential", "signature", "assertion",
	}
	// credentialNames are too short to look for within a name: they are whole words of one.
	credentialNames = []string{"sig", "sid", "pwd", "pass", "jwt", "code", "otp", "pin", "saml", "csrf", "xsrf"}
	// wholeRequests are attributes that have a query or all headers, so credentials may be
	// in them.
	wholeRequests = []string{"request", "request.headers", "request.query", "request.path"}
)

// IsCredential reports whether the value of a header, a parameter or an attribute of
// that name may be a secret of the client.
func IsCredential(name string) bool {
	name = strings.ToLower(name)
	switch name {
	case ":authority", "authority": // the host
		return false
	case ":path": // with its query
		return true
	}
	isWithin := func(word string) bool { return strings.Contains(name, word) }
	notLetter := func(c rune) bool { return c < 'a' || c > 'z' }
	isName := func(word string) bool { return slices.Contains(credentialNames, word) }
	words := strings.FieldsFunc(name, notLetter)
	return slices.ContainsFunc(credentialWords, isWithin) || slices.ContainsFunc(words, isName)
}

// HasCredential reports whether the value may be a secret of the client.
func (p *KeyPart) HasCredential() bool {
	switch p.Kind {
	case KeyCookie:
		return true
	case KeyHeader:
		return p.Scheme != "" || IsCredential(p.Name)
	case KeyQuery:
		return IsCredential(p.Name)
	case KeyProperty:
		attribute := strings.ToLower(strings.Join(p.Path, "."))
		return slices.Contains(wholeRequests, attribute) || IsCredential(p.Path[len(p.Path)-1])
	case KeyJWT:
		return IsCredential(p.Path[len(p.Path)-1])
	default:
		return slices.ContainsFunc(p.Of, func(of KeyPart) bool { return of.HasCredential() })
	}
}
