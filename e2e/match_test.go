package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// raw sends a request with exactly this target and these header lines.
func (p *proxy) raw(t *testing.T, method, target string, lines ...string) *http.Response {
	text := method + " " + target + " HTTP/1.1\r\nconnection: close\r\n"
	if len(lines) == 0 || !strings.HasPrefix(lines[0], "host:") {
		text += "host: a\r\n"
	}
	res := p.exchange(t, text+strings.Join(append(lines, "", ""), "\r\n"))
	require.NotNil(t, res, target)
	return res
}

func TestMatchPaths(t *testing.T) { everyProxy(t, rows("paths")) }

func TestForwardedForIsNotBelieved(t *testing.T) { everyProxy(t, rows("forwarded")) }

func TestWhoTheClientIs(t *testing.T) { everyEnvoy(t, rows("clients")) }

func TestHiddenManagementPaths(t *testing.T) { each(t, rows("hidden")) }
