package access

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/san"
)

// SANs returns the names by which a certificate is known: its DNS and URI
// subject alternative names. The common name and wildcards do not count: nobody
// else may hold one that also matches them. Nor do URIs with more than a scheme,
// a host and a path.
func SANs(c *x509.Certificate) []string {
	var names []string
	for _, name := range san.DNS(c) {
		if len(name) <= maxName {
			names = append(names, strings.ToLower(name))
		}
	}
	for _, u := range c.URIs {
		if text := u.String(); len(text) <= maxName && !strings.Contains(text, "*") && plainURI(u) {
			names = append(names, text)
		}
	}
	return names
}

func plainURI(u *url.URL) bool {
	return u.Scheme != "" && u.Host != "" && u.Opaque == "" && u.User == nil &&
		u.RawQuery == "" && !u.ForceQuery && u.Fragment == ""
}

// Certificate returns the caller that a verified certificate stands for: that
// of the first line with a matching SAN.
func (l *List) Certificate(c *x509.Certificate) (Caller, bool) {
	names := SANs(c)
	for _, line := range l.certificates {
		for _, name := range names {
			if _, ok := line.san.Match(name); ok {
				return Caller{Name: "certificate " + name, Role: line.role}, true
			}
		}
	}
	return Caller{}, false
}

// parsePattern reads the SAN of a line: a DNS name or a URI, where * stands for
// text within a segment.
func parsePattern(text string) (san.Pattern, error) {
	const want = "give a DNS name such as ci.ops.corp or a URI such as spiffe://corp/ns/ops/sa/ci"
	if len(text) > maxName {
		return san.Pattern{}, fmt.Errorf("it has %d bytes, at most %d are allowed", len(text), maxName)
	}
	if !strings.Contains(text, "://") {
		text = strings.ToLower(text)
		for label := range strings.SplitSeq(text, ".") {
			if label == "" || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_*") != "" {
				return san.Pattern{}, errors.New("it is neither a DNS name nor a URI: " + want)
			}
		}
	} else if u, err := url.Parse(text); err != nil || !plainURI(u) || u.String() != text {
		return san.Pattern{}, errors.New("it is not a URI of scheme, host and path: " + want)
	}
	return san.NamePattern(text)
}
