// Package request reads what rules need of a request: headers, path, query, cookies, the
// client's address, attributes of the proxy.
//
// Its invariant: a value is read at most once a request, and only when a rule asks for it,
// because each value costs a call into the proxy. Of rules, it knows only the names that they
// ask for. It must never import them.
//
// This file has headers and the client's address, names.go host and path, parameter.go and cookie.go the
// query and cookies, attribute.go attributes, and metadata.go those that are protocol buffers.
package request

import (
	"net/netip"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/origin"
)

// Source is the proxy that has the request. What it returns is valid until the
// request's callback ends.
type Source interface {
	// Header returns the first value of a request header, pseudo headers
	// (":path") included; names are lower case.
	Header(name string) (value string, present bool)
	// JoinedHeader returns all values of a request header, joined with ",".
	JoinedHeader(name string) (value string, present bool)
	// AppendHeader appends each value of a request header.
	AppendHeader(values []string, name string) []string
	// HasBody reports whether a body may follow the headers.
	HasBody() bool
	// ClientAddress returns the trusted address of the client, with port.
	ClientAddress() (address string, present bool)
	// Attribute returns an attribute of the request, as bytes whose type is the
	// attribute's own; the segments of its path are joined by zero bytes.
	Attribute(path string) (value string, present bool)
}

// Request is the request that is being decided. Rules ask for a header, parameter, cookie or
// attribute by a number, which they got for its name when they were compiled.
type Request struct {
	source  Source
	current uint64 // number of the request; values read for another one do not count
	method  lazy
	path    lazy       // without query, fragment and parameters
	host    lazy       // without user and port
	client  lazy       // its address as the proxy writes it
	address netip.Addr // of client

	hosts []string // all names that servers may read in the authority, host first
	paths []string // all paths that servers may read in the target, path first
	query string   // of the target

	headers       []named        // the first value of each
	joinedHeaders []joinedHeader // all values of the same headers
	parameters    []named
	cookies       []named
	attributes    []named

	cookieHeader int // the number of the header "cookie", if a rule asks for a cookie
}

// lazy is a value that is read when it is first asked for.
type lazy struct {
	readFor  uint64
	present  bool
	doubtful bool // some upstream may read another value
	value    string
}

type named struct {
	name string
	lazy
}

// joinedHeader has all values of a header: as one text and, if that was asked for, each by itself.
type joinedHeader struct {
	named
	splitFor uint64 // the request whose values are here
	values   []string
}

// New returns a Request without names.
func New(source Source) Request { return Request{source: source} }

// Begin forgets all values: the source has another request now.
func (r *Request) Begin() {
	r.current++
	r.hosts, r.paths = r.hosts[:0], r.paths[:0]
}

// IsDoubtful reports whether servers may read different hosts or different paths in the
// request. It looks only at what has been read.
func (r *Request) IsDoubtful() bool { return len(r.hosts) > 1 || len(r.paths) > 1 }

// knows reports whether l has been read.
func (r *Request) knows(l *lazy) bool { return l.readFor == r.current }

// KnowsMethod reports whether the method has been read.
func (r *Request) KnowsMethod() bool { return r.knows(&r.method) }

// KnowsHost reports whether the host has been read.
func (r *Request) KnowsHost() bool { return r.knows(&r.host) }

// KnowsPath reports whether the path has been read.
func (r *Request) KnowsPath() bool { return r.knows(&r.path) }

// KnowsClient reports whether the client's address has been read.
func (r *Request) KnowsClient() bool { return r.knows(&r.client) }

// KnowsJoinedHeader reports whether all values of a header have been read.
func (r *Request) KnowsJoinedHeader(number int) bool { return r.knows(&r.joinedHeaders[number].lazy) }

func (r *Request) set(l *lazy, value string, present bool) {
	l.readFor = r.current
	l.value, l.present = value, present
}

// HeaderNumber returns the number of a header.
func (r *Request) HeaderNumber(name string) int {
	n := numberIn(&r.headers, name)
	if n == len(r.joinedHeaders) {
		r.joinedHeaders = append(r.joinedHeaders, joinedHeader{named: named{name: name}})
	}
	return n
}

