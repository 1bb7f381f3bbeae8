package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

func TestMetricsAreListed(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(buildtest.Root(), "filter", "internal", "engine", "metrics.go"))
	require.NoError(t, err)
	names := regexp.MustCompile(`\{"(\w+)", m\.\w+\}`).FindAllStringSubmatch(string(text), -1)
	require.GreaterOrEqual(t, len(names), 9)
	metrics := document(t, "docs/counting.md").section("## Metrics")
	for _, m := range names {
		require.Contains(t, metrics, "`rate_limit_"+m[1]+"_total`")
	}

	text, err = os.ReadFile(filepath.Join(buildtest.Root(), "filter", "internal", "host", "metrics.go"))
	require.NoError(t, err)
	names = regexp.MustCompile(`"(?:;\.;)?(rate_limit_[a-z]\w+)"`).FindAllStringSubmatch(string(text), -1)
	require.Len(t, names, 2)
	for _, m := range names {
		require.Contains(t, metrics, "`"+m[1]+"`")
	}
}
