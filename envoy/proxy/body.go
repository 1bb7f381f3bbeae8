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
	var trailers [][2]string
	ends := errors.Is(err, io.EOF)
	if ends {
		trailers = fields(b.upstream.Trailer)
		ends = len(trailers) == 0
	}
	if n > 0 {
		if cut := b.exchange.Chunk(p[:n], ends); cut != nil {
			return 0, errClosed
		}
	}
	switch {
	case err == nil || ends && n > 0:
	case !errors.Is(err, io.EOF):
		_ = b.exchange.Reset(b.cause())
	case ends: // what the filter makes of the end alone comes too late: the body is out
		_ = b.exchange.Chunk(nil, true)
	default:
		_ = b.exchange.Trailers(trailers)
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
