package policy

import (
	"slices"
	"strings"
)

// keyObject is one item of "key". Its fields are the kinds.
var keyObject = oneOf(newObject("key", []field[KeyPart]{
	part(KeyHeader, choice("header", tokenShape, objectOf("header")), readKeyHeader),
	partObject(KeyClientIP, clientIPObject),
	partObject(KeyHost, hostObject),
	partObject(KeyMethod, methodObject),
	part(KeyPath, choice("path", word("full"), objectOf("path")), readKeyPath),
	part(KeyQuery, textShape, func(r *reader, v value, k *KeyPart) { k.Name = r.shortText(v) }),
	part(KeyCookie, textShape, func(r *reader, v value, k *KeyPart) { k.Name = r.token(v, BadCookieName) }),
	partObject(KeyRoute, routeObject),
	partObject(KeyJWT, jwtObject),
	part(KeyProperty, segments, readProperty),
	part(KeyFirstOf, listOf(objectOf("key"), 2, MaxKeyParts), readFirstOf),
	partObject(KeyAddress, addressObject),
}))

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
		{"name", required(tokenShape), "", func(r *reader, v value, k *KeyPart) { k.Name = r.headerName(v) }},
		{"scheme", tokenShape, "", func(r *reader, v value, k *KeyPart) {
			k.Scheme = strings.ToLower(r.token(v, BadScheme))
		}},
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
		{"header", required(tokenShape), "", func(r *reader, v value, k *KeyPart) { k.Name = r.headerName(v) }},
	}, prefixFields...))
	keyPathObject = newObject("path", []field[KeyPart]{
		{"segment", required(integer(1, 64)), "", func(r *reader, v value, k *KeyPart) {
			k.Segment = int(r.integer(v)) // fits: at most 64
		}},
	})
	jwtObject = newObject("jwt", []field[KeyPart]{
		{"provider", required(textShape), "", func(r *reader, v value, k *KeyPart) { k.Name = r.shortText(v) }},
		{"claim", required(choice("claim", textShape, segments)), "", func(r *reader, v value, k *KeyPart) {
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
		path = append(path, r.shortText(value{v.Item(i), &textShape}))
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
