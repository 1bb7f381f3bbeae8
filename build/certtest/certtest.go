// Package certtest makes certificates for tests.
//
// Its invariant: they are good for an hour, and their keys are nowhere but in the test. No program
// may import it.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Files writes a certificate for 127.0.0.1 and localhost that vouches for itself, good for servers
// and clients, and its key, and returns the two files.
func Files(tb testing.TB) (cert, key string) {
	tb.Helper()
	text, secret := PEM(Issue(nil, []string{"localhost"}))
	cert, key = filepath.Join(tb.TempDir(), "cert.pem"), filepath.Join(tb.TempDir(), "key.pem")
	require.NoError(tb, os.WriteFile(cert, []byte(text), 0o600))
	require.NoError(tb, os.WriteFile(key, []byte(secret), 0o600))
	return cert, key
}

// Issue issues a certificate for the DNS names, by an authority or, where that is nil, by
// itself. It is good for servers and clients for an hour, and vouches for others too if
// it is its own authority. More may change it.
func Issue(by *tls.Certificate, names []string, more ...func(*x509.Certificate)) *tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	must(err)
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: strings.Join(append(names, "test"), " ")}, DNSNames: names,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
		IsCA: by == nil, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if c.IsCA {
		c.KeyUsage |= x509.KeyUsageCertSign
	}
	for _, change := range more {
		change(c)
	}
	issuer, signer := c, any(key)
	if by != nil {
		issuer, signer = by.Leaf, by.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, c, issuer, key.Public(), signer)
	must(err)
	leaf, err := x509.ParseCertificate(der)
	must(err)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// PEM returns the certificate and its key as files have them.
func PEM(c *tls.Certificate) (cert, key string) {
	private, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	must(err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

// Pool trusts the certificate.
func Pool(c *tls.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c.Leaf)
	return pool
}

// must is for what never fails with the certificates that tests ask for.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