// CookieNumber returns the number of a cookie.
func (r *Request) CookieNumber(name string) int {
	r.cookieHeader = r.HeaderNumber("cookie")
	return numberIn(&r.cookies, name)
}

func numberIn(list *[]named, name string) int {
	for i := range *list {
		if (*list)[i].name == name {
			return i
		}
	}
	*list = append(*list, named{name: name})
	return len(*list) - 1
}

// Header returns the first value of a header, without the blanks around it.
func (r *Request) Header(number int) (string, bool) {
	l := &r.headers[number]
	if !r.knows(&l.lazy) {
		value, present := r.source.Header(l.name)
		value = trimmed(value)
		r.set(&l.lazy, value, present)
	}
	return l.value, l.present
}

// JoinedHeader returns all values of a header, each without the blanks around it, joined with ",".
// If there is a comma and a blank, it asks the proxy for each value: the blank may be inside a
// value.
func (r *Request) JoinedHeader(number int) (string, bool) {
	l := &r.joinedHeaders[number]
	if !r.knows(&l.lazy) {
		value, present := r.source.JoinedHeader(l.name)
		value = trimmed(value)
		r.set(&l.lazy, value, present)
		if strings.IndexByte(value, ',') >= 0 && strings.ContainsAny(value, blanks) {
			r.splitHeader(number)
			if len(l.values) > 1 {
				l.value = strings.Join(l.values, ",")
			}
		}
	}
	return l.value, l.present
}

// blanks around a header's value do not belong to it. Envoy drops them over HTTP/1, and
// leaves that to the upstream over HTTP/2.
const blanks = " \t"

// trimmed looks at both ends first: two bytes nearly always show that there is nothing to cut.
func trimmed(value string) string {
	if value != "" && (value[0] <= ' ' || value[len(value)-1] <= ' ') {
		return strings.Trim(value, blanks)
	}
	return value
}

// Values returns each value of a header that is present, without the blanks around it. It
// returns none if the call into the proxy fails. A header with one value costs no more than
// Header does.
func (r *Request) Values(number int) []string {
	r.JoinedHeader(number)
	l := &r.joinedHeaders[number]
	if l.splitFor != r.current {
		r.splitHeader(number)
	}
	return l.values
}

// splitHeader reads each value of a header. All of them have been read as one text, which shows
// whether there are others than the first.
func (r *Request) splitHeader(number int) {
	l := &r.joinedHeaders[number]
	l.splitFor = r.current
	if first, _ := r.Header(number); len(first) == len(l.value) {
		l.values = append(l.values[:0], l.value)
		return
	}
	l.values = r.source.AppendHeader(l.values[:0], l.name)
	for i := range l.values {
		l.values[i] = trimmed(l.values[i])
	}
}

// HasBody reports whether a body may follow the headers.
func (r *Request) HasBody() bool { return r.source.HasBody() }

// Method returns the request's method as the client spelled it.
func (r *Request) Method() (string, bool) {
	if !r.knows(&r.method) {
		value, present := r.source.Header(":method")
		r.set(&r.method, value, present)
	}
	return r.method.value, r.method.present
}

// Client returns the trusted address of the client. There is none on a Unix socket.
func (r *Request) Client() (netip.Addr, bool) {
	if !r.knows(&r.client) {
		value, present := r.source.ClientAddress()
		r.address = netip.Addr{}
		if present {
			r.address = origin.Address(value)
		}
		r.set(&r.client, value, r.address.IsValid())
	}
	return r.address, r.client.present
}

// ClientText returns Client as text. An IPv4 address has one spelling, so the proxy's text is
// taken, without the port.
func (r *Request) ClientText() (string, bool) {
	ip, present := r.Client()
	if text, _, _ := strings.Cut(r.client.value, ":"); present && strings.IndexByte(text, '.') > 0 {
		return text, true
	}
	return ip.String(), present
}
