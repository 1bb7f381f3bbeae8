package replies

import (
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
)

// script is a connection that says something.
type script struct {
	net.Conn
	io.Reader
}

func (s script) Read(b []byte) (int, error) { return s.Reader.Read(b) }

// Every reply that Redis gives passes, however it is cut, and what would take the client
// more than it should does not.
func TestReplies(t *testing.T) {
	whole := func(r io.Reader) io.Reader { return r }
	cuts := []func(io.Reader) io.Reader{whole, iotest.OneByteReader, iotest.HalfReader}
	all := strings.Repeat
	long := all("x", 1000)
	for text, ok := range map[string]bool{
		"+OK\r\n": true, "-ERR no\r\n": true, ":12\r\n": true, "_\r\n": true, "#t\r\n": true, ",1.5\r\n": true,
		"(123456789012345678901\r\n": true,
		"$-1\r\n":                    true, "*-1\r\n": true, "*0\r\n": true, "%0\r\n": true, "$0\r\n\r\n": true,
		"$1000\r\n" + long + "\r\n":           true,
		"*3\r\n:0\r\n$2\r\n\r\n\r\n*-1\r\n":   true,
		"%2\r\n+a\r\n:1\r\n+b\r\n~1\r\n_\r\n": true,
		">2\r\n+message\r\n=5\r\ntxt:a\r\n":   true,
		all("*1\r\n", 7) + ":1\r\n":           true,

		"*2000000000\r\n": false, "%2000000000\r\n": false, "~2000000000\r\n": false, ">2000000000\r\n": false,
		"$2000000000\r\n": false, "!2000000000\r\n": false, "=2000000000\r\n": false,
		"*99999999999999999999\r\n": false, "$99999999999999999999\r\n": false, "%9223372036854775807\r\n": false,
		"$-2\r\n": false, "*-2\r\n": false, "%-1\r\n": false, "*?\r\n": false, "$?\r\n": false,
		"*1x\r\n": false, "*\r\n": false, "*1\n": false,
		"_ab*2000000000\r\n": false, "#tab*2000000000\r\n": false, "#\n": false, "_\n": false,
		"|1\r\n+a\r\n+b\r\n+c\r\n": false, ";3\r\nabc\r\n": false, ".\r\n": false, "HTTP/1.1 200 OK\r\n": false,
		all("*1\r\n", 9) + ":1\r\n":                    false,
		"*40000\r\n" + all("*40000\r\n", 2):            false,
		"+" + all(long, 200):                           false,
		"*200\r\n" + all("$1000\r\n"+long+"\r\n", 200): false,
	} {
		name := text[:min(len(text), 30)]
		for _, cut := range cuts {
			r := &conn{Conn: script{Reader: cut(strings.NewReader(all(text, 20)))}, parser: parser{maxReply: 100_000}}
			got, err := io.ReadAll(r)
			require.NotContains(t, string(got), "*2000000000\r\n", name)
			if ok {
				require.NoError(t, err, "%q", name)
				require.Equal(t, all(text, 20), string(got))
				require.Zero(t, r.parser.replyBytes)
			} else {
				require.ErrorIs(t, err, errReply, "%q", name)
			}
		}
	}
}

// A connection to a replica is left once all is read that its server has said, but not at once
// after it was dialed.
func TestReplicas(t *testing.T) {
	at62 := "-ERR Error running script (call to f_" + strings.Repeat("0", 40) + "): @user_script:19: @user_script: 19: "
	for text, replica := range map[string]bool{
		"-READONLY You can't write against a read only replica.\r\n":                       true,
		at62 + "-READONLY You can't write against a read only replica.\r\n":                true,
		"*2\r\n:1\r\n-READONLY You can't write against a read only replica. script: f\r\n": true,
		"-OOM command not allowed when used memory > 'maxmemory'.\r\n":                     false,
		"$10\r\n-READONLY \r\n": false,
		"+-READONLY You can't write against a read only replica.\r\n": false,
	} {
		for _, age := range []time.Duration{0, time.Hour} {
			said := script{Reader: iotest.OneByteReader(strings.NewReader(text))}
			r := &conn{Conn: said, parser: parser{maxReply: 100_000}, dialed: time.Now().Add(-age)}
			got, err := io.ReadAll(r)
			require.Equal(t, text, string(got))
			if replica && age > 0 {
				require.ErrorIs(t, err, errReplica, text)
			} else {
				require.NoError(t, err, text)
			}
		}
	}
}
