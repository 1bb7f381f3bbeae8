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
			if line.san.matches(name) {
				return Caller{Name: "certificate " + name, Role: line.role}, true
			}
		}
	}
	return Caller{}, false
}

// pattern is a DNS name or a URI in which * stands for anything within a
// segment.
type pattern struct {
	text      string
	separator string // of segments: "." in a DNS name, "/" in a URI
}

func parsePattern(text string) (pattern, error) {
	const want = "give a DNS name such as ci.ops.corp or a URI such as spiffe://corp/ns/ops/sa/ci"
	if len(text) > maxName {
		return pattern{}, fmt.Errorf("it has %d bytes, at most %d are allowed", len(text), maxName)
	}
	if !isURI(text) {
		text = strings.ToLower(text)
		for label := range strings.SplitSeq(text, ".") {
			if label == "" || strings.Count(label, "*") > 1 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_*") != "" {
				return pattern{}, errors.New("it is neither a DNS name nor a URI: " + want)
			}
		}
		return pattern{text, "."}, nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || !plainURI(u) || u.String() != text:
		return pattern{}, errors.New("it is not a URI of scheme, host and path: " + want)
	case strings.Contains(u.Host, "*"):
		return pattern{}, errors.New("* in the host of a URI: it may stand within a segment of the path only")
	}
	for segment := range strings.SplitSeq(text, "/") {
		if strings.Count(segment, "*") > 1 {
			return pattern{}, errors.New("two * in one segment: one is enough")
		}
	}
	return pattern{text, "/"}, nil
}

func isURI(name string) bool { return strings.Contains(name, "://") }

// matches compares segment by segment, so that * never reaches beyond one.
func (p pattern) matches(name string) bool {
	segments, patterns := strings.Split(name, p.separator), strings.Split(p.text, p.separator)
	if len(segments) != len(patterns) || isURI(name) != isURI(p.text) {
		return false
	}
	for i := range patterns {
		if !matchSegment(patterns[i], segments[i]) {
			return false
		}
	}
	return true
}

// matchSegment matches a text against a pattern with at most one *, which
// stands for one or more of any characters.
func matchSegment(pattern, text string) bool {
	begin, end, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == text
	}
	return len(text) > len(begin)+len(end) && strings.HasPrefix(text, begin) && strings.HasSuffix(text, end)
}
