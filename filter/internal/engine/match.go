package engine

import (
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// match is a compiled policy.Match: predicates in the order of their cost.
type match struct {
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
	kind   policy.PatternKind
	text   string
	regexp *regexp.Regexp
}

func (r *request) compileMatch(m *policy.Match) (match, error) {
	out := match{methods: m.Methods, clients: newAddresses(m.ClientIPs)}
	for _, host := range m.Hosts {
		if suffix, ok := strings.CutPrefix(host, "*"); ok {
			out.hosts = append(out.hosts, pattern{kind: policy.Suffix, text: suffix})
		} else {
			out.hosts = append(out.hosts, pattern{kind: policy.Exact, text: host})
		}
	}
	for _, path := range m.Paths {
		p, err := compilePattern(path)
		if err != nil {
			return out, err
		}
		out.paths = append(out.paths, p)
	}
	for _, h := range m.Headers {
		p, err := compilePattern(h.Value)
		if err != nil {
			return out, err
		}
		out.headers = append(out.headers, headerMatch{r.number(h.Name), p})
	}
	return out, nil
}

func compilePattern(p policy.Pattern) (pattern, error) {
	out := pattern{kind: p.Kind, text: p.Text}
	if p.Kind == policy.Regexp {
		var err error
		if out.regexp, err = p.Regexp(); err != nil {
			return out, errors.New("compile pattern " + strconv.Quote(p.Text) + ": " + err.Error())
		}
	}
	return out, nil
}

// holds asks first what needs no call into the proxy, because it has been read
// for this request: often that is enough to say no.
func (m *match) holds(r *request) bool {
	return m.holdsOf(r, true) && m.holdsOf(r, false)
}

// holdsOf asks the predicates on what has been read, or those on what has not.
func (m *match) holdsOf(r *request, read bool) bool {
	if len(m.methods) > 0 && r.knows(&r.method) == read {
		if method, _ := r.Method(); !slices.Contains(m.methods, method) {
			return false
		}
	}
	if len(m.hosts) > 0 && r.knows(&r.name) == read && !anyHolds(m.hosts, r.Host) {
		return false
	}
	if len(m.paths) > 0 && r.knows(&r.target) == read && !anyHolds(m.paths, r.Path) {
		return false
	}
	if len(m.clients) > 0 && r.knows(&r.client) == read {
		if ip, present := r.Client(); !present || !m.clients.hold(ip) {
			return false
		}
	}
	for i := range m.headers {
		h := &m.headers[i]
		if r.knows(&r.joined[h.number].lazy) != read {
			continue
		}
		if value, present := r.joinedHeader(h.number); !h.value.holds(value, present) {
			return false
		}
	}
	return true
}

// anyHolds reports whether one of the patterns holds for what read returns.
func anyHolds(patterns []pattern, read func() (string, bool)) bool {
	value, present := read()
	for i := range patterns {
		if patterns[i].holds(value, present) {
			return true
		}
	}
	return false
}

func (p *pattern) holds(value string, present bool) bool {
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
	default:
		return p.regexp.MatchString(value)
	}
}
