package replay_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/replay"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/report"
)

var update = flag.Bool("update", false, "write what comes of the logs of testdata into their files")

// Each archive has policies, each alone or with another before a log and what they make of it.
func TestReplays(t *testing.T) {
	wasm := buildtest.Wasm(t)
	buildtest.Archives(t, "testdata/replays/*.txtar", *update, func(files []txtar.File) {
		var o replay.Options
		for i := range files {
			switch f := &files[i]; f.Name {
			case "log":
				log := filepath.Join(t.TempDir(), "log")
				require.NoError(t, os.WriteFile(log, f.Data, 0o600))
				o.Log = accesslog.Options{Names: []string{log}, Sort: time.Second}
			case "comes to":
				r, err := replay.Run(t.Context(), o)
				f.Data = []byte(strings.ReplaceAll(said(t, r, err), o.Log.Names[0], "log"))
				o = replay.Options{}
			default:
				policy := replay.File{Name: f.Name, Text: f.Data}
				if o.Policy.Text != nil {
					o.Against = &policy
					continue
				}
				o = replay.Options{Policy: policy, Unknown: 0.1, Wasm: wasm, CacheDir: buildtest.CacheDir()}
			}
		}
	})
}

// said is a report, and how much is used of each limit, or the error.
func said(t *testing.T, r *replay.Report, err error) string {
	t.Helper()
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	var b strings.Builder
	require.NoError(t, report.Text(&b, r))
	for i := range r.Rules {
		for _, u := range r.Rules[i].Use {
			const format = "%s, limit %s of %d %s: half use %d, one %d\n"
			fmt.Fprintf(&b, format, r.Rules[i].Rule, u.Limit, u.Units, u.From, u.P50, u.Max)
		}
	}
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.NotContains(t, string(text), "s3cret", "as a credential")
	return b.String()
}
