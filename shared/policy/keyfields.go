package policy

// keyFields is one item of "key", of which it has exactly one.
var keyFields = []field[KeyPart]{
	{
		name: "header", shape: shape{form: formText},
		doc: "Value of this request header.",
		read: func(r *reader, v value, k *KeyPart) {
			*k = KeyPart{Kind: KeyHeader, Name: r.headerNameAt(v)}
		},
	},
	{
		name: "client_ip", shape: objectOf("client_ip"),
		doc: "The client's address as Envoy trusts it, cut to a prefix.",
		read: func(r *reader, v value, k *KeyPart) {
			*k = KeyPart{Kind: KeyClientIP}
			readObject(r, v, clientIPFields, k)
		},
	},
	{
		name: "host", shape: objectOf("host"),
		doc: "The host, without port.",
		read: func(r *reader, v value, k *KeyPart) {
			*k = KeyPart{Kind: KeyHost}
			readObject(r, v, nil, k)
		},
	},
	{
		name: "method", shape: objectOf("method"),
		doc: "The method.",
		read: func(r *reader, v value, k *KeyPart) {
			*k = KeyPart{Kind: KeyMethod}
			readObject(r, v, nil, k)
		},
	},
	{
		name: "path", shape: choice("path", `"full" or an object such as {segment: 1}`),
		doc:  `The path without query: "full", or {segment: n} for its n-th segment from 1.`,
		read: readKeyPath,
	},
	{
		name: "query", shape: shape{form: formText},
		doc: "Value of this query parameter, the first if it is repeated, with escapes and + resolved.",
		read: func(r *reader, v value, k *KeyPart) {
			*k = KeyPart{Kind: KeyQuery, Name: r.shortText(v)}
		},
	},
	{
		name: "cookie", shape: shape{form: formText},
		doc: "Value of this cookie, the first if it is repeated, without quotes around it.",
		read: func(r *reader, v value, k *KeyPart) {
			*k = KeyPart{Kind: KeyCookie, Name: r.cookieName(v)}
		},
	},
	{
		name: "route", shape: objectOf("route"),
		doc: "The name of the route that Envoy chose.",
		read: func(r *reader, v value, k *KeyPart) {
			*k = KeyPart{Kind: KeyRoute}
			readObject(r, v, nil, k)
		},
	},
	{
		name: "jwt", shape: objectOf("jwt"),
		doc: "A claim of the token that Envoy's jwt_authn filter has verified: a text, a number, true or false.",
		read: func(r *reader, v value, k *KeyPart) {
			*k = KeyPart{Kind: KeyJWT}
			readObject(r, v, jwtFields, k)
		},
	},
	{
		name: "property", shape: listOf("segment"),
		doc: `An attribute of Envoy, by the segments of its path: ["connection", "uri_san_peer_certificate"].`,
		read: func(r *reader, v value, k *KeyPart) {
			*k = KeyPart{Kind: KeyProperty, Path: r.property(v)}
		},
	},
	{
		name: "first_of", shape: listOf("key"),
		doc:  "The first of these parts that the request has. It is a key of its own: a header never counts as an address of the same text.",
		read: readFirstOf,
	},
}

var clientIPFields = []field[KeyPart]{
	{
		name: "v4_prefix", shape: integer(0, 32), def: "32",
		doc: "Bits of an IPv4 address that count.",
		read: func(r *reader, v value, k *KeyPart) {
			n := r.integer(v)
			k.V4Prefix = int(n)
		},
	},
	{
		name: "v6_prefix", shape: integer(0, 128), def: "64",
		doc: "Bits of an IPv6 address that count; one subscriber usually has 64.",
		read: func(r *reader, v value, k *KeyPart) {
			n := r.integer(v)
			k.V6Prefix = int(n)
		},
	},
}

var keyPathFields = []field[KeyPart]{
	{
		name: "segment", shape: integer(1, 64), required: true,
		doc: "Which segment of the path, from 1.",
		read: func(r *reader, v value, k *KeyPart) {
			n := r.integer(v)
			k.Segment = int(n)
		},
	},
}

func readKeyPath(r *reader, v value, k *KeyPart) {
	*k = KeyPart{Kind: KeyPath}
	switch {
	case v.node.Kind == Object:
		readObject(r, v, keyPathFields, k)
	case v.node.Kind != String || v.node.Text != "full":
		r.mismatch(v)
	}
}

func readKey(r *reader, v value, rule *Rule) {
	if v.node.Kind != List {
		r.rule.anyKey = true
		r.mismatch(v)
		return
	}
	if count := len(v.node.Items); count > MaxKeyParts {
		r.rule.anyKey = true
		r.fail(v, "has "+itoa(int64(count))+" parts, the most is "+itoa(MaxKeyParts))
		return
	}
	if len(v.node.Items) > 0 {
		rule.Key = make([]KeyPart, len(v.node.Items))
	}
	for i := range rule.Key {
		readKeyPart(r, v.item(i, objectOf("key")), &rule.Key[i])
	}
}

const keyHint = "write one such as {header: x-user-id}, client_ip, host, method, path or route"

func readKeyPart(r *reader, v value, part *KeyPart) {
	switch v.node.Kind {
	case Object:
		if len(v.node.Fields) == 0 {
			r.fail(v, "is empty: "+keyHint)
			return
		}
		readObject(r, v, keyFields, part)
		if known := len(v.node.Fields); known > 1 {
			r.fail(v, "must have one field, not "+itoa(int64(known))+": make each part an item of its own")
		}
	case String:
		readBareKeyPart(r, v, part)
	default:
		r.fail(v, "must be a part of a key, not "+describe(v.node)+": "+keyHint)
	}
}

// bareHints are the kinds that do not stand alone.
var bareHints = map[string]string{
	"header": "{header: x-user-id}", "query": "{query: user}", "cookie": "{cookie: session}",
	"jwt": "{jwt: {provider: p, claim: sub}}", "property": `{property: ["connection", "mtls"]}`,
	"first_of": "{first_of: [{header: x-api-key}, client_ip]}",
}

// readBareKeyPart reads a part that needs nothing but its kind: "- host".
func readBareKeyPart(r *reader, v value, part *KeyPart) {
	switch s := v.node.Text; {
	case s == "client_ip", s == "host", s == "method", s == "route":
		written := &struct { // the part as if it were {client_ip: {}}
			object, empty Node
			fields        [1]Field
		}{empty: Node{Kind: Object, Line: v.node.Line, Column: v.node.Column}}
		written.fields[0] = Field{Name: s, Value: &written.empty}
		written.object = Node{Kind: Object, Fields: written.fields[:]}
		readObject(r, value{node: &written.object, at: v.at, shape: v.shape}, keyFields, part)
	case s == "path":
		*part = KeyPart{Kind: KeyPath}
	case bareHints[s] != "":
		r.fail(v, "needs more than the word "+quote(s)+": write "+bareHints[s])
	case isNotBuilt("key", s):
		r.fail(v, quote(s)+" is not built yet: remove it")
	default:
		message := "must be a part of a key, not " + quote(s)
		if near := likely(s, names(keyFields)); near != "" {
			r.fail(v, message+": did you mean "+quote(near)+"?")
			return
		}
		r.fail(v, message+": "+keyHint)
	}
}
