package xds

import (
	"context"
	"crypto/x509"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/peer"
)

// NewCodec returns the codec of the discovery services, for a listener that serves
// others beside them.
func NewCodec() encoding.CodecV2 { return newCodec() }

// guestFrames is how many small frames a second a connection may send that another
// service's streams use: a proxy's asks for units are small and many.
const guestFrames = 50_000

// Guest is a connection of the listener as another service sees it. It takes no part
// in what the discovery services count.
type Guest struct {
	connection *connection
	clientCAs  func() *x509.CertPool
}

// GuestOf finds a stream's connection. clientCAs vouch for certificates, where any
// are asked for.
func GuestOf(ctx context.Context, clientCAs func() *x509.CertPool) Guest {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Guest{newConnection(nil, nil), nil}
	}
	return Guest{connectionOf(p), clientCAs}
}

// Certificate returns the certificate that the proxy showed, nil if none was asked
// for.
func (g Guest) Certificate() *x509.Certificate {
	if chain := g.connection.certificates(); chain != nil {
		return chain[0]
	}
	return nil
}

// Verify says whether the certificate is trusted still, and closes the connection if
// it is not.
func (g Guest) Verify() error { return g.connection.verify(g.clientCAs) }

// Enter notes that a stream is open, until leave is called: the connection does not
// give way to others, and may send many small frames.
func (g Guest) Enter() (leave func()) {
	g.connection.keep(1)
	if f := g.connection.frames; f != nil {
		f.small.SetLimit(guestFrames)
		f.small.SetBurst(guestFrames)
	}
	return func() { g.connection.keep(-1) }
}

// Close closes the connection at once, with all its streams.
func (g Guest) Close() {
	if g.connection.raw != nil {
		_ = g.connection.raw.Close()
	}
}
