package respond

import (
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/filter/internal/rules"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// predicate is one field of a match, with the words for a request that fails it.
// Whether the request does is decided by package rules, given this field alone.
type predicate struct {
	field string // of policy.Match
	each  func(*policy.Match) []policy.Match
	why   func(one *policy.Match, r *request.Request) string
}

// predicates are all fields of a match, in the order in which package rules asks
// them.
var predicates = []predicate{
	{
		field: "Methods",
		each:  func(m *policy.Match) []policy.Match { return alone(policy.Match{Methods: m.Methods}, len(m.Methods)) },
		why: func(one *policy.Match, r *request.Request) string {
			return "methods: " + value(r.Method()) + " is not one of " + list(one.Methods)
		},
	},
	{
		field: "Hosts",
		each:  func(m *policy.Match) []policy.Match { return alone(policy.Match{Hosts: m.Hosts}, len(m.Hosts)) },
		why: func(one *policy.Match, r *request.Request) string {
			return "hosts: " + value(r.Host()) + " is not one of " + list(one.Hosts)
		},
	},
	{
		field: "Paths",
		each:  func(m *policy.Match) []policy.Match { return alone(policy.Match{Paths: m.Paths}, len(m.Paths)) },
		why: func(one *policy.Match, r *request.Request) string {
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
		why: func(one *policy.Match, r *request.Request) string {
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
		why: func(one *policy.Match, r *request.Request) string {
			h := one.Headers[0]
			text, present := r.JoinedHeader(r.HeaderNumber(h.Name))
			switch {
			case !present:
				return "headers: " + h.Name + " is absent"
			case h.Value.Kind == policy.Absent:
				return "headers: " + h.Name + " is present, and must be absent"
			case policy.IsCredential(h.Name):
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

// failing says in words which condition of a match is the first that does not
// hold for the request; "" if all hold.
func failing(m *policy.Match, r *request.Request) string {
	for i := range predicates {
		p := &predicates[i]
		for _, one := range p.each(m) {
			if compiled := rules.Compile(r, &one, false); !compiled.Holds(r) {
				return p.why(&one, r)
			}
		}
	}
	return ""
}

// value is a value of the request, in a message.
func value(text string, present bool) string {
	const maxBytes = 200
	switch {
	case !present:
		return "nothing"
	case text == "":
		return `""`
	case len(text) > maxBytes:
		return text[:maxBytes] + "…"
	}
	return text
}

// list is the values that a rule asks for, in a message.
func list(of []string) string {
	const maxListed = 10
	if more := len(of) - maxListed; more > 0 {
		return strings.Join(of[:maxListed], ", ") + " and " + strconv.Itoa(more) + " more"
	}
	return strings.Join(of, ", ")
}

// notation is a pattern as a policy writes it.
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
