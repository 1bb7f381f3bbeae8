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

// dnsNames are the certificate's DNS names. A wildcard does not count, nor does
// a name that no host can have: an authority that signs DNS names without
// looking must not have signed a URI.
func dnsNames(c *x509.Certificate) []string {
	return slices.DeleteFunc(slices.Clone(c.DNSNames), func(name string) bool {
		return name == "" || strings.Trim(name, hostBytes) != ""
	})
}

// uriNames are the certificate's URIs of that kind without a wildcard.
func uriNames(c *x509.Certificate, kind func(*url.URL) bool) []string {
	var names []string
	for _, u := range c.URIs {
		if text := u.String(); kind(u) && !strings.Contains(text, "*") {
			names = append(names, text)
		}
	}
	return names
}

// callerNames are the names by which an access file knows a certificate. URIs
// with more than a scheme, a host and a path do not count.
func callerNames(c *x509.Certificate) []string {
	var names []string
	for _, name := range dnsNames(c) {
		names = append(names, strings.ToLower(name))
	}
	names = append(names, uriNames(c, isPlainURI)...)
	return slices.DeleteFunc(names, func(name string) bool { return len(name) > maxName })
}

// proxyNames are the names that grant node ids. A URI without a scheme could
// pass for a DNS name.
func proxyNames(c *x509.Certificate) []string {
	names := append(dnsNames(c), uriNames(c, (*url.URL).IsAbs)...)
	return slices.DeleteFunc(names, func(name string) bool { return len(name) > MaxNodeID || !isVisible(name) })
}

func isPlainURI(u *url.URL) bool {
	return u.Scheme != "" && u.Host != "" && u.Opaque == "" && u.User == nil &&
		u.RawQuery == "" && !u.ForceQuery && u.Fragment == ""
}

// Certificate returns the caller that a verified certificate stands for: that
// of the first line with a matching SAN.
func (l *List) Certificate(c *x509.Certificate) (Caller, bool) {
	names := callerNames(c)
	for _, line := range l.certificates {
		for _, name := range names {
			if _, ok := line.san.match(name); ok {
				c := line.caller
				c.Name = "certificate " + name
				return c, true
			}
		}
	}
	return Caller{}, false
}
