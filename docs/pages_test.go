package docs_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// blockedSetup starts what docs/blocked.md takes for granted: a control plane and an Envoy,
// whose policy is the page's, but for the override.
// SERVE is the command of serve, XDS what a proxy needs to connect to it.
const blockedSetup = "```sh\n" + `mkdir -p var/log/envoy
printf only-for-this-page > management.token
sed -i 's/port: [0-9]*/port: 9902/' policy.yaml
sed '/overrides:/d' policy.yaml > first.yaml
SERVE >>"$ROOT/serve.log" 2>&1 &
until sluice status >status.txt 2>&1; do sleep 0.1; done
sluice apply -f first.yaml
sluice render envoy XDS --node edge-1 -f first.yaml --listen 127.0.0.1:10000 \
    --upstream 127.0.0.1:8080 --admin 127.0.0.1:9901 --manage 127.0.0.1:9902 \
    --access-log /var/log/envoy/access.log --wasm /usr/lib/sluice/sluice.wasm > envoy.yaml
envoy -c envoy.yaml &
until curl -sf -o ready.txt http://127.0.0.1:9901/ready; do sleep 0.2; done
for i in 1 2 3 4; do curl -s -o answer.txt -H 'x-user-id: alice' http://127.0.0.1:10000/; done
` + "```\n\n"

// TestBlockedPage runs every command of the page for a client that is denied.
func TestBlockedPage(t *testing.T) {
	t.Parallel()
	p := newPage(t, "")
	d := document(t, "docs/blocked.md")
	d.text = strings.NewReplacer("XDS", "--xds 127.0.0.1:18000", "SERVE", "sluice serve --data serve.data "+
		"--xds 127.0.0.1:18000 --http 127.0.0.1:18080 --manage-token-file management.token").Replace(blockedSetup) + d.text
	p.run(t, d, "SLUICE_SERVER="+p.rewrite.Replace("http://127.0.0.1:18080"))
}

// systemctl does what the page asks systemd for: it runs the unit's ExecStart.
const systemctl = `#!/bin/bash
set -eu
[ "$1" = daemon-reload ] && exit
unit="$ROOT/etc/systemd/system/${*: -1}.service"
if [ -e "$ROOT/serve.pid" ]; then
	kill "$(cat "$ROOT/serve.pid")"
	while [ -e "/proc/$(cat "$ROOT/serve.pid")" ]; do sleep 0.1; done
	rm "$ROOT/serve.pid"
fi
[ "$1" = stop ] && exit
command=$(sed -e ':join' -e '/\\$/{N;s/\\\n//;b join' -e '}' "$unit" | sed -n 's/^ExecStart=//p')
$command >>"$ROOT/serve.log" 2>&1 &
echo $! >"$ROOT/serve.pid"
`

// anyEnvoy runs the real Envoy beside others on this machine.
const anyEnvoy = `#!/bin/bash
exec %s --use-dynamic-base-id --concurrency 2 "$@" >>"$ROOT/envoy.log" 2>&1
`

// page is a machine for the commands of a page: a folder for its root, addresses
// that are free for those of the page.
type page struct {
	root    string
	files   string // folder for the page's files
	etcd    bool   // there is one: commands for it are run, too
	rewrite *strings.Replacer
}

func newPage(t *testing.T, files string, more ...string) page {
	t.Helper()
	root := t.TempDir()
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(upstream.Close)
	free, err := ports.Free(5)
	require.NoError(t, err)
	port := func(i int) string { return fmt.Sprint(free[i]) }
	// At each place the first text that fits is replaced.
	p := page{root, files, false, strings.NewReplacer(append(more,
		"127.0.0.1:18080", "127.0.0.1:"+port(0), "127.0.0.1:18000", "127.0.0.1:"+port(1),
		"control.example.com:18080", "localhost:"+port(0), "0.0.0.0:18080", "127.0.0.1:"+port(0),
		"control.example.com:18000", "localhost:"+port(1), "0.0.0.0:18000", "127.0.0.1:"+port(1),
		"0.0.0.0:10000", "127.0.0.1:"+port(2), "127.0.0.1:10000", "127.0.0.1:"+port(2),
		"127.0.0.1:9901", "127.0.0.1:"+port(3),
		"10.0.0.7:9902", "127.0.0.1:"+port(4), "127.0.0.1:9902", "127.0.0.1:"+port(4), "port: 9902", "port: "+port(4),
		"127.0.0.1:8080", upstream.Listener.Addr().String(),
		"control.example.com", "localhost", "10.0.0.0/24", "127.0.0.0/8", "10.0.0.7", "127.0.0.1",
		" /etc/", " "+root+"/etc/", " /usr/", " "+root+"/usr/", "=/usr/", "="+root+"/usr/",
		" /var/", " "+root+"/var/", "=/var/", "="+root+"/var/", "=/etc/", "="+root+"/etc/",
	)...)}
	p.write(t, "usr/local/bin/systemctl", systemctl, 0o755)
	envoy, err := proc.Find()
	require.NoError(t, err)
	p.write(t, "usr/local/bin/envoy", fmt.Sprintf(anyEnvoy, envoy), 0o755)
	return p
}

