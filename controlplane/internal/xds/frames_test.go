package xds

import (
	"bytes"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// pipe is a connection that reads from a buffer.
type pipe struct {
	net.Conn
	io.Reader
}

func (p pipe) Read(b []byte) (int, error) { return p.Reader.Read(b) }

func TestFrames(t *testing.T) {
	for _, tc := range []struct {
		name         string
		count, bytes int
		buffer       int
		takes        time.Duration
	}{
		{"large ones", 1000, smallFrame, 4096, 0},
		{"small ones, within the burst", burstFrames, 0, 4096, 0},
		{"a flood, one read a frame", burstFrames + 5*framesPerSecond, 1, 10, 5 * time.Second},
		{"a flood, read in bytes", burstFrames + 2*framesPerSecond, 8, 1, 2 * time.Second},
		{"a flood, read at once", burstFrames + 2*framesPerSecond, 8, 1 << 20, 2 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var text bytes.Buffer
				text.WriteString(http2.ClientPreface)
				framer := http2.NewFramer(&text, nil)
				for range tc.count {
					require.NoError(t, framer.WriteData(1, false, make([]byte, tc.bytes)))
				}
				want := bytes.Clone(text.Bytes())
				start := time.Now()
				var got bytes.Buffer
				_, err := io.CopyBuffer(&got, struct{ io.Reader }{newFrames(pipe{Reader: &text})}, make([]byte, tc.buffer))
				require.NoError(t, err)
				require.Equal(t, want, got.Bytes())
				require.InDelta(t, tc.takes.Seconds(), time.Since(start).Seconds(), 0.1)
			})
		})
	}
}
