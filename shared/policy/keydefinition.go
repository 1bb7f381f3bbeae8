package policy

import (
	"strconv"
	"strings"
)

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
	case KeyHeader:
		return appendSized(append(b, "header"...), p.Name)
	case KeyClientIP:
		b = strconv.AppendInt(append(b, "client_ip:"...), int64(p.V4Prefix), 10)
		return strconv.AppendInt(append(b, ':'), int64(p.V6Prefix), 10)
	case KeyHost:
		return append(b, "host"...)
	case KeyMethod:
		return append(b, "method"...)
	case KeyPath:
		return strconv.AppendInt(append(b, "path:"...), int64(p.Segment), 10)
	case KeyQuery:
		return appendSized(append(b, "query"...), p.Name)
	case KeyCookie:
		return appendSized(append(b, "cookie"...), p.Name)
	case KeyRoute:
		return append(b, "route"...)
	case KeyJWT:
		return appendPath(appendSized(append(b, "jwt"...), p.Name), p.Path)
	case KeyProperty:
		return appendPath(append(b, "property"...), p.Path)
	default: // KeyFirstOf
		b = strconv.AppendInt(append(b, "first_of:"...), int64(len(p.Of)), 10)
		return append(appendDefinitions(append(b, '('), p.Of), ')')
	}
}

// appendSized writes ":3:abc".
func appendSized(b []byte, text string) []byte {
	b = strconv.AppendInt(append(b, ':'), int64(len(text)), 10)
	return append(append(b, ':'), text...)
}

// appendPath writes ":2:1:a:1:b", the number of texts before them.
func appendPath(b []byte, path []string) []byte {
	b = strconv.AppendInt(append(b, ':'), int64(len(path)), 10)
	for _, text := range path {
		b = appendSized(b, text)
	}
	return b
}

// Label names the part in words: "header:x-user-id", "client_ip". Among the
// parts of one first_of all differ; there the text of a key is LABEL=VALUE, so
// that one part's value is never taken for another's.
func (p *KeyPart) Label() string {
	switch p.Kind {
	case KeyHeader:
		return "header:" + p.Name
	case KeyClientIP:
		return "client_ip"
	case KeyHost:
		return "host"
	case KeyMethod:
		return "method"
	case KeyPath:
		if p.Segment > 0 {
			return "path:" + strconv.Itoa(p.Segment)
		}
		return "path"
	case KeyQuery:
		return "query:" + p.Name
	case KeyCookie:
		return "cookie:" + p.Name
	case KeyRoute:
		return "route"
	case KeyJWT:
		return "jwt:" + p.Name + ":" + strings.Join(p.Path, ".")
	case KeyProperty:
		return "property:" + strings.Join(p.Path, ".")
	default:
		return "first_of"
	}
}
