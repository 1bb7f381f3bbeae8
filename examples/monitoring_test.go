package examples_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/charttest"
)

var metric = regexp.MustCompile(`\b(?:sluice|rate_limit)_\w+\b`)

// monitoring returns the alerts and the dashboard. A real Prometheus evaluates all their queries in
// e2e.
func monitoring(t *testing.T) (alerts, dashboard []byte) {
	t.Helper()
	alerts, err := os.ReadFile(filepath.Join(charttest.Dir(), "alerts", "sluice.yaml"))
	require.NoError(t, err)
	dashboard, err = os.ReadFile(filepath.Join(charttest.Dir(), "dashboards", "sluice.json"))
	require.NoError(t, err)
	return alerts, dashboard
}

// What is drawn or alerted of is a metric that docs/metrics.md explains.
func TestMetricsExist(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(buildtest.Root(), "docs", "metrics.md"))
	require.NoError(t, err)
	var listed []string
	for _, m := range regexp.MustCompile("`((?:sluice|rate_limit)_\\w+)`").FindAllSubmatch(page, -1) {
		listed = append(listed, string(m[1]), string(m[1])+"_bucket")
	}
	alerts, dashboard := monitoring(t)
	used := slices.Concat(metric.FindAllString(string(dashboard), -1), metric.FindAllString(string(alerts), -1))
	require.Subset(t, listed, used)
	require.GreaterOrEqual(t, len(used), 50)
}

// Each alert has its times in a test of promtool's.
func TestAlertsAreTimed(t *testing.T) {
	times, err := os.ReadFile("testdata/alerts.yaml")
	require.NoError(t, err)
	text, _ := monitoring(t)
	alerts := regexp.MustCompile(`- alert: (\w+)`).FindAllSubmatch(text, -1)
	require.NotEmpty(t, alerts)
	for _, a := range alerts {
		require.Contains(t, string(times), "alertname: "+string(a[1]))
	}
}

// Grafana places panels by their grid, which is 24 wide, and tells them apart by id.
func TestPanelsDoNotOverlap(t *testing.T) {
	_, text := monitoring(t)
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range dashboard.Panels {
		require.False(t, ids[p.ID], "%s: id %d", p.Title, p.ID)
		ids[p.ID] = true
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				require.Empty(t, taken[at], p.Title)
				taken[at] = p.Title
			}
		}
	}
	require.NotEmpty(t, taken)
}
