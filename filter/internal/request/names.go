package request

import (
	"bytes"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Host returns the name in the authority, as policy.CanonicalHost spells it. It is what
// keys have: what follows the first colon is no part of it, as nginx has it, nor are a
// user, and brackets around what is no address.
func (r *Request) Host() (string, bool) {
	r.readHost()
	return r.name.value, r.name.present
}

// Hosts returns every name that a server may take the authority for, first that of
// Host; none where there is no authority. An ordinary one has a single name.
func (r *Request) Hosts() []string {
	r.readHost()
	return r.hosts
}

func (r *Request) readHost() {
	if r.knows(&r.name) {
		return
	}
	authority, present := r.source.Header(":authority")
	if present {
		r.hosts = appendHosts(r.hosts, authority)
		authority = r.hosts[0]
	}
	r.set(&r.name, authority, present)
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
	// A parser of URLs takes the user off first. Envoy looks for its domains in all of the
	// authority or, where it ignores ports, in what stands before the last colon.
	for _, text := range []string{withoutPort(withoutUser(authority)), withoutPort(authority), authority} {
		list = append(list, policy.CanonicalHost(text))
	}
	return list
}

// isCanonical reports whether policy.CanonicalHost leaves c as it is in a name.
func isCanonical(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.'
}

// cutHost cuts an authority behind brackets that it begins with, else before its first
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

// isBracketed reports whether a host is no address in brackets: Go's SplitHostPort takes
// them off.
func isBracketed(host string) bool {
	return strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") && strings.IndexByte(host, ':') < 0
}

// withoutPort cuts an authority before its last colon, if that is not in brackets.
func withoutPort(authority string) string {
	if colon := strings.LastIndexByte(authority, ':'); colon > strings.LastIndexByte(authority, ']') {
		return authority[:colon]
	}
	return authority
}

// isPort reports whether s is nothing, or a colon and digits.
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
	return r.target.value, r.target.present
}

// Paths returns every path that a server may take the target for, first that of Path:
// one that has parameters stands there as it was sent as well.
func (r *Request) Paths() []string {
	r.readTarget()
	return r.paths
}

// readTarget splits the request's target, as the proxy normalised it, into path and
// query. It resolves escapes in the path, so that a path has one spelling: the proxy
// leaves those of characters that need none in a path, such as %3A.
func (r *Request) readTarget() {
	if r.knows(&r.target) {
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
	r.set(&r.target, path, present)
}

// withoutParameters is the path that Tomcat and its like serve: they drop what follows a
// ";" in a segment, and then resolve segments that are empty or dots.
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
