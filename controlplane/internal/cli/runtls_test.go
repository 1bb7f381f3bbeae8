package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// selfSigned writes a certificate for 127.0.0.1 that vouches for itself, good
// for servers and clients, and its key.
func selfSigned(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		DNSNames:     []string{"ci.test"},
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return file(t, "cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))),
		file(t, "key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
}

func TestRunWithTLS(t *testing.T) {
	cert, key := selfSigned(t)
	control := start(t, newServeCommand(), "--data", t.TempDir(), "--http", "127.0.0.1:0", "--xds", "127.0.0.1:0",
		"--tls-cert", cert, "--tls-key", key, "--xds-client-ca", cert, "--http-client-ca", cert,
		"--access", file(t, "access", "certificate ci.test apply\n"))
	web, xds := control.find(t, `msg=serving http=(\S+)`), control.find(t, `xds=(\S+)`)
	apply := start(t, newApplyCommand(), "-f", file(t, "policy.yaml", "version: 1\nrules: [{name: all, limits: [0/1s]}]\n"),
		"--server", "https://"+web, "--ca", cert, "--cert", cert, "--cert-key", key)
	require.NoError(t, <-apply.done)

	const dead = "localhost:1," // is tried first, and the other's certificate is not for its name
	common := []string{"--xds", dead + xds, "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--wasm", needFilter(t)}
	trusted := start(t, newRunCommand(), append(common[:len(common):len(common)], "--xds-ca", cert, "--xds-cert", cert, "--xds-key", key, "--node", "ci.test")...)
	require.Equal(t, http.StatusTooManyRequests, statusOf(t, trusted.find(t, `msg=serving listen=(\S+)`)))
	stranger := start(t, newRunCommand(), append(common[:len(common):len(common)], "--xds-ca", cert, "--node", "stranger")...)
	stranger.find(t, `control plane is away.*certificate required|no policy from the control plane yet`)
	require.NoError(t, stranger.end(t))
	other := start(t, newRunCommand(), append(common[:len(common):len(common)], "--xds-ca", cert, "--xds-cert", cert, "--xds-key", key, "--node", "other")...)
	other.find(t, `control plane refuses this proxy.*reason="node id .*ci.test other.* into the file of serve --node-names`)
	require.NoError(t, other.end(t))
	require.NoError(t, trusted.end(t))
	require.NoError(t, control.end(t))
}
