package e2e

import (
	"encoding/json"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var consoleAt = regexp.MustCompile(`(?m)^console +(http\S+)/console/$`)

// The console of quickstart has figures of policies that have no manage section, also of
// those that are applied later.
func TestQuickstartHasFigures(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"run": nil, "Envoys": {"--envoy", newest(t).envoy}} {
		t.Run(name, func(t *testing.T) {
			server, suggested := startQuickstart(t, flags...)
			awaitFigures(t, server, "per-tenant")
			trySuggestions(t, suggested)
			mine := file(t, "mine.yaml", "version: 1\nrules: [{name: mine, limits: [1/1h]}]\n")
			sluiceOK(t, "apply", "--server", server, "-f", mine)
			awaitFigures(t, server, "mine")
			text := sluiceOK(t, "get", "--server", server)
			require.NotContains(t, text, "manage", "a policy stays as it was written")
		})
	}
}

// trySuggestions runs the command lines that quickstart ends with. A user who types them
// is let through at first, is denied later, and then finds the name among the keys denied.
func trySuggestions(t *testing.T, lines []string) {
	run := func(line string) string {
		out, err := exec.CommandContext(t.Context(), "bash", "-o", "pipefail", "-c", line).CombinedOutput()
		require.NoError(t, err, "%s\n%s", line, out)
		return string(out)
	}
	var denied []string // names
	for _, line := range lines {
		name := clientText.FindStringSubmatch(line)
		switch {
		case name != nil:
			require.Contains(t, run(line), " 200 OK\r\n", line)
			eventually(t, 20*time.Second, "429 from "+line,
				func() bool { return strings.Contains(run(line), " 429 Too Many Requests\r\n") })
			denied = append(denied, name[1])
		case strings.Contains(line, " counters top"):
			for _, name := range denied {
				eventually(t, 20*time.Second, name+" in "+line, func() bool { return strings.Contains(run(line), name) })
			}
		default:
			run(line)
		}
	}
	require.Len(t, denied, 2)
	require.Greater(t, len(lines), len(denied))
}

var clientText = regexp.MustCompile(`^curl -i -H 'x-\S+: (\w+)' `)

// startQuickstart returns the URL of the control plane once the transcript is over, and the
// command lines that it suggests.
func startQuickstart(t *testing.T, flags ...string) (server string, suggested []string) {
	c := startGently(t, exec.Command(built.sluice, append([]string{"quickstart", "--wasm", built.filter}, flags...)...))
	require.NoError(t, c.Until(t.Context(), "serve",
		func() bool { return strings.Contains(c.Log(), "/stats/prometheus") }))
	require.NotContains(t, c.Log(), "warning")
	found := consoleAt.FindStringSubmatch(c.Log())
	require.NotNil(t, found)
	_, rest, _ := strings.Cut(c.Log(), "It serves until Ctrl-C")
	for _, line := range strings.Split(rest, "\n") {
		if line, ok := strings.CutPrefix(line, "  "); ok {
			suggested = append(suggested, line)
		}
	}
	return found[1], suggested
}

// awaitFigures waits until each proxy tells what the rule has counted, and until the
// console shows it.
func awaitFigures(t *testing.T, server, rule string) {
	eventually(t, 20*time.Second, "figures of "+rule, func() bool {
		res, err := http.Post(server+"/v1/counters/stats", "", http.NoBody)
		require.NoError(t, err)
		defer res.Body.Close()
		var got struct {
			Failed  int
			Proxies []struct{ Stats []struct{ Rule string } }
		}
		require.NoError(t, json.NewDecoder(res.Body).Decode(&got))
		told := 0
		for _, p := range got.Proxies {
			for _, s := range p.Stats {
				if s.Rule == rule {
					told++
				}
			}
		}
		return got.Failed == 0 && told == 2
	})
	eventually(t, 20*time.Second, "the console to show "+rule, func() bool {
		return strings.Contains(body(t, server+"/console/rules"), `data-denied="`+rule+`"`)
	})
}
