package warnings

import (
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// bypass warns of a rule that a client escapes by leaving out every part of its key.
func (c *collector) bypass(v value, r *policy.Rule) {
	if r.MissingKey != policy.MissingSkip || len(r.Key) == 0 {
		return
	}
	parts := slices.Clone(r.Key)
	for i := range r.Key {
		parts = append(parts, r.Key[i].Of...)
	}
	var names []string
	for i := range parts {
		if name := omitted(&parts[i]); name != "" {
			names = append(names, name)
		} else if parts[i].Kind != policy.KeyFirstOf {
			return
		}
	}
	c.warn(v.field("missing_key"), "a client that leaves out "+strings.Join(names, ", ")+
		" escapes this rule: set missing_key to deny or share, or add client_ip to the key")
}

// whatToDo ends the warnings of what any client can send.
const whatToDo = ": have the proxy check, set or remove it at the edge, or "

// exemptions warns of those that hold for whoever sends a header.
func (c *collector) exemptions(v value, list []policy.Match) {
	for i := range list {
		if len(list[i].Headers) == 0 || len(list[i].ClientIPs) > 0 {
			continue
		}
		var names []string
		for _, h := range list[i].Headers {
			names = append(names, h.Name)
		}
		c.warn(v.field("exempt").item(i), "any client can send or leave out "+strings.Join(names, ", ")+" and be exempt"+whatToDo+"add client_ips")
	}
}

// raised warns, once a rule, of an override that allows more to whoever sends a
// header, a parameter or a cookie.
func (c *collector) raised(v value, r *policy.Rule) {
	for i := range r.Overrides {
		o := &r.Overrides[i]
		if names := chosen(o, r.Key); o.Raises(r) && len(names) > 0 {
			c.warn(v.field("overrides").item(i), "any client that sends "+strings.Join(names, ", ")+" gets the higher limit"+whatToDo+
				"count by what is verified, such as a jwt claim or a client certificate")
			return
		}
	}
}

// chosen names what a client sends to get the override, nothing where a part of the
// key is not the client's to choose.
func chosen(o *policy.Override, key []policy.KeyPart) (names []string) {
	for i, p := range o.Key {
		name := sent(&key[i])
		for j := range key[i].Of {
			of := &key[i].Of[j]
			if name == "" && mayBe(of.Label()+"=", p) {
				name = sent(of)
			}
		}
		switch {
		case p.Kind == policy.Any:
		case name == "":
			return nil
		default:
			names = append(names, name)
		}
	}
	return names
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

// sent names what a client sends to make the part whatever it likes, "" where it cannot.
func sent(p *policy.KeyPart) string {
	switch {
	case p.Kind == policy.KeyHeader:
		return p.Name
	case p.Kind == policy.KeyQuery, p.Kind == policy.KeyCookie, isAttribute(p, "request.headers", "request.referer", "request.useragent"):
		return p.Label()
	}
	return ""
}

// omitted names what a client leaves out to lack the part, "" where it cannot. A
// claim is verified and yet the client's to leave out: jwt_authn may let requests
// without a token pass, and in Istio does. Where it does not, missing_key: deny says
// the same and costs nothing.
func omitted(p *policy.KeyPart) string {
	if p.Kind == policy.KeyJWT || isAttribute(p, "connection.subject_peer_certificate", "connection.dns_san_peer_certificate",
		"connection.uri_san_peer_certificate", "connection.sha256_peer_certificate_digest") {
		return p.Label()
	}
	return sent(p)
}

func isAttribute(p *policy.KeyPart, names ...string) bool {
	return p.Kind == policy.KeyProperty && slices.Contains(names, strings.Join(p.Path[:min(2, len(p.Path))], "."))
}
