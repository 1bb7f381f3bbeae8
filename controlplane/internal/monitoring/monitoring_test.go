package monitoring

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

var metric = regexp.MustCompile(`\b(?:sluice|rate_limit)_\w+\b`)

// What is drawn or alerted of is a metric that docs/metrics.md explains.
func TestMetricsExist(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(buildtest.Root(), "docs", "metrics.md"))
	require.NoError(t, err)
	var listed []string
	for _, m := range regexp.MustCompile("`((?:sluice|rate_limit)_\\w+)`").FindAllSubmatch(page, -1) {
		listed = append(listed, string(m[1]), string(m[1])+"_bucket")
	}
	text, err := Dashboard()
	require.NoError(t, err)
	used := slices.Concat(metric.FindAllString(string(text), -1), metric.FindAllString(string(Rules), -1))
	require.Subset(t, listed, used)
	require.GreaterOrEqual(t, len(used), 50)
}

// Panels stand beside and below each other, each with an id of its own, and none
// without a query.
func TestDashboardIsLaidOut(t *testing.T) {
	text, err := Dashboard()
	require.NoError(t, err)
	var d struct {
		Panels []struct {
			ID          int
			Title, Type string
			GridPos     struct{ X, Y, W, H int }
			Targets     []any
		}
	}
	require.NoError(t, json.Unmarshal(text, &d))
	taken, ids := map[[2]int]string{}, map[int]bool{}
	for _, p := range d.Panels {
		require.False(t, ids[p.ID], p.Title)
		ids[p.ID] = true
		require.Equal(t, p.Type == "row", len(p.Targets) == 0, p.Title)
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, width, p.Title)
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				require.Empty(t, taken[at], p.Title)
				taken[at] = p.Title
			}
		}
	}
	require.Greater(t, len(ids), 15)
}

// Each alert has its times in a test of promtool's.
func TestAlertsAreTimed(t *testing.T) {
	times, err := os.ReadFile("testdata/alerts.yaml")
	require.NoError(t, err)
	alerts := regexp.MustCompile(`- alert: (\w+)`).FindAllSubmatch(Rules, -1)
	require.NotEmpty(t, alerts)
	for _, a := range alerts {
		require.Contains(t, string(times), "alertname: "+string(a[1]))
	}
}
