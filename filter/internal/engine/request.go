package engine

import "strings"

// request reads the request under decision, each part at most once and only
// when a rule asks for it: every value costs a call into the proxy.
type request struct {
	host   Host
	method lazy
	path   lazy
	name   lazy
	client lazy
	// first and joined cache headers by their number, which rules are given when
	// they are compiled.
	names  []string
	first  []lazy
	joined []lazy
}

type lazy struct {
	read    bool
	present bool
	value   string
}

func (r *request) begin() {
	r.method, r.path, r.name, r.client = lazy{}, lazy{}, lazy{}, lazy{}
	clear(r.first)
	clear(r.joined)
}

// number returns the number of a header, giving it one.
func (r *request) number(header string) int {
	for i, have := range r.names {
		if have == header {
			return i
		}
	}
	r.names = append(r.names, header)
	r.first = append(r.first, lazy{})
	r.joined = append(r.joined, lazy{})
	return len(r.names) - 1
}

func (r *request) header(number int) (string, bool) {
	l := &r.first[number]
	if !l.read {
		l.value, l.present = r.host.Header(r.names[number])
		l.read = true
	}
	return l.value, l.present
}

func (r *request) joinedHeader(number int) (string, bool) {
	l := &r.joined[number]
	if !l.read {
		l.value, l.present = r.host.JoinedHeader(r.names[number])
		l.read = true
	}
	return l.value, l.present
}

func (r *request) Method() (string, bool) {
	if !r.method.read {
		r.method.value, r.method.present = r.host.Header(":method")
		r.method.read = true
	}
	return r.method.value, r.method.present
}

// Path is the path as the proxy normalised it, without query and fragment.
func (r *request) Path() (string, bool) {
	if !r.path.read {
		r.path.value, r.path.present = r.host.Header(":path")
		if end := strings.IndexAny(r.path.value, "?#"); end >= 0 {
			r.path.value = r.path.value[:end]
		}
		r.path.read = true
	}
	return r.path.value, r.path.present
}

// Host is the authority in lower case, without port.
func (r *request) Host() (string, bool) {
	if !r.name.read {
		value, present := r.host.Header(":authority")
		r.name = lazy{true, present, strings.ToLower(withoutPort(value))}
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

// Client is the trusted address of the client, with port.
func (r *request) Client() (string, bool) {
	if !r.client.read {
		r.client.value, r.client.present = r.host.ClientAddress()
		r.client.read = true
	}
	return r.client.value, r.client.present
}
