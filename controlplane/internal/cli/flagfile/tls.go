package flagfile

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
)

// ServerTLS makes the configuration of a listener, with the certificate and the authorities as
// they are at each handshake. Sessions are not resumed: each connection shows its certificate
// anew. Without authorities it asks for no certificate.
func ServerTLS(
	pair func() *tls.Certificate, clientCAs func() *x509.CertPool, auth tls.ClientAuthType, protocols ...string,
) *tls.Config {
	config := &tls.Config{
		MinVersion:             tls.VersionTLS12,
		NextProtos:             protocols,
		SessionTicketsDisabled: true,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair(), nil },
	}
	if clientCAs == nil {
		return config
	}
	asking := config.Clone()
	asking.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := config.Clone()
		now.ClientAuth, now.ClientCAs = auth, clientCAs()
		return now, nil
	}
	return asking
}

// ClientTLS is the configuration of a client that trusts the authorities in the file ca and shows
// the certificate in the file cert, which is read for each connection. Empty names stand for the
// system's authorities and for no certificate. Errors name the files by the first and the third
// argument, which are flags.
func ClientTLS(authorities, ca, certificate, cert, key string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		text, err := input.File(ca, MaxBytes)
		if err == nil {
			config.RootCAs, err = ParsePool(ca, text)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", authorities, err)
		}
	}
	if cert == "" {
		return config, nil
	}
	config.GetClientCertificate = func(asked *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := readPair(cert, key)
		if err == nil && asked.SupportsCertificate(pair) != nil {
			pair = &tls.Certificate{} // the server knows another authority
		}
		return pair, err
	}
	if _, err := readPair(cert, key); err != nil {
		return nil, fmt.Errorf("read %s: %w", certificate, err)
	}
	return config, nil
}

// readPair reads a certificate and its private key.
func readPair(cert, key string) (*tls.Certificate, error) {
	certText, err := input.File(cert, MaxBytes)
	if err != nil {
		return nil, err
	}
	keyText, err := input.File(key, MaxBytes)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certText, keyText)
	return &pair, err
}
