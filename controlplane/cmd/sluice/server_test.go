package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/ports"
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
	cmd.Env = append(os.Environ(), asSluice+"=1", buildtest.Collecting)
	var log bytes.Buffer
	cmd.Stderr = &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		require.Less(t, log.Len(), 4<<20, "lines of the log are bounded")
	})
	require.Eventually(t, func() bool { return answers(web) }, patience, 5*time.Millisecond)
	return server{url: "http://" + web, xds: xds, process: cmd.Process}
}

func (s server) apply(text string) (int, error) {
	response, err := http.Post(s.url+"/v1/policies", "application/yaml", strings.NewReader(text))
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	var a struct {
		Revision int `json:"revision"`
	}
	if err := json.NewDecoder(response.Body).Decode(&a); err != nil {
		return 0, err
	}
	if response.StatusCode != http.StatusCreated {
		return 0, fmt.Errorf("answered %s", response.Status)
	}
	return a.Revision, nil
}

// get reads a JSON answer.
func (s server) get(t *testing.T, path string, into any) {
	t.Helper()
	response, err := http.Get(s.url + path)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode, path)
	require.NoError(t, json.NewDecoder(response.Body).Decode(into))
}
