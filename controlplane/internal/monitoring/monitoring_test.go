package monitoring

import (
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
