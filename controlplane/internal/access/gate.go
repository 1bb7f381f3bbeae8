package access

import (
	"context"
	"crypto/x509"
	"net/http"
	"strings"
)

// Gate finds the caller of a request: by its bearer token if it has one, else by
// the client certificate of its connection.
type Gate struct {
	List func() *List
	// ClientCAs vouch for certificates, at each request anew. Nil: no certificate counts.
	ClientCAs func() *x509.CertPool
}

type digestKey struct{}

// WithToken returns a context whose requests bear the token with this digest. It is
// for requests that this process makes to itself, for somebody who showed the token.
func WithToken(ctx context.Context, d Digest) context.Context {
	return context.WithValue(ctx, digestKey{}, d)
}

// ShowsToken reports whether a request shows a token, be it a wrong one.
func ShowsToken(r *http.Request) bool {
	_, ok := r.Context().Value(digestKey{}).(Digest)
	return ok || len(r.Header.Values("Authorization")) > 0
}

// Identify returns the caller of a request, false for an unknown one.
func (g Gate) Identify(r *http.Request) (Caller, bool) {
	if d, ok := r.Context().Value(digestKey{}).(Digest); ok {
		c, known := g.List().tokens[d]
		return c, known
	}
	if given := r.Header.Values("Authorization"); len(given) > 0 {
		scheme, token, _ := strings.Cut(given[0], " ")
		if len(given) > 1 || !strings.EqualFold(scheme, "Bearer") {
			return Caller{}, false
		}
		return g.List().Token(strings.TrimSpace(token))
	}
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || g.ClientCAs == nil || Verify(r.TLS.PeerCertificates, g.ClientCAs()) != nil {
		return Caller{}, false
	}
	return g.List().Certificate(r.TLS.PeerCertificates[0])
}
