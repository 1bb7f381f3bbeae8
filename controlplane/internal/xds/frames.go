package xds

import (
	"errors"
	"net"

	"golang.org/x/time/rate"
)

var errFrames = errors.New("too many small HTTP/2 frames")

const (
	preface     = 24 // bytes that open a connection
	frameHeader = 9

	// smallFrame is what a frame must have not to count; the acknowledgement of
	// a ping or of a push counts.
	smallFrame                   = 512
	burstFrames, framesPerSecond = 2000, 100
)

// frames reads HTTP/2 from a proxy and ends at a flood of small frames. gRPC
// keeps each DATA frame in a buffer of its own until the message is complete: a
// message in frames of one byte takes many times its size.
type frames struct {
	net.Conn
	small  *rate.Limiter
	header [frameHeader]byte
	have   int // bytes of header
	left   int // bytes to pass over before the next header
}

func newFrames(conn net.Conn) *frames {
	return &frames{Conn: conn, small: rate.NewLimiter(framesPerSecond, burstFrames), left: preface}
}

// Read implements net.Conn.
func (f *frames) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	for rest := b[:n]; len(rest) > 0; {
		if f.left > 0 {
			passed := min(f.left, len(rest))
			f.left -= passed
			rest = rest[passed:]
			continue
		}
		taken := copy(f.header[f.have:], rest)
		f.have += taken
		rest = rest[taken:]
		if f.have < frameHeader {
			break
		}
		f.have = 0
		f.left = int(f.header[0])<<16 | int(f.header[1])<<8 | int(f.header[2])
		if f.left < smallFrame && !f.small.Allow() {
			return 0, errFrames
		}
	}
	return n, err
}
