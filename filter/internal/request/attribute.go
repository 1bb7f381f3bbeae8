package request

import (
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Attribute is an attribute of the proxy that a key part reads. The proxy returns bytes
// without a type: attrKinds lists the attributes that are not text. Values in metadata may be
// of any type, so the whole message is read, which has their types.
type Attribute struct {
	number int      // in Request.attributes; of attrHeader, the header's
	kind   attrKind // how the bytes are read
	path   []string // of attrMetadata: the namespace, then names in it
}

type attrKind uint8

const (
	attrText     attrKind = iota // empty = the proxy has none
	attrExact                    // text of the request, which may be empty
	attrHeader                   // all values of a request header
	attrNumber                   // 8 bytes, little endian
	attrBool                     // one byte
	attrMetadata                 // envoy.config.core.v3.Metadata
)

var attrKinds = map[string]attrKind{
	"source.port": attrNumber, "destination.port": attrNumber, "request.size": attrNumber,
	"request.total_size": attrNumber, "request.time": attrNumber, "connection.id": attrNumber, "connection_id": attrNumber,
	"listener_direction": attrNumber, "xds.listener_direction": attrNumber, "connection.mtls": attrBool,
}

// jwtNamespace is where Envoy's jwt_authn filter puts a verified token.
const jwtNamespace = "envoy.filters.http.jwt_authn"

// CompileAttribute compiles a key part of the kinds route, jwt and property.
func (r *Request) CompileAttribute(p *policy.KeyPart) Attribute {
	path := p.Path
	switch p.Kind {
	case policy.KeyRoute:
		path = []string{"xds", "route_name"}
	case policy.KeyJWT:
		path = append([]string{"metadata", "filter_metadata", jwtNamespace, p.Name}, p.Path...)
	default: // a property has its path
	}
	if len(path) == 3 && path[0] == "request" && path[1] == "headers" {
		return Attribute{kind: attrHeader, number: r.HeaderNumber(strings.ToLower(path[2]))}
	}
	a := Attribute{kind: attrKinds[strings.Join(path, ".")]}
	if message, in, ok := cutMetadata(path); ok {
		a.kind, a.path = attrMetadata, in
		path = message
	}
	if a.kind == attrText && path[0] == "request" {
		a.kind = attrExact
	}
	a.number = numberIn(&r.attributes, strings.Join(path, "\x00"))
	return a
}

// cutMetadata cuts a path into that of a Metadata message and what follows in its filter_metadata:
// metadata.filter_metadata.NAMESPACE.KEY, or likewise xds.route_metadata.filter_metadata. ok is
// false if the path leads to no such message.
func cutMetadata(path []string) (message, in []string, ok bool) {
	at := 1
	if path[0] == "xds" {
		at = 2
	}
	if len(path) <= at || path[at] != "filter_metadata" || !strings.HasSuffix(path[at-1], "metadata") {
		return nil, nil, false
	}
	return path[:at], path[at+1:], true
}

// Read returns the attribute as text.
func (a *Attribute) Read(r *Request) (string, bool) {
	if a.kind == attrHeader {
		return r.JoinedHeader(a.number)
	}
	l := &r.attributes[a.number]
	if !r.knows(&l.lazy) {
		value, present := r.source.Attribute(l.name)
		r.set(&l.lazy, value, present)
	}
	if !l.present {
		return "", false
	}
	value := l.value
	switch {
	case a.kind == attrMetadata:
		return metadataValue(value, a.path)
	case a.kind == attrExact:
		return trimmed(value), true // it may be a header's, as request.useragent
	case a.kind == attrNumber && len(value) == 8:
		return strconv.FormatInt(int64(binary.LittleEndian.Uint64([]byte(value))), 10), true
	case a.kind == attrBool && len(value) == 1 && value[0] <= 1:
		return strconv.FormatBool(value[0] == 1), true
	}
	return value, value != ""
}
