package policy

import (
	"errors"
	"slices"
	"strings"
)

const (
	// MaxKeyParts is how many parts a key, and a first_of in it, may have.
	MaxKeyParts = 16
	// MaxPathSegments is how many segments an attribute's path, or a claim's,
	// may have.
	MaxPathSegments = 16
)

// keyObject is one item of "key", which has exactly one of the fields.
var keyObject = newObject("key", []field[KeyPart]{
	{"header", text, "", func(r *reader, v value, k *KeyPart) { *k = KeyPart{Kind: KeyHeader, Name: r.headerName(v)} }},
	{"client_ip", objectOf("client_ip"), "", part(KeyClientIP, clientIPObject)},
	{"host", objectOf("host"), "", part(KeyHost, hostObject)},
	{"method", objectOf("method"), "", part(KeyMethod, methodObject)},
	{"path", choice("path"), "", readKeyPath},
	{"query", text, "", func(r *reader, v value, k *KeyPart) { *k = KeyPart{Kind: KeyQuery, Name: r.shortText(v)} }},
	{"cookie", text, "", readCookie},
	{"route", objectOf("route"), "", part(KeyRoute, routeObject)},
	{"jwt", objectOf("jwt"), "", part(KeyJWT, jwtObject)},
	{"property", listOf("segment"), "", readProperty},
	{"first_of", listOf("key"), "", readFirstOf},
})

var (
	hostObject   = newObject[KeyPart]("host", nil)
	methodObject = newObject[KeyPart]("method", nil)
	routeObject  = newObject[KeyPart]("route", nil)

	clientIPObject = newObject("client_ip", []field[KeyPart]{
		{"v4_prefix", integer(0, 32), "32", func(r *reader, v value, k *KeyPart) { k.V4Prefix = int(r.integer(v)) }},  // fits: at most 32
		{"v6_prefix", integer(0, 128), "64", func(r *reader, v value, k *KeyPart) { k.V6Prefix = int(r.integer(v)) }}, // fits: at most 128
	})
	keyPathObject = newObject("path", []field[KeyPart]{
		{"segment", required(integer(1, 64)), "", func(r *reader, v value, k *KeyPart) { k.Segment = int(r.integer(v)) }}, // fits: at most 64
	})
	jwtObject = newObject("jwt", []field[KeyPart]{
		{"provider", required(text), "", func(r *reader, v value, k *KeyPart) { k.Name = r.shortText(v) }},
		{"claim", required(choice("claim")), "", func(r *reader, v value, k *KeyPart) {
			if v.node.Kind == String {
				k.Path = []string{r.shortText(v)}
			} else {
				k.Path = r.segments(v)
			}
		}},
	})
)

// part reads a key part whose value is an object.
func part(kind KeyKind, o *object[KeyPart]) func(*reader, value, *KeyPart) {
	return func(r *reader, v value, k *KeyPart) {
		*k = KeyPart{Kind: kind}
		readObject(r, v, o, k)
	}
}

func readKey(r *reader, v value, rule *Rule) {
	if !r.items(v, MaxKeyParts) {
		r.rule.anyKey = true
		return
	}
	if len(v.node.Items) > 0 {
		rule.Key = make([]KeyPart, len(v.node.Items))
	}
	for i := range rule.Key {
		readKeyPart(r, v.item(i, objectOf("key")), &rule.Key[i])
	}
}

func readKeyPart(r *reader, v value, k *KeyPart) {
	switch {
	case v.node.Kind == String:
		readBareKeyPart(r, v, k)
	case v.node.Kind != Object || len(v.node.Fields) == 0:
		r.fail(v, WrongValue)
	default:
		readObject(r, v, keyObject, k)
		if n := len(v.node.Fields); n > 1 {
			r.fail(v, ManyInKeyPart, itoa(int64(n)))
		}
	}
}

// readBareKeyPart reads a part that needs nothing but its kind: "- host".
func readBareKeyPart(r *reader, v value, k *KeyPart) {
	switch v.node.Text {
	case "client_ip":
		part(KeyClientIP, clientIPObject)(r, value{node: &Node{Kind: Object}}, k)
	case "host":
		k.Kind = KeyHost
	case "method":
		k.Kind = KeyMethod
	case "path":
		k.Kind = KeyPath
	case "route":
		k.Kind = KeyRoute
	default:
		r.fail(v, WrongValue)
	}
}

func readKeyPath(r *reader, v value, k *KeyPart) {
	*k = KeyPart{Kind: KeyPath}
	if v.node.Kind != String || v.node.Text != "full" {
		readObject(r, v, keyPathObject, k)
	}
}

