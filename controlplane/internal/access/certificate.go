package access

import (
	"crypto/x509"
	"net/url"
	"slices"
	"strings"
)

// Verify says whether the authorities vouch, now, for the chain that a client
// showed. The handshake verified it, but a connection may outlive the
// certificate and the trust in its authority.
func Verify(chain []*x509.Certificate, authorities *x509.CertPool) error {
	intermediates := x509.NewCertPool()
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: authorities, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}

const hostBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

// names are the certificate's DNS names and its URIs of a kind, each of at most maxBytes. A name with
// a wildcard does not count. A DNS name that no host can have does not count either: it could look
// like a URI, and some authorities sign DNS names without checking them.
func names(c *x509.Certificate, isOfKind func(*url.URL) bool, maxBytes int) (list []string) {
	for _, name := range c.DNSNames {
		if strings.Trim(name, hostBytes) == "" {
			list = append(list, name)
		}
	}
	for _, u := range c.URIs {
		if text := u.String(); isOfKind(u) && !strings.Contains(text, "*") {
			list = append(list, text)
		}
	}
	return slices.DeleteFunc(list, func(name string) bool {
		return name == "" || len(name) > maxBytes || !isVisible(name)
	})
}

// proxyNames are the names that grant node ids. A URI without a scheme could
// pass for a DNS name.
func proxyNames(c *x509.Certificate) []string { return names(c, (*url.URL).IsAbs, MaxNodeID) }

// isPlainURI says whether a URI has no more than a scheme, a host and a path: an access file
// knows a certificate by these alone.
func isPlainURI(u *url.URL) bool {
	return u.Scheme != "" && u.Host != "" && u.Opaque == "" && u.User == nil &&
		u.RawQuery == "" && !u.ForceQuery && u.Fragment == ""
}

// Certificate returns the caller that a verified certificate stands for: that
// of the first line with a matching SAN.
func (l *List) Certificate(c *x509.Certificate) (Caller, bool) {
	list := names(c, isPlainURI, maxName)
	for _, line := range l.certificates {
		for _, name := range list {
			if !strings.Contains(name, ":") {
				name = strings.ToLower(name)
			}
			if _, ok := line.san.match(name); ok {
				c := line.caller
				c.Name = "certificate " + name
				return c, true
			}
		}
	}
	return Caller{}, false
}
