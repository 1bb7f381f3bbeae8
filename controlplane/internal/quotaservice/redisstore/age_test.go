package redisstore

import (
	"bufio"
	"net"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// answering is a client of a server that answers CLUSTER SLOTS so.
func answering(t *testing.T, slots string) rueidis.Client {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for lines := bufio.NewScanner(c); lines.Scan(); {
					answer := ""
					switch lines.Text() {
					case "SLOTS":
						answer = slots
					case "HELLO":
						answer = "*2\r\n$5\r\nproto\r\n:2\r\n"
					case "PING":
						answer = "+PONG\r\n"
					}
					if _, err := c.Write([]byte(answer)); err != nil {
						return
					}
				}
			}()
		}
	}()
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{listener.Addr().String()}, ForceSingleClient: true, AlwaysRESP2: true, DisableCache: true,
		ClientSetInfo: rueidis.DisableClientSetInfo,
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// TestSlotsOfACluster: a wrong answer to CLUSTER SLOTS is an error, and no server without a slot.
func TestSlotsOfACluster(t *testing.T) {
	const master = "*3\r\n$1\r\nh\r\n:1\r\n$2\r\nid\r\n"
	for name, c := range map[string]struct {
		answer string
		want   []serverSlots
	}{
		"a server":            {"*1\r\n*3\r\n:2\r\n:4\r\n" + master, []serverSlots{{2, 3, 4}}},
		"last before first":   {"*1\r\n*3\r\n:4\r\n:2\r\n" + master, nil},
		"too many slots":      {"*1\r\n*3\r\n:4\r\n:16384\r\n" + master, nil},
		"a slot before all":   {"*1\r\n*3\r\n:-1\r\n:2\r\n" + master, nil},
		"a master without ID": {"*1\r\n*3\r\n:2\r\n:4\r\n*2\r\n$1\r\nh\r\n:1\r\n", nil},
		"no range":            {"*0\r\n", nil},
	} {
		s := &Store{client: answering(t, c.answer), cluster: true}
		servers, err := s.servers(t.Context())
		require.Equal(t, c.want, servers, name)
		if c.want == nil {
			require.ErrorIs(t, err, errAnswer, name)
		}
	}
}
