// Package request reads what rules ask of one request: headers, path, query,
// cookies, the client's address, attributes of the proxy.
//
// Its invariant: a value is read at most once a request, and only when a rule
// asks for it, because every value costs a call into the proxy. It knows
// nothing of rules beyond the names that they ask for.
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

// Request is the request under decision. Rules ask for a header, parameter,
// cookie or attribute by the number that they got for its name when they were
// compiled.
type Request struct {
	// TooLong says that a value was too long for a regular expression. The
	// pattern sets it, the engine clears it before each rule.
	TooLong bool

	source  Source
	current uint64 // counts requests; what was read for another one is not known
	method  lazy
	target  lazy       // its path
	name    lazy       // in the authority
	client  lazy       // its address as the proxy writes it
	address netip.Addr // of client

	hosts []string // what servers may take the authority for, first name
	paths []string // what they may take the target's path for, first target
	query string   // of the target

	first      []named
	joined     []joined
	parameters []named
	cookies    []named
	attributes []named

	cookieHeader int // the number of the header "cookie", where a rule asks for a cookie
}

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

// joined is all values of a header.
type joined struct {
	named
	split  uint64 // the request for which values were read
	values []string
}

// New returns a Request without names.
func New(source Source) Request { return Request{source: source} }

// Begin forgets what was read: the source is at another request.
func (r *Request) Begin() {
	r.current++
	r.hosts, r.paths = r.hosts[:0], r.paths[:0]
}

// IsDoubtful reports whether servers may take the host or the path, as far as they have
// been read, for different ones.
func (r *Request) IsDoubtful() bool { return len(r.hosts) > 1 || len(r.paths) > 1 }

// knows reports whether l has been read.
func (r *Request) knows(l *lazy) bool { return l.readFor == r.current }

// KnowsMethod reports whether the method has been read.
func (r *Request) KnowsMethod() bool { return r.knows(&r.method) }

// KnowsHost reports whether the host has been read.
func (r *Request) KnowsHost() bool { return r.knows(&r.name) }

// KnowsPath reports whether the path has been read.
func (r *Request) KnowsPath() bool { return r.knows(&r.target) }

// KnowsClient reports whether the client's address has been read.
func (r *Request) KnowsClient() bool { return r.knows(&r.client) }

// KnowsJoinedHeader reports whether all values of a header have been read.
func (r *Request) KnowsJoinedHeader(number int) bool { return r.knows(&r.joined[number].lazy) }

func (r *Request) set(l *lazy, value string, present bool) {
	l.readFor, l.value, l.present = r.current, value, present
}

// HeaderNumber returns the number of a header.
func (r *Request) HeaderNumber(name string) int {
	n := numberIn(&r.first, name)
	if n == len(r.joined) {
		r.joined = append(r.joined, joined{named: named{name: name}})
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
	l := &r.first[number]
	if !r.knows(&l.lazy) {
		value, present := r.source.Header(l.name)
		value = trimmed(value)
		r.set(&l.lazy, value, present)
	}
	return l.value, l.present
}

// JoinedHeader returns all values of a header, each without the blanks around it,
// joined with ",". Where a comma and a blank leave open what is one value, the proxy
// is asked.
func (r *Request) JoinedHeader(number int) (string, bool) {
	l := &r.joined[number]
	if !r.knows(&l.lazy) {
		value, present := r.source.JoinedHeader(l.name)
		value = trimmed(value)
		r.set(&l.lazy, value, present)
		if strings.IndexByte(value, ',') >= 0 && strings.ContainsAny(value, blanks) {
			if values := r.Values(number); len(values) > 1 {
				l.value = strings.Join(values, ",")
			}
		}
	}
	return l.value, l.present
}

// blanks around a header's value are no part of it. Over HTTP/1 Envoy drops them, over
// HTTP/2 it leaves that to the upstream.
const blanks = " \t"

// trimmed looks at the ends first: nearly always two bytes say that nothing is to be cut.
func trimmed(value string) string {
	if value != "" && (value[0] <= ' ' || value[len(value)-1] <= ' ') {
		return strings.Trim(value, blanks)
	}
	return value
}

// Values returns each value of a header that is present, without the blanks around
// it; none where the call into the proxy fails. A header with one value costs no more
// than Header.
func (r *Request) Values(number int) []string {
	l := &r.joined[number]
	if l.split == r.current {
		return l.values
	}
	l.split, l.values = r.current, l.values[:0]
	all, _ := r.JoinedHeader(number)
	if first, _ := r.Header(number); len(first) == len(all) {
		l.values = append(l.values, all)
	} else {
		l.values = r.source.AppendHeader(l.values, l.name)
		for i := range l.values {
			l.values[i] = trimmed(l.values[i])
		}
	}
	return l.values
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

// Client returns the trusted address of the client; absent on a Unix socket.
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

// ClientText is Client as text. An IPv4 address has one spelling, so what the proxy wrote
// is taken, without the port.
func (r *Request) ClientText() (string, bool) {
	ip, present := r.Client()
	if text, _, _ := strings.Cut(r.client.value, ":"); present && strings.IndexByte(text, '.') > 0 {
		return text, true
	}
	return ip.String(), present
}
