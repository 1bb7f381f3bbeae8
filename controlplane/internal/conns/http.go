package conns

import (
	"context"
	"net"
	"net/http"
)

type connKey struct{}

// Context is an http.Server's ConnContext. Keep needs it.
func Context(ctx context.Context, c net.Conn) context.Context {
	for {
		switch conn := c.(type) {
		case *Conn:
			return context.WithValue(ctx, connKey{}, conn)
		case interface{ NetConn() net.Conn }: // TLS
			c = conn.NetConn()
		default:
			return ctx
		}
	}
}

// Keep keeps a connection while it waits for the answer to a request. A connection
// that still sends a body is not kept: it could take as long as it likes.
func Keep(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*Conn); ok && r.ContentLength == 0 {
			c.Keep(1)
			defer c.Keep(-1)
		}
		next.ServeHTTP(w, r)
	})
}