func readCookie(r *reader, v value, k *KeyPart) {
	*k = KeyPart{Kind: KeyCookie, Name: r.shortText(v)}
	if k.Name != "" && !isToken(k.Name) {
		r.fail(v, BadCookieName)
	}
}

// segments reads a list of texts that is not empty.
func (r *reader) segments(v value) (path []string) {
	if !r.items(v, 0) {
		return nil
	}
	if n := len(v.node.Items); n == 0 || n > MaxPathSegments {
		r.fail(v, WrongCount, "1", itoa(MaxPathSegments))
		return nil
	}
	for i := range v.node.Items {
		path = append(path, r.shortText(v.item(i, text)))
	}
	return path
}

// readProperty reads the path of an attribute. Those that no request has yet,
// and those that are no single value, are refused: a rule would never apply.
func readProperty(r *reader, v value, k *KeyPart) {
	*k = KeyPart{Kind: KeyProperty, Path: r.segments(v)}
	if len(k.Path) == 0 {
		return
	}
	switch k.Path[0] {
	// route_name is empty until the router has seen the request.
	case "response", "upstream", "upstream_host_metadata", "route_name":
		r.fail(v, PropertyTooEarly, k.Path[0])
	}
	if holdsMany(k.Path) {
		r.fail(v, PropertyNoValue, k.Path[0])
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

// readFirstOf reads the parts of which the first present one counts.
func readFirstOf(r *reader, v value, k *KeyPart) {
	*k = KeyPart{Kind: KeyFirstOf}
	if !r.items(v, 0) {
		return
	}
	if n := len(v.node.Items); n < 2 || n > MaxKeyParts {
		r.fail(v, WrongCount, "2", itoa(MaxKeyParts))
		return
	}
	seen := map[string]string{}
	for i := range v.node.Items {
		at := v.item(i, objectOf("key"))
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
		case seen[label] != "":
			r.fail(at, FirstOfTwice, label, seen[label])
		}
		seen[label] = at.at.String()
		k.Of = append(k.Of, of)
	}
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
		b = parts[i].appendDefinition(b)
	}
	return b
}

func (p *KeyPart) appendDefinition(b []byte) []byte {
	switch p.Kind {
	case KeyHeader, KeyQuery, KeyCookie:
		return appendSized(append(b, keyWords[p.Kind]...), p.Name)
	case KeyClientIP:
		return appendNumber(appendNumber(append(b, "client_ip"...), p.V4Prefix), p.V6Prefix)
	case KeyPath:
		return appendNumber(append(b, "path"...), p.Segment)
	case KeyJWT:
		return appendPath(appendSized(append(b, "jwt"...), p.Name), p.Path)
	case KeyProperty:
		return appendPath(append(b, "property"...), p.Path)
	case KeyFirstOf:
		b = append(appendNumber(append(b, "first_of"...), len(p.Of)), '(')
		return append(appendDefinitions(b, p.Of), ')')
	default:
		return append(b, keyWords[p.Kind]...)
	}
}

// keyWords are what a policy calls the kinds.
var keyWords = [...]string{
	KeyHeader: "header", KeyClientIP: "client_ip", KeyHost: "host", KeyMethod: "method", KeyPath: "path",
	KeyQuery: "query", KeyCookie: "cookie", KeyRoute: "route", KeyJWT: "jwt", KeyProperty: "property",
	KeyFirstOf: "first_of",
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
	label := keyWords[p.Kind]
	switch p.Kind {
	case KeyHeader, KeyQuery, KeyCookie:
		return label + ":" + p.Name
	case KeyPath:
		if p.Segment > 0 {
			return label + ":" + itoa(int64(p.Segment))
		}
	case KeyJWT:
		return label + ":" + p.Name + ":" + strings.Join(p.Path, ".")
	case KeyProperty:
		return label + ":" + strings.Join(p.Path, ".")
	default: // the kind says all
	}
	return label
}

// Cut divides a key part as people write it. Label says which of its key parts a
// first_of is of; it is empty for every other kind.
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

// IsCredential reports whether a header's value is a secret of the client.
func IsCredential(header string) bool {
	return slices.Contains([]string{"authorization", "proxy-authorization", "cookie"}, header)
}

// HasCredential reports whether the value may be a secret of the client.
func (p *KeyPart) HasCredential() bool {
	for i := range p.Of {
		if p.Of[i].HasCredential() {
			return true
		}
	}
	return p.Kind == KeyCookie || p.Kind == KeyHeader && IsCredential(p.Name)
}
