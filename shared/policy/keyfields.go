package policy

import (
	"strconv"
	"strings"
)

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
}

var clientIPFields = []field[KeyPart]{
	{
		name: "v4_prefix", shape: integer(0, 32), def: "32",
		doc: "Bits of an IPv4 address that count.",
		read: func(r *reader, v value, k *KeyPart) {
			n, _ := r.integer(v)
			k.V4Prefix = int(n)
		},
	},
	{
		name: "v6_prefix", shape: integer(0, 128), def: "64",
		doc: "Bits of an IPv6 address that count; one subscriber usually has 64.",
		read: func(r *reader, v value, k *KeyPart) {
			n, _ := r.integer(v)
			k.V6Prefix = int(n)
		},
	},
}

var keyPathFields = []field[KeyPart]{
	{
		name: "segment", shape: integer(1, 64), required: true,
		doc: "Which segment of the path, from 1.",
		read: func(r *reader, v value, k *KeyPart) {
			n, _ := r.integer(v)
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
	for i := range v.node.Items {
		var part KeyPart
		readKeyPart(r, v.item(i, objectOf("key")), &part)
		rule.Key = append(rule.Key, part)
	}
}

const keyHint = "write one such as {header: x-user-id}, client_ip, host, method or path"

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

// readBareKeyPart reads a part that needs nothing but its kind: "- host".
func readBareKeyPart(r *reader, v value, part *KeyPart) {
	switch s := v.node.Text; {
	case s == "client_ip", s == "host", s == "method":
		empty := &Node{Kind: Object, Line: v.node.Line, Column: v.node.Column}
		fields := []Field{{Name: s, Value: empty}}
		readObject(r, value{node: &Node{Kind: Object, Fields: fields}, path: v.path, shape: v.shape}, keyFields, part)
	case s == "path":
		*part = KeyPart{Kind: KeyPath}
	case s == "header":
		r.fail(v, "a header needs its name: write {header: x-user-id}")
	case isNotBuilt("key", s):
		r.fail(v, quote(s)+" is not built yet: remove it")
	default:
		message := "must be a part of a key, not " + quote(s)
		if near := nearest(s, names(keyFields)); near != "" {
			r.fail(v, message+": did you mean "+quote(near)+"?")
			return
		}
		r.fail(v, message+": "+keyHint)
	}
}

// KeyDefinition is the canonical text of what the rule's key is made of, the
// same for every way to write it. Names carry their length, so that no two
// definitions share a text. Counters are found by it: a change here loses them.
func (r *Rule) KeyDefinition() string {
	var b strings.Builder
	for i, part := range r.Key {
		if i > 0 {
			b.WriteByte(',')
		}
		switch part.Kind {
		case KeyHeader:
			b.WriteString("header:" + strconv.Itoa(len(part.Name)) + ":" + part.Name)
		case KeyClientIP:
			b.WriteString("client_ip:" + strconv.Itoa(part.V4Prefix) + ":" + strconv.Itoa(part.V6Prefix))
		case KeyHost:
			b.WriteString("host")
		case KeyMethod:
			b.WriteString("method")
		case KeyPath:
			b.WriteString("path:" + strconv.Itoa(part.Segment))
		}
	}
	return b.String()
}
