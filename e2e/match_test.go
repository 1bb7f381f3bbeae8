package e2e

import (
	"bufio"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// raw sends a request with exactly this target and these header lines, on a connection of its own.
func (p *proxy) raw(t *testing.T, method, target string, lines ...string) *http.Response {
	text := method + " " + target + " HTTP/1.1\r\nconnection: close\r\n"
	if len(lines) == 0 || !strings.HasPrefix(lines[0], "host:") {
		text += "host: a\r\n"
	}
	c, err := net.Dial("tcp", p.address)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	_, _ = c.Write([]byte(text + strings.Join(append(lines, "", ""), "\r\n"))) // the proxy may close the connection first
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err, target)
	res.Body.Close()
	return res
}

func TestMatchPaths(t *testing.T) { everyProxy(t, rows("paths")) }

func TestForwardedForIsNotBelieved(t *testing.T) { everyProxy(t, rows("forwarded")) }

func TestWhoTheClientIs(t *testing.T) { everyEnvoy(t, rows("clients")) }

func TestHiddenManagementPaths(t *testing.T) { each(t, rows("hidden")) }
