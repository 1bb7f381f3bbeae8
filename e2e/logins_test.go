package e2e

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// gatekeeper is an upstream for logins. It sees how many run or have failed at once.
type gatekeeper struct {
	*httptest.Server
	mu                    sync.Mutex
	running, failed, most int
}

func startGatekeeper(t *testing.T) *gatekeeper {
	g := &gatekeeper{}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, err := strconv.Atoi(r.Header.Get("answer"))
		if err != nil {
			return // a probe
		}
		g.change(1, 0)
		time.Sleep(30 * time.Millisecond)
		if status == http.StatusUnauthorized {
			g.change(-1, 1)
		} else {
			g.change(-1, 0)
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(g.Close)
	return g
}

func (g *gatekeeper) change(running, failed int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running += running
	g.failed += failed
	g.most = max(g.most, g.running+g.failed)
}

// logged has an Envoy write what the filter said of each request.
func logged(bootstrap []byte, path string) []byte {
	const prefix = "          stat_prefix: ingress\n"
	return []byte(strings.Replace(string(bootstrap), prefix, prefix+
		"          access_log: [{name: file, typed_config: {'@type': type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: "+path+
		`, log_format: {text_format_source: {inline_string: "%RESPONSE_CODE% %FILTER_STATE(wasm.sluice.verdict:PLAIN)%\n"}}}}]`+"\n", 1))
}

// TestLoginsOfWhichSomeFail: exactly those that fail count in the end, and never more than
// the limit run or have failed. Whom only others in flight deny may try again after 1 s.
func TestLoginsOfWhichSomeFail(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		log := filepath.Join(t.TempDir(), "access")
		g := startGatekeeper(t)
		p := d.start(t, proxyOptions{policy: failedLogins + managed, upstream: g.URL, edit: func(b []byte) []byte { return logged(b, log) }})

		denied := p.succeedAtOnce(t, 40)
		require.Positive(t, denied)
		require.Zero(t, used(t, p, "failed-logins"))
		if d.envoy != "" {
			eventually(t, 20*time.Second, "the access log", func() bool {
				text, err := os.ReadFile(log)
				require.NoError(t, err)
				return strings.Count(string(text), "429 failed-logins=denied:held\n") == denied
			})
		}

		for round := 0; g.failed < 5; round++ {
			require.Less(t, round, 50)
			p.load(12).send(t, 24, func(i int) request {
				if i%3 == 0 {
					return request{"/login", "answer", "200"}
				}
				return request{"/login", "answer", "401"}
			})
		}
		require.EqualValues(t, 5, used(t, p, "failed-logins"))
		require.Equal(t, 20, count(p.load(4).send(t, 20, func(int) request { return request{"/login", "answer", "200"} }), 429))
		require.Equal(t, 5, g.failed)
		require.LessOrEqual(t, g.most, 5)
	})
}

// succeedAtOnce sends logins that all succeed, and returns how many were told to try again.
func (p *proxy) succeedAtOnce(t *testing.T, n int) (denied int) {
	t.Helper()
	told := make(chan string, n)
	for range n {
		go func() {
			res, _, err := p.try("/login", "answer", "200")
			switch {
			case err != nil:
				told <- err.Error()
			case res.StatusCode == http.StatusTooManyRequests:
				told <- res.Header.Get("retry-after")
			default:
				told <- ""
			}
		}()
	}
	for range n {
		if after := <-told; after != "" {
			require.Equal(t, "1", after)
			denied++
		}
	}
	return denied
}
