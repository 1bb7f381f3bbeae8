package proxy

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// body is an upstream's body that the filter sees as it is read.
type body struct {
	io.ReadCloser
	exchange *sim.Exchange
	upstream *http.Response
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		if cut := b.exchange.Chunk(p[:n], false); cut != nil {
			return 0, errClosed
		}
	}
	switch {
	case err == nil:
	case !errors.Is(err, io.EOF):
		_ = b.exchange.Reset(b.cause())
	default: // what the filter makes of the end comes too late: the body is out
		if trailers := fields(b.upstream.Trailer); len(trailers) > 0 {
			_ = b.exchange.Trailers(trailers)
		} else {
			_ = b.exchange.Chunk(nil, true)
		}
	}
	return n, err
}

// cause is why the body has no end.
func (b *body) cause() sim.Cause {
	if b.upstream.Request.Context().Err() != nil {
		return sim.ClientGone
	}
	return sim.UpstreamReset
}

// Close ends the exchange, for whoever reads no further.
func (b *body) Close() error {
	_ = b.exchange.Reset(sim.ClientGone)
	return b.ReadCloser.Close()
}

// counted counts what is read of a request's body.
type counted struct {
	io.ReadCloser
	read *atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.read.Add(int64(n))
	return n, err
}
