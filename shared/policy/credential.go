package policy

import (
	"slices"
	"strings"
)

// This file is the only place that says which values are credentials. A credential is never
// printed, neither in a report nor in a log.

var (
	// credentialWords are in the names of headers, parameters and attributes whose value
	// is a secret of the client.
	credentialWords = []string{
		"auth", "cookie", "key", "token", "secret", "passw", "passphrase", "session", "credential", "signature", "assertion",
	}
	// credentialNames are too short to look for within a name: they are whole words of one.
	credentialNames = []string{"sig", "sid", "pwd", "pass", "jwt", "code", "otp", "pin", "saml", "csrf", "xsrf"}
	// wholeRequests are attributes that have a query or all headers, so credentials may be
	// in them.
	wholeRequests = []string{"request", "request.headers", "request.query", "request.path"}
)

// IsCredential reports whether the value of a header, a parameter or an attribute of
// that name may be a secret of the client.
func IsCredential(name string) bool {
	name = strings.ToLower(name)
	switch name {
	case ":authority", "authority": // the host
		return false
	case ":path": // with its query
		return true
	}
	isWithin := func(word string) bool { return strings.Contains(name, word) }
	notLetter := func(c rune) bool { return c < 'a' || c > 'z' }
	isName := func(word string) bool { return slices.Contains(credentialNames, word) }
	words := strings.FieldsFunc(name, notLetter)
	return slices.ContainsFunc(credentialWords, isWithin) || slices.ContainsFunc(words, isName)
}

// HasCredential reports whether the value may be a secret of the client.
func (p *KeyPart) HasCredential() bool {
	switch p.Kind {
	case KeyCookie:
		return true
	case KeyHeader:
		return p.Scheme != "" || IsCredential(p.Name)
	case KeyQuery:
		return IsCredential(p.Name)
	case KeyProperty:
		attribute := strings.ToLower(strings.Join(p.Path, "."))
		return slices.Contains(wholeRequests, attribute) || IsCredential(p.Path[len(p.Path)-1])
	case KeyJWT:
		return IsCredential(p.Path[len(p.Path)-1])
	default:
		return slices.ContainsFunc(p.Of, func(of KeyPart) bool { return of.HasCredential() })
	}
}
