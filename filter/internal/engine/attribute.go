package engine

import (
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// attribute is what a part of a key reads of the proxy's attributes. What the
// proxy returns is bytes without a type: those that are no text are listed
// here, and metadata, whose values may be of any type, is read as the whole
// message that says it.
type attribute struct {
	number int      // of what is read; see request.attributeNumber
	kind   attrKind // how the bytes are read
	path   []string // of attrMetadata: the namespace, then names in it
}

type attrKind uint8

const (
	attrText     attrKind = iota // missing where empty: the proxy's word for none
	attrExact                    // text that may be empty
	attrNumber                   // 8 bytes, little endian
	attrBool                     // one byte
	attrMetadata                 // envoy.config.core.v3.Metadata
)

var attrKinds = map[string]attrKind{
	"source.port": attrNumber, "destination.port": attrNumber, "request.size": attrNumber,
	"request.total_size": attrNumber, "request.time": attrNumber, "connection.id": attrNumber, "connection_id": attrNumber,
	"listener_direction": attrNumber, "xds.listener_direction": attrNumber, "connection.mtls": attrBool,
}

// jwtNamespace is where jwt_authn puts what it has verified.
const jwtNamespace = "envoy.filters.http.jwt_authn"

func (r *request) compileAttribute(p *policy.KeyPart) attribute {
	path := p.Path
	switch p.Kind {
	case policy.KeyRoute:
		path = []string{"xds", "route_name"}
	case policy.KeyJWT:
		path = append([]string{"metadata", "filter_metadata", jwtNamespace, p.Name}, p.Path...)
	default: // a property: the path is its own
	}
	a := attribute{kind: attrKinds[strings.Join(path, ".")]}
	for i := range path {
		if path[i] == "filter_metadata" && (i == 1 || i == 2 && path[0] == "xds") && strings.HasSuffix(path[i-1], "metadata") {
			a.kind, a.path, path = attrMetadata, path[i+1:], path[:i]
			break
		}
	}
	if a.kind == attrText && path[0] == "request" {
		a.kind = attrExact
	}
	a.number = r.attributeNumber(strings.Join(path, "\x00"))
	return a
}

func (a *attribute) read(r *request) (string, bool) {
	value, present := r.attribute(a.number)
	if !present {
		return "", false
	}
	switch {
	case a.kind == attrMetadata:
		return metadataValue(value, a.path)
	case a.kind == attrNumber && len(value) == 8:
		return strconv.FormatInt(int64(binary.LittleEndian.Uint64([]byte(value))), 10), true
	case a.kind == attrBool && len(value) == 1 && value[0] <= 1:
		return strconv.FormatBool(value[0] == 1), true
	}
	return value, value != "" || a.kind == attrExact
}
