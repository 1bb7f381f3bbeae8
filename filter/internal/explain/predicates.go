package explain

import (
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/filter/internal/rules"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// failing says in words which condition of a match does not hold for the request: the first
// one, in the order in which package rules asks them; "" if all hold. Package rules decides
// whether one holds: it gets a match of that condition alone.
func failing(m *policy.Match, r *request.Request) string {
	fails := func(one policy.Match) bool {
		compiled := rules.Compile(r, &one, false)
		return !compiled.Holds(r)
	}
	var wanted []string
	switch {
	case fails(policy.Match{Methods: m.Methods}):
		return "methods: " + value(r.Method()) + " is not one of " + list(m.Methods)
	case fails(policy.Match{Hosts: m.Hosts}):
		return "hosts: " + value(r.Host()) + " is not one of " + list(m.Hosts)
	case fails(policy.Match{Paths: m.Paths}):
		for _, p := range m.Paths {
			wanted = append(wanted, notation(p))
		}
		return "paths: " + value(r.Path()) + " is not one of " + list(wanted)
	case fails(policy.Match{ClientIPs: m.ClientIPs}):
		for _, p := range m.ClientIPs {
			wanted = append(wanted, p.String())
		}
		ip, present := r.Client()
		return "client_ips: " + value(ip.String(), present) + " is not one of " + list(wanted)
	}
	for i := range m.Headers {
		if fails(policy.Match{Headers: m.Headers[i : i+1]}) {
			return "headers: " + m.Headers[i].Name + whyHeader(&m.Headers[i], r)
		}
	}
	return ""
}

// whyHeader says why the match does not accept the request's header.
func whyHeader(h *policy.HeaderMatch, r *request.Request) string {
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
