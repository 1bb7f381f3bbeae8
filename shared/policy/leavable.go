package policy

import "slices"

// escapable warns of a rule that a client escapes by leaving something out.
func (r *reader) escapable(v value, rule *Rule) {
	if rule.MissingKey != MissingSkip || rule.Mode == ModeOff || len(rule.Key) == 0 {
		return
	}
	for i := range rule.Key {
		if !rule.Key[i].leavable() {
			return
		}
	}
	var list []string
	for i := range rule.Key {
		list = append(list, rule.Key[i].leftOut()...)
	}
	r.warn(value{node: v.node, at: v.at.field("missing_key")},
		"a client that leaves out "+join(list)+" escapes this rule: set missing_key to deny or share, or add client_ip to the key")
}

// leavable reports whether a client can leave the part out. A claim is one:
// jwt_authn may let requests without a token pass, and in Istio does. Where it
// does not, missing_key: deny says the same and costs nothing.
func (p *KeyPart) leavable() bool {
	switch p.Kind {
	case KeyHeader, KeyQuery, KeyCookie, KeyJWT:
		return true
	case KeyProperty:
		return p.isOfClient()
	case KeyFirstOf:
		return !slices.ContainsFunc(p.Of, func(of KeyPart) bool { return !of.leavable() })
	default: // every request has it
		return false
	}
}

// isOfClient reports whether an attribute is there only if the client sent it:
// a header, or a certificate of its own.
func (p *KeyPart) isOfClient() bool {
	if len(p.Path) < 2 {
		return false
	}
	switch name := p.Path[1]; p.Path[0] {
	case "request":
		return name == "headers" || name == "referer" || name == "useragent"
	case "connection":
		return slices.Contains(peerCertificate, name)
	}
	return false
}

// peerCertificate are the attributes of a connection that a client without
// certificate lacks.
var peerCertificate = []string{
	"subject_peer_certificate", "dns_san_peer_certificate", "uri_san_peer_certificate", "sha256_peer_certificate_digest",
}

// leftOut names what a client leaves out to lack the part.
func (p *KeyPart) leftOut() []string {
	switch p.Kind {
	case KeyHeader:
		return []string{p.Name}
	case KeyFirstOf:
		var list []string
		for i := range p.Of {
			list = append(list, p.Of[i].leftOut()...)
		}
		return list
	default:
		return []string{p.Label()}
	}
}
