package engine

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// predicate is one field of a match. Whether it holds is the compiled match's
// to say, given nothing else; here are the words for when it does not.
type predicate struct {
	field string // of policy.Match
	each  func(*policy.Match) []policy.Match
	why   func(one *policy.Match, r *request) string
}

// predicates are all fields of a match, in the order in which they are asked.
var predicates = []predicate{
	{
		field: "Methods",
		each:  func(m *policy.Match) []policy.Match { return alone(policy.Match{Methods: m.Methods}, len(m.Methods)) },
		why: func(one *policy.Match, r *request) string {
			return "methods: " + value(r.Method()) + " is not one of " + list(one.Methods)
		},
	},
	{
		field: "Hosts",
		each:  func(m *policy.Match) []policy.Match { return alone(policy.Match{Hosts: m.Hosts}, len(m.Hosts)) },
		why: func(one *policy.Match, r *request) string {
			return "hosts: " + value(r.Host()) + " is not one of " + list(one.Hosts)
		},
	},
	{
		field: "Paths",
		each:  func(m *policy.Match) []policy.Match { return alone(policy.Match{Paths: m.Paths}, len(m.Paths)) },
		why: func(one *policy.Match, r *request) string {
			var patterns []string
			for _, p := range one.Paths {
				patterns = append(patterns, notation(p))
			}
			return "paths: " + value(r.Path()) + " is not one of " + list(patterns)
		},
	},
	{
		field: "ClientIPs",
		each: func(m *policy.Match) []policy.Match {
			return alone(policy.Match{ClientIPs: m.ClientIPs}, len(m.ClientIPs))
		},
		why: func(one *policy.Match, r *request) string {
			var networks []string
			for _, p := range one.ClientIPs {
				networks = append(networks, p.String())
			}
			ip, present := r.Client()
			return "client_ips: " + value(ip.String(), present) + " is not one of " + list(networks)
		},
	},
	{
		field: "Headers",
		each: func(m *policy.Match) (each []policy.Match) {
			for i := range m.Headers {
				each = append(each, policy.Match{Headers: m.Headers[i : i+1]})
			}
			return each
		},
		why: func(one *policy.Match, r *request) string {
			h := one.Headers[0]
			text, present := r.joinedHeader(r.number(h.Name))
			switch {
			case !present:
				return "headers: " + h.Name + " is absent"
			case h.Value.Kind == policy.Absent:
				return "headers: " + h.Name + " is present, and must be absent"
			case isCredential(h.Name):
				return "headers: " + h.Name + " is another than " + notation(h.Value)
			}
			return "headers: " + h.Name + " is " + value(text, true) + ", not " + notation(h.Value)
		},
	},
}

// alone is a match of one field, none where the field is empty.
func alone(m policy.Match, entries int) []policy.Match {
	if entries == 0 {
		return nil
	}
	return []policy.Match{m}
}

// fails says in words what the first condition is that does not hold for the
// request; "" where all hold.
func (r *request) fails(m *policy.Match) string {
	for i := range predicates {
		p := &predicates[i]
		for _, one := range p.each(m) {
			if compiled := r.compileMatch(&one, false); !compiled.holds(r) {
				return p.why(&one, r)
			}
		}
	}
	return ""
}

// isCredential reports whether a header's value is a secret of the client's.
func isCredential(header string) bool {
	return slices.Contains([]string{"authorization", "proxy-authorization", "cookie"}, header)
}

// value is what the request has, in a message.
func value(text string, present bool) string {
	const most = 200
	switch {
	case !present:
		return "nothing"
	case text == "":
		return `""`
	case len(text) > most:
		return text[:most] + "…"
	}
	return text
}

// list is what a rule asks for, in a message.
func list(of []string) string {
	const most = 10
	if more := len(of) - most; more > 0 {
		return strings.Join(of[:most], ", ") + " and " + strconv.Itoa(more) + " more"
	}
	return strings.Join(of, ", ")
}

// notation is a pattern as a policy has it.
func notation(p policy.Pattern) string {
	switch p.Kind {
	case policy.Prefix:
		return p.Text + "*"
	case policy.Suffix:
		return "*" + p.Text
	case policy.Regexp:
		return "~" + p.Text
	case policy.Present, policy.Any:
		return "*"
	case policy.Absent:
		return "!"
	default:
		if p.Text == "" || strings.ContainsAny(p.Text[:1], "=~!") || strings.Contains(p.Text, "*") {
			return "=" + p.Text
		}
		return p.Text
	}
}
