// Package san reads the names of a certificate by which its bearer is known.
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

const hostBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
