package xds

import (
	"net"
	"time"

	"golang.org/x/time/rate"
)

const (
	preface     = 24 // bytes that open a connection
	frameHeader = 9

	// smallFrame is the size below which a frame counts. The acknowledgement of a
	// ping or of a push counts.
	smallFrame                   = 512
	burstFrames, framesPerSecond = 500, 100
)

// maxDelay leaves the reply to a ping its time.
const maxDelay = 10 * time.Second

// frames reads HTTP/2 from a proxy and slows a flood of small frames down. gRPC
// keeps each DATA frame in a buffer of its own until the message is complete: a
// message in frames of one byte takes many times its size. Slowed down, a proxy
// has no reason to connect again, which would cost more.
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
	var wait time.Duration // after the last of its frames
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
		if f.left < smallFrame {
			wait = f.small.Reserve().Delay()
		}
	}
	time.Sleep(min(wait, maxDelay))
	return n, err
}
