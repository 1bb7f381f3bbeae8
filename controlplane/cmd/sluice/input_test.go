package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-ratelimit/sluice/build/proctest"
)

// command is this program as the command itself.
func command(t *testing.T, stderr *bytes.Buffer, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asSluice+"=1", proctest.Collecting)
	cmd.Stderr = stderr
	return cmd
}

func goodPolicy(t *testing.T, dir string) string {
	t.Helper()
	file := filepath.Join(dir, "good.yaml")
	require.NoError(t, os.WriteFile(file, []byte("version: 1\nrules: []\n"), 0o600))
	return file
}

// TestSignalsEndReading: a command that reads from a pipe on which nothing comes
// ends with the first signal.
func TestSignalsEndReading(t *testing.T) {
	dir := t.TempDir()
	good := goodPolicy(t, dir)
	for name, args := range map[string][]string{
		"simulate from standard input": {"simulate", "-f", good},
		"simulate from a named pipe":   {"simulate", "-f", good, "-r", "PIPE"},
		"validate from standard input": {"validate", "-f", "-"},
		"import from standard input":   {"import", "envoy-ratelimit", "-"},
		"apply from standard input":    {"apply", "-f", "-"},
	} {
		for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
			t.Run(name+", "+signal.String(), func(t *testing.T) {
				t.Parallel()
				pipe := filepath.Join(t.TempDir(), "pipe")
				require.NoError(t, syscall.Mkfifo(pipe, 0o600))
				in, err := os.OpenFile(pipe, os.O_RDWR, 0) // which does not wait for the other end
				require.NoError(t, err)
				defer in.Close()
				args := slices.Clone(args)
				if i := slices.Index(args, "PIPE"); i >= 0 {
					args[i] = pipe
				}
				var stderr bytes.Buffer
				cmd := command(t, &stderr, args...)
				cmd.Stdin = in
				_, err = in.WriteString("{") // and no more
				require.NoError(t, err)
				require.NoError(t, cmd.Start())
				require.Eventually(t, func() bool {
					left, err := unix.IoctlGetInt(int(in.Fd()), unix.TIOCINQ)
					return err == nil && left == 0
				}, patience, 10*time.Millisecond, "it reads")
				require.NoError(t, cmd.Process.Signal(signal))
				require.Error(t, cmd.Wait())
				require.Equal(t, 1, cmd.ProcessState.ExitCode(), "%s", &stderr)
				require.Equal(t, "error: interrupted\n", stderr.String())
			})
		}
	}
}

const mostResident = 500 << 20

// hostile are policies of nearly 1 MiB that are dear to read.
func hostile() []string {
	const size = 1<<20 - 1000
	fill := func(begin, item, end string) string {
		return begin + strings.Repeat(item, (size-len(begin)-len(end))/len(item)) + end
	}
	valid := "version: 1\nrules:\n"
	for i := range 10000 {
		valid += fmt.Sprintf("  - {name: rule-%d, key: [{header: x-user-%d}, client_ip], limits: [%[1]d/1s, %[1]d/1m]}\n",
			i, i)
	}
	return []string{
		valid, strings.ReplaceAll(valid, "rule-", "other-"),
		fill("version: 1\nrules: [", "1,", "1]\n"),
		fill("version: 1\nrules: [", "{},", "{}]\n"),
		fill("version: 1\nrules: [{", "a: 1,", "b: 1}]\n"),
		fill("version: 1\nrules: [{name: a, limits: [", "1/1s,", "1/1s]}]\n"),
		fill(`{"version":1,"rules":[`, `{"name":"a","limits":[]},`, `{"name":"a","limits":[]}]}`),
		fill("version: 1\ndomain: \"", "\\u0041", "\"\nrules: []\n"),
	}
}

// 100 callers at once, each with 1 MiB; under the race detector, which takes ten times as
// long for each, 30.
func TestParallelPoliciesAreBoundedInMemory(t *testing.T) {
	s := startServe(t, t.TempDir())
	texts := hostile()
	callers := 100
	if proctest.Race {
		callers = 30
	}
	codes, retries := make([]int, callers), make([]string, callers)
	var wg sync.WaitGroup
	for i := range codes {
		wg.Go(func() {
			response, err := http.Post(s.url+"/v1/policies", "application/yaml", strings.NewReader(texts[i%len(texts)]))
			if err != nil {
				return // refused before it had sent all
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			codes[i], retries[i] = response.StatusCode, response.Header.Get("Retry-After")
		})
	}
	wg.Wait()
	for i, code := range codes {
		require.Contains(t, []int{0, http.StatusCreated, http.StatusUnprocessableEntity, http.StatusServiceUnavailable}, code)
		require.Equal(t, code == http.StatusServiceUnavailable, retries[i] != "")
	}
	require.Contains(t, codes, http.StatusServiceUnavailable)
	for _, text := range texts[2:] { // on a busy machine none of them may have had its turn
		code, _, err := s.ask(t.Context(), http.MethodPost, "/v1/policies", text)
		require.NoError(t, err)
		require.Equal(t, http.StatusUnprocessableEntity, code)
	}
	status := proctest.StatusOf(s.process.Pid)
	peak := proctest.Memory(t, status, proctest.Peak)
	t.Logf("at most %d MiB, %d MiB afterwards", peak>>20, proctest.Memory(t, status, proctest.Resident)>>20)
	proctest.Below(t, peak, mostResident)
	_, err := s.apply("version: 1\nrules: []\n")
	require.NoError(t, err, "it goes on serving")
}
