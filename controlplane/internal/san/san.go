// Package san verifies certificates of clients and reads the names by which their
// bearers are known.
//
// Its invariant: a name of one kind never passes for one of another, and none
// stands for several. It must never import another package of this module.
package san

import (
	"crypto/x509"
	"strings"
)

// DNS returns the DNS names. A wildcard does not count, nor does what no name of
// a host holds: an authority that signs DNS names without looking must not have
// signed a URI.
func DNS(c *x509.Certificate) []string {
	var names []string
	for _, name := range c.DNSNames {
		if name != "" && strings.Trim(name, hostBytes) == "" {
			names = append(names, name)
		}
	}
	return names
}

// Verify says whether the authorities vouch, now, for a chain that a client has
// shown. The handshake has verified it, but a connection may outlive the
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
