package lint

import (
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// whatToDo ends the warnings of what any client can send.
const whatToDo = "have the proxy check, set or remove "

// exemptions warns of those that hold for whoever sends a header.
func (l *linter) exemptions(v value, list []policy.Match) {
	for i := range list {
		at, m := v.field("exempt").item(i), &list[i]
		if len(m.Headers) == 0 || len(m.ClientIPs) > 0 {
			continue
		}
		names := make([]string, len(m.Headers))
		for j := range names {
			names[j] = m.Headers[j].Name
		}
		l.warn(at, "any client can send or leave out "+strings.Join(names, ", ")+" and be exempt: "+whatToDo+"it at the edge, or add client_ips")
	}
}

// raised warns, once a rule, of overrides that allow more to whoever sends a header,
// a parameter or a cookie.
func (l *linter) raised(v value, r *policy.Rule) {
	for i := range r.Overrides {
		o := &r.Overrides[i]
		if r.Mode == policy.ModeOff || !o.Raises(r) {
			continue
		}
		if sent := sentFor(o, r.Key); len(sent) > 0 {
			l.warn(v.item(i), "any client that sends "+strings.Join(sent, ", ")+" gets the higher limit: "+whatToDo+
				"it at the edge, or count by what is verified, such as a jwt claim or a client certificate")
			return
		}
	}
}

// sentFor names what a client sends to be the override's, none where some part of the
// key is not the client's to choose.
func sentFor(o *policy.Override, key []policy.KeyPart) (sent []string) {
	for i, p := range o.Key {
		if p.Kind == policy.Any {
			continue
		}
		name := forged(&key[i], p)
		if name == "" {
			return nil
		}
		sent = append(sent, name)
	}
	return sent
}

// forged names the header, parameter or cookie by which any client makes the part fit
// the pattern; "" where the part is of the connection, verified, or what is asked for.
func forged(part *policy.KeyPart, p policy.Pattern) string {
	switch part.Kind {
	case policy.KeyHeader, policy.KeyQuery, policy.KeyCookie:
		return leftOut(part)[0]
	case policy.KeyProperty:
		if slices.Contains([]string{"request.headers", "request.referer", "request.useragent"}, strings.Join(part.Path[:min(2, len(part.Path))], ".")) {
			return part.Label()
		}
	case policy.KeyFirstOf:
		for i := range part.Of {
			if name := forged(&part.Of[i], p); name != "" && mayBe(part.Of[i].Label()+"=", p) {
				return name
			}
		}
	default: // no text that a client makes up
	}
	return ""
}

// mayBe reports whether a text that begins so may fit the pattern.
func mayBe(start string, p policy.Pattern) bool {
	switch p.Kind {
	case policy.Exact:
		return strings.HasPrefix(p.Text, start)
	case policy.Prefix:
		return strings.HasPrefix(p.Text, start) || strings.HasPrefix(start, p.Text)
	default:
		return true
	}
}
