package request

import (
	"bytes"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Host returns the name in the authority, as policy.CanonicalHost spells it, for keys. It ends
// at the first colon, as in nginx, and has no user, and no brackets unless they are around an
// address.
func (r *Request) Host() (string, bool) {
	r.readHost()
	return r.host.value, r.host.present
}

// Hosts returns all names that servers may read in the authority, that of Host first; none if
// there is no authority. An ordinary authority has one name.
func (r *Request) Hosts() []string {
	r.readHost()
	return r.hosts
}

func (r *Request) readHost() {
	if r.knows(&r.host) {
		return
	}
	authority, present := r.source.Header(":authority")
	if present {
		r.hosts = appendHosts(r.hosts, authority)
		authority = r.hosts[0]
	}
	r.set(&r.host, authority, present)
}

func appendHosts(list []string, authority string) []string {
	end := 0
	for end < len(authority) && isCanonical(authority[end]) {
		end++
	}
	if (end == len(authority) || isPort(authority[end:])) && end > 0 && authority[end-1] != '.' {
		return append(list, authority[:end]) // the usual host, without a call
	}
	host, rest := cutHost(authority)
	if strings.IndexByte(host, '@') < 0 && isPort(rest) && !isBracketed(host) {
		return append(list, policy.CanonicalHost(host))
	}
	name := withoutUser(host)
	if isBracketed(name) {
		name = name[1 : len(name)-1]
	}
	list = append(list, policy.CanonicalHost(name))
	// URL parsers remove the user first. Envoy compares its domains with the whole authority
	// or, if it ignores ports, with what is before the last colon.
	for _, text := range []string{withoutPort(withoutUser(authority)), withoutPort(authority), authority} {
		list = append(list, policy.CanonicalHost(text))
	}
	return list
}

// isCanonical reports whether policy.CanonicalHost leaves c unchanged in a name.
func isCanonical(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.'
}

// cutHost cuts an authority after the brackets that it begins with, else before its first
// colon.
func cutHost(authority string) (host, rest string) {
	end := strings.IndexByte(authority, ':')
	if strings.HasPrefix(authority, "[") {
		end = strings.IndexByte(authority, ']') + 1
	}
	if end <= 0 && !strings.HasPrefix(authority, ":") {
		return authority, ""
	}
	return authority[:end], authority[end:]
}

func withoutUser(host string) string { return host[strings.LastIndexByte(host, '@')+1:] }

// isBracketed reports whether a host is in brackets but is not an address. Go's SplitHostPort
// removes these brackets.
func isBracketed(host string) bool {
	return strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") && strings.IndexByte(host, ':') < 0
}

// withoutPort cuts an authority before its last colon, unless that is in brackets.
func withoutPort(authority string) string {
	if colon := strings.LastIndexByte(authority, ':'); colon > strings.LastIndexByte(authority, ']') {
		return authority[:colon]
	}
	return authority
}

// isPort reports whether s is empty, or a colon and digits.
func isPort(s string) bool {
	for i := range len(s) {
		if s[i]-'0' > 9 && (i > 0 || s[i] != ':') {
			return false
		}
	}
	return s == "" || s[0] == ':'
}

// Path returns the path without query, fragment and parameters.
func (r *Request) Path() (string, bool) {
	r.readTarget()
	return r.path.value, r.path.present
}

// Paths returns all paths that servers may read in the target, that of Path first. A path
// with parameters is also there as it was sent.
func (r *Request) Paths() []string {
	r.readTarget()
	return r.paths
}

// readTarget splits the request's target, which the proxy has normalized, into path and query.
// It resolves escapes, so that a path has one spelling: the proxy leaves some that a path does
// not need, such as %3A.
func (r *Request) readTarget() {
	if r.knows(&r.path) {
		return
	}
	path, present := r.source.Header(":path")
	if end := strings.IndexByte(path, '#'); end >= 0 {
		path = path[:end]
	}
	r.query = ""
	if end := strings.IndexByte(path, '?'); end >= 0 {
		path, r.query = path[:end], path[end+1:]
	}
	path = policy.Unescape(path)
	if strings.IndexByte(path, ';') >= 0 {
		r.paths = append(r.paths, withoutParameters(path))
	}
	if present {
		r.paths = append(r.paths, path)
		path = r.paths[0]
	}
	r.set(&r.path, path, present)
}

// withoutParameters returns the path that Tomcat and similar servers serve: they drop what
// follows a ";" in a segment, and then resolve segments that are empty or dots.
func withoutParameters(path string) string {
	out := make([]byte, 0, len(path)+1)
	for more := true; more; {
		var segment string
		segment, path, more = strings.Cut(path, "/")
		switch segment, _, _ = strings.Cut(segment, ";"); segment {
		case "", ".":
		case "..":
			out = out[:max(0, bytes.LastIndexByte(out, '/'))]
		default:
			out = append(append(out, '/'), segment...)
			continue
		}
		if !more {
			out = append(out, '/')
		}
	}
	return string(out)
}
