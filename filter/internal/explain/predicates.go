package explain

import (
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/rules"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// condition is a condition of a match that does not hold.
type condition struct {
	name   string // methods, hosts, paths, client_ips or headers
	wanted string // the values that it lists; empty for headers
	why    string // in words why it does not hold
}

// failing returns the condition of a match that does not hold for the request, nil if all hold. It is
// the first one, in the order in which package rules asks them. Package rules decides whether one holds: it gets a
// match of that condition alone.
func failing(m *policy.Match, r *rules.Request) *condition {
	fails := func(one policy.Match) bool {
		compiled := rules.Compile(&r.Request, &one, false)
		return !compiled.Holds(r)
	}
	var wanted []string
	switch {
	case fails(policy.Match{Methods: m.Methods}):
		return noneOf("methods", value(r.Method()), m.Methods)
	case fails(policy.Match{Hosts: m.Hosts}):
		return noneOf("hosts", value(r.Host()), m.Hosts)
	case fails(policy.Match{Paths: m.Paths}):
		for _, p := range m.Paths {
			wanted = append(wanted, notation(p))
		}
		return noneOf("paths", value(r.Path()), wanted)
	case fails(policy.Match{ClientIPs: m.ClientIPs}):
		for _, p := range m.ClientIPs {
			wanted = append(wanted, p.String())
		}
		ip, present := r.Client()
		return noneOf("client_ips", value(ip.String(), present), wanted)
	}
	for i := range m.Headers {
		if fails(policy.Match{Headers: m.Headers[i : i+1]}) {
			return &condition{name: "headers", why: "headers: " + m.Headers[i].Name + whyHeader(&m.Headers[i], r)}
		}
	}
	return nil
}

// noneOf is a condition that fails because the request has none of the values that it lists.
func noneOf(name, has string, values []string) *condition {
	wanted := list(values)
	return &condition{name, wanted, name + ": " + has + " is not one of " + wanted}
}

// whyHeader says why the match does not accept the request's header.
func whyHeader(h *policy.HeaderMatch, r *rules.Request) string {
	switch text, present := r.JoinedHeader(r.HeaderNumber(h.Name)); {
	case !present:
		return " is absent"
	case h.Value.Kind == policy.Absent:
		return " is present, and must be absent"
	case policy.IsCredential(h.Name):
		return " differs from " + notation(h.Value)
	default:
		return " is " + value(text, true) + ", not " + notation(h.Value)
	}
}

// value writes a value of the request in a message.
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

// list writes the values that a rule asks for in a message.
func list(of []string) string {
	const maxListed = 10
	if more := len(of) - maxListed; more > 0 {
		return strings.Join(of[:maxListed], ", ") + " and " + strconv.Itoa(more) + " more"
	}
	return strings.Join(of, ", ")
}

// notation writes a pattern as a policy does.
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
