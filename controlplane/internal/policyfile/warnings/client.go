package warnings

import (
	"cmp"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// warnBypass warns of a rule that a client escapes by leaving out every part of its key.
func (c *collector) warnBypass(v policy.Place, r *policy.Rule) {
	if r.MissingKey != policy.MissingSkip || len(r.Key) == 0 {
		return
	}
	var parts []policy.KeyPart
	for i := range r.Key {
		if p := r.Key[i]; p.Kind == policy.KeyFirstOf {
			parts = append(parts, p.Of...)
		} else {
			parts = append(parts, p)
		}
	}
	names := omissible(parts)
	if len(names) < len(parts) {
		return
	}
	c.warn(v.Field("missing_key"), "a client that leaves out "+strings.Join(names, ", ")+
		" escapes this rule: set missing_key to deny or share, or add client_ip to the key")
}

// whatToDo ends the warnings of what any client can send.
const whatToDo = ": have the proxy check, set or remove it at the edge, or "

// warnExemptions warns of exemptions that any client gets by sending a header.
func (c *collector) warnExemptions(v policy.Place, list []policy.Match) {
	for i := range list {
		if len(list[i].Headers) == 0 || len(list[i].ClientIPs) > 0 {
			continue
		}
		var names []string
		for _, h := range list[i].Headers {
			names = append(names, h.Name)
		}
		c.warn(v.Field("exempt").Item(i), "any client can send or leave out "+strings.Join(names, ", ")+" and be exempt"+
			whatToDo+"add client_ips")
	}
}

// warnIdentities warns of headers that name a client, if one client can have several names.
func (c *collector) warnIdentities(v policy.Place, key []policy.KeyPart) {
	for i := range key {
		p, at := &key[i], v.Item(i)
		c.warnIdentities(at.Field("first_of"), p.Of)
		switch name := p.Header(); {
		case p.Scheme == "basic":
			c.warn(at, "the credential of basic contains the password, "+
				"in base64 with many spellings, so a client that guesses has a count of its own for each: "+
				"add a rule by client_ip, or count by a header in which the proxy names the user that it has verified")
		case name == "authorization" && p.Scheme == "":
			c.warn(at, "a client that writes the scheme in another case, or with more spaces after it, "+
				"has a count of its own: write {header: {name: authorization, scheme: bearer}}, which is only the credential")
		case name == "x-forwarded-for":
			c.warn(at, "any client can begin x-forwarded-for with any text: "+
				"write client_ip, and set Envoy's xff_num_trusted_hops to the number of proxies in front of it")
		case p.Kind == policy.KeyHeader && slices.Contains(addressHeaders, name):
			c.warn(at, "an IPv6 client has many addresses, each with a count of its own: write {address: {header: "+name+"}}, "+
				"which cuts them to their network, and let clients reach Envoy only through the proxy that sets "+name)
		}
	}
}

// warnCredentials warns of keys that report_keys: plain does not show.
func (c *collector) warnCredentials(v policy.Place, key []policy.KeyPart) {
	for i := range key {
		c.warnCredentials(v.Item(i).Field("first_of"), key[i].Of)
		if key[i].Kind != policy.KeyFirstOf && key[i].HasCredential() {
			c.warn(v.Item(i), key[i].Label()+" may hold a credential, which is never printed: "+
				"report_keys shows this rule's keys as hashes, not plain")
		}
	}
}

// addressHeaders hold the client's address behind some proxies.
var addressHeaders = []string{
	"x-real-ip", "cf-connecting-ip", "cf-connecting-ipv6", "true-client-ip", "x-client-ip", "fastly-client-ip",
	"x-envoy-external-address",
}

// warnRaised warns, once a rule, of an override that allows more to any client that sends a
// header, a parameter or a cookie.
func (c *collector) warnRaised(v policy.Place, r *policy.Rule) {
	for i := range r.Overrides {
		o := &r.Overrides[i]
		names := chosen(o, r.Key)
		if o.Raises(r) && len(names) > 0 {
			c.warn(v.Field("overrides").Item(i), "any client that sends "+strings.Join(names, ", ")+" gets the higher limit"+
				whatToDo+"count by what is verified, such as a jwt claim or a client certificate")
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

// omissible names the parts that a client may leave out.
func omissible(key []policy.KeyPart) (names []string) {
	for i := range key {
		if name := omitted(&key[i]); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// sent names what a client sends to make the part whatever it likes, "" where it cannot.
func sent(p *policy.KeyPart) string {
	if p.Origin() != policy.Sent {
		return ""
	}
	return cmp.Or(p.Header(), p.Label())
}

// omitted names what a client leaves out to lack the part, "" where it cannot. A
// claim is verified and yet the client's to leave out: jwt_authn may let requests
// without a token pass, and in Istio does. Where it does not, missing_key: deny says
// the same and costs nothing.
func omitted(p *policy.KeyPart) string {
	if p.Origin() == policy.Verified {
		return p.Label()
	}
	return sent(p)
}

// warnProxies warns of a policy that a proxy gets by what it says of itself.
func (c *collector) warnProxies(v policy.Place, s *policy.Selector) {
	if s != nil && s.Cluster != "" && s.Node == "" && s.SAN == "" && s.Metadata == nil { // metadata needs trust
		c.warn(v.Field("cluster"), "a proxy chooses its cluster itself, "+
			"so any proxy that may connect can take this policy: add node or san, which certificates prove")
	}
}
