package engine

import (
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/automaton"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// match is a compiled policy.Match: predicates in the order of their cost. What
// a client may spell in several ways counts against it: under "match" one
// spelling that holds is enough, under "exempt" all must hold.
type match struct {
	exempt  bool
	methods []string
	hosts   []pattern
	paths   []pattern
	clients addresses
	headers []headerMatch
}

type headerMatch struct {
	number int // see request.number
	value  pattern
}

type pattern struct {
	kind      policy.PatternKind
	text      string
	automaton *automaton.Automaton // of an expression
	long      bool                 // what an expression says of a value that is too long to be read
}

func (r *request) compileMatch(m *policy.Match, exempt bool) match {
	out := match{exempt: exempt, methods: m.Methods, clients: newAddresses(m.ClientIPs)}
	for _, host := range m.Hosts {
		if suffix, ok := strings.CutPrefix(host, "*"); ok {
			out.hosts = append(out.hosts, pattern{kind: policy.Suffix, text: suffix})
		} else {
			out.hosts = append(out.hosts, pattern{kind: policy.Exact, text: host})
		}
	}
	for _, path := range m.Paths {
		out.paths = append(out.paths, compilePattern(path, !exempt))
	}
	for _, h := range m.Headers {
		out.headers = append(out.headers, headerMatch{r.number(h.Name), compilePattern(h.Value, !exempt)})
	}
	return out
}

func compilePattern(p policy.Pattern, long bool) pattern {
	return pattern{kind: p.Kind, text: p.Text, automaton: p.Automaton, long: long}
}

// holds asks first what needs no call into the proxy, because it has been read
// for this request: often that is enough to say no.
func (m *match) holds(r *request) bool {
	return m.holdsOf(r, true) && m.holdsOf(r, false)
}

// holdsOf asks the predicates on what has been read, or those on what has not.
func (m *match) holdsOf(r *request, read bool) bool {
	if len(m.methods) > 0 && r.knows(&r.method) == read && !m.method(r) {
		return false
	}
	if len(m.hosts) > 0 && r.knows(&r.name) == read && !anyHolds(m.hosts, r, r.Host) {
		return false
	}
	if len(m.paths) > 0 && r.knows(&r.target) == read && !anyHolds(m.paths, r, r.Path) {
		return false
	}
	if len(m.clients) > 0 && r.knows(&r.client) == read {
		if ip, present := r.Client(); !present || !m.clients.hold(ip) {
			return false
		}
	}
	for i := range m.headers {
		h := &m.headers[i]
		if r.knows(&r.joined[h.number].lazy) == read && !m.header(h, r) {
			return false
		}
	}
	return true
}

// method compares as upstreams do that take "get" for GET, unless that would
// exempt the request.
func (m *match) method(r *request) bool {
	method, _ := r.Method()
	if slices.Contains(m.methods, method) {
		return true
	}
	for i := 0; i < len(m.methods) && !m.exempt; i++ {
		if strings.EqualFold(m.methods[i], method) {
			return true
		}
	}
	return false
}

// header asks about all values of a header. The proxy joins them with a comma,
// which a value may hold too; only where there is one are they told apart. For a
// match the joined values may hold as well: an upstream may read them as one.
func (m *match) header(h *headerMatch, r *request) bool {
	joined, present := r.joinedHeader(h.number)
	whole := !m.exempt && len(joined) <= automaton.MaxValueBytes
	if whole && h.value.holds(joined, present, r) {
		return true
	}
	if !present || strings.IndexByte(joined, ',') < 0 {
		return !whole && h.value.holds(joined, present, r)
	}
	values := r.values(h.number)
	if len(values) == 0 { // the call failed
		return !m.exempt
	}
	for _, value := range values {
		if h.value.holds(value, true, r) != m.exempt {
			return !m.exempt
		}
	}
	return m.exempt
}

// anyHolds reports whether one of the patterns holds for what read returns.
func anyHolds(patterns []pattern, r *request, read func() (string, bool)) bool {
	value, present := read()
	for i := range patterns {
		if patterns[i].holds(value, present, r) {
			return true
		}
	}
	return false
}

// holds notes in the request that a value was too long to be read.
func (p *pattern) holds(value string, present bool, r *request) bool {
	switch p.kind {
	case policy.Absent:
		return !present
	case policy.Any:
		return true
	default: // needs a value
	}
	if !present {
		return false
	}
	switch p.kind {
	case policy.Present:
		return true
	case policy.Exact:
		return value == p.text
	case policy.Prefix:
		return strings.HasPrefix(value, p.text)
	case policy.Suffix:
		return strings.HasSuffix(value, p.text)
	default: // a regular expression
	}
	if len(value) > automaton.MaxValueBytes {
		r.tooLong = true
		return p.long
	}
	return p.automaton.Match(value)
}
