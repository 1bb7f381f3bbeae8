package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/canary"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/rollouts"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

var statusTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestStatusTable(t *testing.T) {
	long := strings.Repeat("é\n", 250)
	var out strings.Builder
	printStatus(&out, &api.Status{
		CutOff:   "cut off from etcd since noon",
		Starting: "the quota store is starting",
		Policies: []api.PolicyStatus{{
			Policy:  store.DefaultPolicy,
			Current: &store.Summary{Number: 1, File: "one.yaml", Created: statusTime},
			Newest:  &store.Summary{Number: 2, File: "two.yaml", Created: statusTime, Nacked: true},
		}},
		Proxies: []xds.ProxyStatus{
			{Proxy: store.Proxy{Node: "edge-1"}, Since: statusTime, State: "connected", Runs: 1, Pushed: 1, Envoy: "1.40.0"},
			{
				Proxy: store.Proxy{Node: "edge-2", Nacked: 2, NackedAt: statusTime, NackText: long},
				Since: statusTime, State: "refused revision 2, " + long,
			},
			{Proxy: store.Proxy{Node: strings.Repeat("n", 300)}, Since: statusTime, State: "connected"},
		},
	})
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	require.Len(t, lines, 8, "one line a proxy")
	require.Equal(t, "NOTHING CAN BE CHANGED HERE: cut off from etcd since noon", lines[2])
	require.Equal(t, "the quota store is starting", lines[3])
	lines = slices.Delete(lines, 2, 4)
	require.Equal(t, "revision 1  one.yaml  applied 2026-01-02 03:04:05Z", lines[0])
	require.Equal(t, "revision 2  two.yaml  applied 2026-01-02 03:04:05Z, refused: not current", lines[1])
	header, _, _ := strings.Cut(lines[2], "SINCE")
	since := len([]rune(header))
	for _, line := range lines[3:] {
		require.Less(t, len([]rune(line)), 450)
		require.Equal(t, "2026-01-02", string([]rune(line)[since:since+10]), "columns stay aligned")
	}
	require.True(t, strings.HasSuffix(lines[4], "…"), lines[4])
}

// What a canary has denied so far is told apart from what it denied when it stalled.
func TestStatusOfCanaries(t *testing.T) {
	var out strings.Builder
	current := &store.Summary{Number: 1, File: "one.yaml", Created: statusTime}
	newest := &store.Summary{Number: 2, File: "two.yaml", Created: statusTime}
	c := &rollouts.Status{Revision: 2, Says: "stalled, waits for promote or abort: because"}
	c.Percent = 25
	c.Runs = 1
	c.Of = 4
	c.Seen = []canary.Rule{
		{Rule: "r", Canary: canary.Count{Requests: 200, Denied: 50}, Others: canary.Count{Requests: 600}},
	}
	printStatus(&out, &api.Status{Policies: []api.PolicyStatus{
		{Policy: store.DefaultPolicy, Current: current, Newest: newest, Canary: c},
		{Policy: "edge", Current: current, Aborted: &store.Summary{
			Number: 3, File: "two.yaml", Created: statusTime, Rollout: &store.Rollout{Why: "because"},
		}},
	}})
	require.Equal(t, `revision 1  one.yaml  applied 2026-01-02 03:04:05Z
revision 2  two.yaml  applied 2026-01-02 03:04:05Z, a canary of 25% on 1 of 4 proxies
canary stalled, waits for promote or abort: because
so far: r denies 25.0 % of 200 requests in the canary, 0.0 % of 600 on other proxies
policy edge: revision 1  one.yaml  applied 2026-01-02 03:04:05Z
policy edge: revision 3  two.yaml  applied 2026-01-02 03:04:05Z, aborted by itself: because
no proxy is connected
`, out.String())
}

// The advice names the lines that say why.
func TestHintsAboutProxies(t *testing.T) {
	for outcome, want := range map[xds.Outcome]string{
		xds.Nacked: "the lines with NACK say why; sluice status repeats it as LAST NACK",
		xds.Unsent: `the lines with "not sent" say why`,
	} {
		err := (&rollout{}).judge(&rolledOut{Outcomes: []xds.ProxyOutcome{{Node: "e1", Outcome: outcome, Text: "no"}}})
		require.Equal(t, want, Hint(err))
		var line strings.Builder
		printOutcome(&line, xds.ProxyOutcome{Node: "e1", Outcome: outcome, Text: "no"})
		require.Regexp(t, `^e1 +(NACK|not sent)  no\n$`, line.String())
	}
}
