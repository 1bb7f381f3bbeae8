package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/build/proctest"
)

// server is a real process.
type server struct {
	url     string
	xds     string // its address
	tls     *tls.Config
	process *os.Process
}

// startServe starts serve on a directory.
func startServe(t *testing.T, dir string) server {
	t.Helper()
	return startWith(t, "", dir)
}

// startWith does so in a shell that runs a command first, with more flags if any are given.
func startWith(t *testing.T, first, dir string, flags ...string) server {
	t.Helper()
	free, err := ports.Free(2)
	require.NoError(t, err)
	web, xds := fmt.Sprint("127.0.0.1:", free[0]), fmt.Sprint("127.0.0.1:", free[1])
	cmd := exec.Command("sh", append([]string{"-c", first + `exec "$0" "$@"`, os.Args[0], "serve", "--data", dir,
		"--http", web, "--xds", xds, "--wasm", "/f.wasm"}, flags...)...)
	cmd.Env = append(os.Environ(), asSluice+"=1", proctest.Collecting)
	var log bytes.Buffer
	cmd.Stderr = &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the end of its log:\n%s", log.Bytes()[max(log.Len()-64<<10, 0):])
		}
		require.Less(t, log.Len(), 4<<20, "lines of the log are bounded")
	})
	// serve opens the port for HTTP first. By then the one for proxies may refuse a connection.
	require.Eventually(t, func() bool { return answers(web) && answers(xds) }, patience, 5*time.Millisecond)
	return server{url: "http://" + web, xds: xds, process: cmd.Process}
}

// ask sends a request as a caller does who is new.
func (s server) ask(ctx context.Context, method, path, body string) (code int, answer []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", "application/yaml")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: s.tls}}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

func (s server) apply(text string) (int, error) {
	code, answer, err := s.ask(context.Background(), http.MethodPost, "/v1/policies", text)
	if err != nil {
		return 0, err
	}
	if code != http.StatusCreated {
		return 0, fmt.Errorf("answered %d", code)
	}
	var a struct{ Revision int }
	err = json.Unmarshal(answer, &a)
	return a.Revision, err
}