func (p page) write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(p.root, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), mode))
}

// step is a block of commands, and what the page shows of their output.
type step struct {
	fence
	shows []string
}

// steps writes the page's files and returns its commands.
func (p page) steps(t *testing.T, d doc) (list []step) {
	t.Helper()
	for _, f := range d.fences() {
		switch {
		case f.file == "etcd" && !p.etcd:
		case f.lang == "sh":
			list = append(list, step{fence: f})
		case f.lang == "text" && (f.file == "" || f.file == "etcd"):
			list[len(list)-1].shows = strings.Split(strings.TrimSpace(f.text), "\n")
		case strings.HasSuffix(f.file, ".service"):
			p.write(t, filepath.Join("etc/systemd/system", f.file), p.rewrite.Replace(f.text), 0o644)
		case strings.HasPrefix(f.file, "envoy"):
			p.write(t, filepath.Join(p.files, f.file), p.rewrite.Replace(f.text), 0o644)
		case f.file != "":
			p.write(t, filepath.Join(p.files, f.file), f.text, 0o644)
		}
	}
	return list
}

var blanks = regexp.MustCompile(`[ \t]+`)

// TestOperatingPage runs every command of the page, in one shell, with a real serve
// and a real Envoy. Each must succeed and print what the page shows.
func TestOperatingPage(t *testing.T) {
	t.Parallel()
	p := newPage(t, "etc/sluice")
	p.run(t, document(t, "docs/operating.md"))
	for _, token := range []string{"ci.token", "dashboard.token", "ci-2.token", "management.token"} {
		require.NotContains(t, p.log("serve.log")+p.log("envoy.log"), strings.TrimSpace(p.log("etc/sluice/"+token)))
	}
}

// shown is an expression for a line that a page shows, with one blank for several.
func shown(line string) string { return pattern(blanks.ReplaceAllString(line, " ")) }

// log is what a file on the page's machine has.
func (p page) log(name string) string {
	text, _ := os.ReadFile(filepath.Join(p.root, name))
	return string(text)
}

// run installs sluice and runs every command of a page in one shell. Each must succeed and print
// what the page shows.
func (p page) run(t *testing.T, d doc, environment ...string) {
	t.Helper()
	steps := p.steps(t, d)
	require.NotEmpty(t, steps)
	s := build(t)
	for name, file := range map[string]string{
		"usr/local/bin/sluice": s.binary, "usr/lib/sluice/sluice.wasm": buildtest.Filter(t),
	} {
		binary, err := os.ReadFile(file)
		require.NoError(t, err)
		p.write(t, name, string(binary), 0o755)
	}

	var script strings.Builder
	script.WriteString("set -euo pipefail\ntrap 'kill $(jobs -p) $(cat \"$ROOT/serve.pid\" 2>/dev/null); wait' EXIT\n")
	for i, step := range steps {
		fmt.Fprintf(&script, "exec >\"$ROOT/%d.txt\" 2>&1\necho %d >\"$ROOT/step\"\n%s", i, i, p.rewrite.Replace(step.text))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-c", script.String())
	shell.Dir = p.root
	shell.Env = append(append(os.Environ(), environment...), "ROOT="+p.root, "PATH="+
		filepath.Join(p.root, "usr/local/bin")+":"+os.Getenv("PATH"))
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	shell.Cancel = func() error { return syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) } // and what it has started
	failed := shell.Run()

	if failed != nil {
		last, err := strconv.Atoi(strings.TrimSpace(p.log("step")))
		require.NoError(t, err)
		t.Fatalf("%s: %v:\n%s\nserve: %s\nenvoy: %s", steps[last].at, failed, p.log(fmt.Sprint(last, ".txt")),
			p.log("serve.log"), p.log("envoy.log"))
	}
	for i, step := range steps {
		said := blanks.ReplaceAllString(p.log(fmt.Sprint(i, ".txt")), " ")
		t.Logf("%s:\n%s", step.at, said)
		for _, line := range step.shows {
			require.Regexp(t, shown(line), said, "%s", step.at)
		}
	}
}

// TestRateLimitPage runs the commands of the page about rate limit calls.
func TestRateLimitPage(t *testing.T) {
	t.Parallel()
	newPage(t, "").run(t, document(t, "docs/ratelimit.md"))
}
