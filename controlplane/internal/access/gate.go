package access

import (
	"crypto/x509"
	"net/http"
	"strings"
)

// Gate tells who makes a request: by its bearer token if it has one, else by
// the client certificate of its connection.
type Gate struct {
	List func() *List
	// ClientCAs vouch for certificates; nil where none counts. The handshake has
	// verified the certificate. It is verified again here, because a connection
	// may outlive the certificate and the trust in its authority.
	ClientCAs func() *x509.CertPool
}

// Identify returns the caller of a request, false if it is nobody known.
func (g Gate) Identify(r *http.Request) (Caller, bool) {
	if given := r.Header.Values("Authorization"); len(given) > 0 {
		scheme, token, _ := strings.Cut(given[0], " ")
		if len(given) > 1 || !strings.EqualFold(scheme, "Bearer") {
			return Caller{}, false
		}
		return g.List().Token(strings.TrimSpace(token))
	}
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || g.ClientCAs == nil {
		return Caller{}, false
	}
	leaf, intermediates := r.TLS.PeerCertificates[0], x509.NewCertPool()
	for _, c := range r.TLS.PeerCertificates[1:] {
		intermediates.AddCert(c)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: g.ClientCAs(), Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return Caller{}, false
	}
	return g.List().Certificate(leaf)
}
