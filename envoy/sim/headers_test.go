package sim

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPairsHaveTheirGoldenBytes(t *testing.T) {
	h := headers{{"a", "1"}, {"bc", ""}}
	wire := []byte("\x02\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00a\x001\x00bc\x00\x00")
	require.Equal(t, wire, h.marshal(nil))
	require.Equal(t, h, unmarshalPairs(wire))

	for name, bad := range map[string][]byte{
		"nothing":          nil,
		"a short count":    wire[:3],
		"short lengths":    wire[:10],
		"a short value":    wire[:len(wire)-1],
		"bytes left over":  append(append([]byte{}, wire...), 0),
		"no zero byte":     append(append([]byte{}, wire[:21]...), []byte("x1\x00bc\x00\x00")...),
		"too many pairs":   {0x01, 0x04, 0, 0},
		"a length too big": {1, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0},
		"too many bytes":   make([]byte, pairsMaxBytes+1),
	} {
		require.Empty(t, unmarshalPairs(bad), name)
	}
}

func FuzzPairs(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00a\x001\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h := unmarshalPairs(b); len(h) > 0 {
			require.Equal(t, b, h.marshal(nil))
		}
	})
}

func TestLocalReplyToGRPC(t *testing.T) {
	for name, c := range map[string]struct {
		reply localReply
		want  string
	}{
		"given":                   {localReply{status: 429, grpcStatus: 8}, "8"},
		"of 429":                  {localReply{status: 429, grpcStatus: -1}, "14"},
		"of 403":                  {localReply{status: 403, grpcStatus: 99}, "7"},
		"ok is taken at its word": {localReply{status: 429, grpcStatus: 0}, "0"},
		"a header goes first":     {localReply{status: 429, grpcStatus: 8, headers: headers{{"grpc-status", "9"}}}, "9"},
	} {
		c.reply.body = []byte("slow down: 100%~\n")
		h, body := c.reply.build(true)
		require.Empty(t, body)
		require.ElementsMatch(t, headers{
			{":status", "200"},
			{"content-type", "application/grpc"},
			{"grpc-status", c.want},
			{"grpc-message", "slow down: 100%25%7E%0A"},
		}, h, name)
	}
	h, _ := (&localReply{status: 429, headers: headers{{"content-type", "text/html"}}}).build(false)
	require.Equal(t, headers{{":status", "429"}}, h, "without a body no content type")
}
