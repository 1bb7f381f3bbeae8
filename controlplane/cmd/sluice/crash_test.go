package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/ports"
)

// TestKillLosesNoAcknowledgedRevision kills serve in the middle of a stream of
// applies, again and again on one data directory.
func TestKillLosesNoAcknowledgedRevision(t *testing.T) {
	dir := t.TempDir()
	acknowledged := map[int]string{} // revision → text
	for round := range 6 {
		s := startServe(t, dir)
		s.check(t, acknowledged)
		s.checkAudit(t, acknowledged)
		enough := len(acknowledged) + 5 + rand.IntN(20)
		var mu sync.Mutex
		var wg sync.WaitGroup
		for applier := range 3 {
			wg.Go(func() {
				for i := 0; ; i++ {
					text := fmt.Sprintf("version: 1\ndomain: d-%d-%d-%d\nrules: []\n%s", round, applier, i, padding(i))
					revision, err := s.apply(text)
					if err != nil {
						return // killed
					}
					mu.Lock()
					acknowledged[revision] = text
					mu.Unlock()
				}
			})
		}
		require.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(acknowledged) >= enough
		}, patience, time.Millisecond)
		require.NoError(t, s.process.Kill())
		_, _ = s.process.Wait()
		wg.Wait()
	}
	s := startServe(t, dir)
	s.check(t, acknowledged)
	s.checkAudit(t, acknowledged)
	require.NoError(t, s.process.Signal(syscall.SIGTERM))
	state, err := s.process.Wait()
	require.NoError(t, err)
	require.True(t, state.Success(), "told to stop, it ends well")
}

// padding makes revisions of one to many pages.
func padding(i int) string { return strings.Repeat("# padding\n", i%7*1000) }

// server is a real process.
type server struct {
	url     string
	xds     string // its address
	tls     *tls.Config
	process *os.Process
}

// startServe starts serve on a directory, by a command that runs another one if
// one is given.
func startServe(t *testing.T, dir string, wrapper ...string) server {
	t.Helper()
	free, err := ports.Free(2)
	require.NoError(t, err)
	web, xds := fmt.Sprint("127.0.0.1:", free[0]), fmt.Sprint("127.0.0.1:", free[1])
	args := slices.Concat(wrapper, []string{os.Args[0], "serve", "--data", dir, "--http", web, "--xds", xds})
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), asSluice+"=1", buildtest.Collecting)
	var log bytes.Buffer
	cmd.Stderr = &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	s := server{url: "http://" + web, xds: xds, process: cmd.Process}
	require.Eventually(t, func() bool { return answers(web) }, patience, 5*time.Millisecond)
	return s
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

// checkAudit compares the audit log with the revisions: each has its entry, and
// there is no entry of one that was never stored.
func (s server) checkAudit(t *testing.T, acknowledged map[int]string) {
	t.Helper()
	var history struct {
		Revisions []struct {
			Revision int `json:"revision"`
		} `json:"revisions"`
	}
	s.get(t, "/v1/policies", &history)
	var stored, told []int
	for _, r := range history.Revisions {
		stored = append(stored, r.Revision)
	}
	for before := ""; ; {
		var page struct {
			Entries []struct {
				ID       int    `json:"id"`
				Action   string `json:"action"`
				From     string `json:"from"`
				Revision int    `json:"revision"`
			} `json:"entries"`
		}
		s.get(t, "/v1/audit?limit=100"+before, &page)
		if len(page.Entries) == 0 {
			break
		}
		for _, e := range page.Entries {
			require.Equal(t, "apply", e.Action)
			require.Equal(t, "127.0.0.1", e.From)
			told = append(told, e.Revision)
			before = fmt.Sprintf("&before=%d", e.ID)
		}
	}
	require.Equal(t, stored, told)
	for revision := range acknowledged {
		require.Contains(t, told, revision)
	}
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

func (s server) check(t *testing.T, acknowledged map[int]string) {
	t.Helper()
	for revision, text := range acknowledged {
		var r struct {
			YAML string `json:"yaml"`
		}
		s.get(t, fmt.Sprint("/v1/policies/", revision), &r)
		require.Equal(t, text, r.YAML, "revision %d", revision)
	}
}
