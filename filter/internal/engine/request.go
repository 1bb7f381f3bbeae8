package engine

import (
	"net/netip"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// request reads the request under decision, each part at most once and only
// when a rule asks for it: every value costs a call into the proxy.
type request struct {
	host    Host
	turn    uint64 // counts requests; what was read in another turn is not known
	method  lazy
	target  lazy
	name    lazy
	client  lazy
	address netip.Addr // of client

	path, query string // of target

	// What rules ask for by name is cached by a number, which they are given
	// when they are compiled.
	first      []named
	joined     []joined
	parameters []parameter
	cookies    []named
	attributes []named

	cookieHeader int  // the number of the header "cookie", where a rule asks for one
	tooLong      bool // a value was too long for an expression of the rule that is asked
}

type lazy struct {
	turn    uint64
	present bool
	value   string
}

type named struct {
	name string
	lazy
}

// joined is all values of a header.
type joined struct {
	named
	apart  uint64 // the turn in which values were read
	values []string
}

type parameter struct {
	named
	repeated bool
}

func (r *request) begin() { r.turn++ }

// apart returns a request of another host that shares nothing with r.
func (r *request) apart(host Host) request {
	return request{
		host: host, turn: 1, cookieHeader: r.cookieHeader,
		first: unread(r.first), joined: unreadJoined(r.joined), cookies: unread(r.cookies), attributes: unread(r.attributes),
		parameters: unreadParameters(r.parameters),
	}
}

func unread(list []named) []named {
	fresh := make([]named, len(list))
	for i := range list {
		fresh[i].name = list[i].name
	}
	return fresh
}

func unreadJoined(list []joined) []joined {
	fresh := make([]joined, len(list))
	for i := range list {
		fresh[i].name = list[i].name
	}
	return fresh
}

func unreadParameters(list []parameter) []parameter {
	fresh := make([]parameter, len(list))
	for i := range list {
		fresh[i].name = list[i].name
	}
	return fresh
}

// knows reports whether l has been read.
func (r *request) knows(l *lazy) bool { return l.turn == r.turn }

func (r *request) set(l *lazy, value string, present bool) {
	l.turn, l.value, l.present = r.turn, value, present
}

// number returns the number of a header, giving it one.
func (r *request) number(header string) int {
	n := numberIn(&r.first, header)
	if n == len(r.joined) {
		r.joined = append(r.joined, joined{named: named{name: header}})
	}
	return n
}

func (r *request) cookieNumber(name string) int { return numberIn(&r.cookies, name) }

func (r *request) attributeNumber(path string) int { return numberIn(&r.attributes, path) }

func numberIn(list *[]named, name string) int {
	for i := range *list {
		if (*list)[i].name == name {
			return i
		}
	}
	*list = append(*list, named{name: name})
	return len(*list) - 1
}

func (r *request) parameterNumber(name string) int {
	for i := range r.parameters {
		if r.parameters[i].name == name {
			return i
		}
	}
	r.parameters = append(r.parameters, parameter{named: named{name: name}})
	return len(r.parameters) - 1
}

func (r *request) header(number int) (string, bool) {
	l := &r.first[number]
	if !r.knows(&l.lazy) {
		value, present := r.host.Header(l.name)
		r.set(&l.lazy, value, present)
	}
	return l.value, l.present
}

func (r *request) joinedHeader(number int) (string, bool) {
	l := &r.joined[number]
	if !r.knows(&l.lazy) {
		value, present := r.host.JoinedHeader(l.name)
		r.set(&l.lazy, value, present)
	}
	return l.value, l.present
}

// values are those of a header that is there, told apart. It takes no call more
// than that for the first of them where there is no other.
func (r *request) values(number int) []string {
	l := &r.joined[number]
	if l.apart == r.turn {
		return l.values
	}
	l.apart, l.values = r.turn, l.values[:0]
	all, _ := r.joinedHeader(number)
	if first, _ := r.header(number); len(first) == len(all) {
		l.values = append(l.values, all)
	} else {
		l.values = r.host.AppendHeader(l.values, l.name)
	}
	return l.values
}

func (r *request) attribute(number int) (string, bool) {
	l := &r.attributes[number]
	if !r.knows(&l.lazy) {
		value, present := r.host.Attribute(l.name)
		r.set(&l.lazy, value, present)
	}
	return l.value, l.present
}

func (r *request) Method() (string, bool) {
	if !r.knows(&r.method) {
		value, present := r.host.Header(":method")
		r.set(&r.method, value, present)
	}
	return r.method.value, r.method.present
}

// readTarget splits the request's target, as the proxy normalised it, into
// path and query. Escapes in the path are resolved, so that a path has one
// spelling: the proxy leaves those of characters that need none in a path,
// such as %3A.
func (r *request) readTarget() {
	if r.knows(&r.target) {
		return
	}
	value, present := r.host.Header(":path")
	r.set(&r.target, value, present)
	value, _, _ = strings.Cut(value, "#")
	value, r.query, _ = strings.Cut(value, "?")
	r.path = policy.Unescape(value)
}

// Path is the path without query and fragment.
func (r *request) Path() (string, bool) {
	r.readTarget()
	return r.path, r.target.present
}

// parameter returns the first value of a query parameter, and whether there
// are more.
func (r *request) parameter(number int) (value string, present, repeated bool) {
	p := &r.parameters[number]
	if !r.knows(&p.lazy) {
		r.readTarget()
		value, count := lookUp(r.query, p.name)
		r.set(&p.lazy, value, count > 0)
		p.repeated = count > 1
	}
	return p.value, p.present, p.repeated
}

// lookUp returns the first value of a query's parameter and how often it is
// there. Without "=" it is there and empty.
func lookUp(query, name string) (first string, count int) {
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		key, value, _ := strings.Cut(pair, "=")
		if policy.UnescapeQuery(key) != name {
			continue
		}
		if count++; count == 1 {
			first = policy.UnescapeQuery(value)
		}
	}
	return first, count
}

// Host is the authority without port and user, as policy.CanonicalHost spells it.
func (r *request) Host() (string, bool) {
	if !r.knows(&r.name) {
		value, present := r.host.Header(":authority")
		host := value[strings.LastIndexByte(value, '@')+1:]
		r.set(&r.name, policy.CanonicalHost(withoutPort(host)), present)
	}
	return r.name.value, r.name.present
}

// withoutPort cuts the port off an authority, "[::1]:80" included.
func withoutPort(authority string) string {
	colon := strings.LastIndexByte(authority, ':')
	if colon < 0 || colon < strings.LastIndexByte(authority, ']') {
		return authority
	}
	for i := colon + 1; i < len(authority); i++ {
		if authority[i] < '0' || authority[i] > '9' {
			return authority
		}
	}
	return authority[:colon]
}

// Client is the trusted address of the client; absent on a Unix socket.
func (r *request) Client() (netip.Addr, bool) {
	if !r.knows(&r.client) {
		value, present := r.host.ClientAddress()
		r.address = netip.Addr{}
		if present {
			r.address = addressOf(value)
		}
		r.set(&r.client, value, r.address.IsValid())
	}
	return r.address, r.client.present
}

// addressOf reads an address with or without port; one mapped into IPv6 is an
// IPv4 address.
func addressOf(text string) netip.Addr {
	end, err := netip.ParseAddrPort(text)
	ip := end.Addr()
	if err != nil {
		if ip, err = netip.ParseAddr(text); err != nil {
			return netip.Addr{} // a pipe: it has no address
		}
	}
	return ip.Unmap().WithZone("")
}
