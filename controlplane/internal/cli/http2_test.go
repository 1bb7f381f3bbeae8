package cli

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// What one connection may have served at once is far less than HTTP/2's usual
// 250 requests: connections are bounded, so requests are.
func TestStreamsOfAConnectionAreBounded(t *testing.T) {
	a := newAuthority(t)
	g := startGuarded(t, a)
	config := g.config(a, "")
	config.NextProtos = []string{"h2"}
	c, err := tls.Dial("tcp", g.web, config)
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
	require.NoError(t, err)
	// The server's first frame holds its settings: two bytes for the name, four
	// for the value.
	header := make([]byte, 9)
	_, err = io.ReadFull(c, header)
	require.NoError(t, err)
	require.EqualValues(t, 4, header[3])
	settings := make([]byte, int(header[1])<<8|int(header[2]))
	_, err = io.ReadFull(c, settings)
	require.NoError(t, err)
	const maxConcurrentStreams = 3
	given := map[uint16]uint32{}
	for ; len(settings) > 0; settings = settings[6:] {
		given[binary.BigEndian.Uint16(settings)] = binary.BigEndian.Uint32(settings[2:])
	}
	require.EqualValues(t, maxRequests, given[maxConcurrentStreams])
	require.NoError(t, g.serve.end(t))
}
