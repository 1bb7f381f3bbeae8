package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// metricNames find the metrics in the code: those of the filter by rule and by override, its other
// ones, those of serve, and those of run.
var metricNames = map[*regexp.Regexp]string{
	regexp.MustCompile(`\{"(\w+)", m\.\w+\}`):                                       "rate_limit_%_total",
	regexp.MustCompile(`\{"(\w+)", n\.\w+\}`):                                       "rate_limit_override_%_total",
	regexp.MustCompile(`"(?:;\.;)?(rate_limit_[a-z]\w+_(?:total|bytes|degraded))"`): "%",
	regexp.MustCompile(`of\+"(rate_limit_\w+)"`):                                    "%",
	regexp.MustCompile(`(?:counter|gauge)\("(\w+)", "`):                             "sluice_%",
	regexp.MustCompile(`Namespace: "sluice", Name: "(\w+)"`):                        "sluice_%",
	regexp.MustCompile(`"(sluice_proxy_\w+)": `):                                    "%",
}

// The page names every metric that the code has, and no other.
func TestMetricsAreListed(t *testing.T) {
	var want []string
	for _, dir := range []string{"filter", "controlplane", "envoy"} {
		for _, text := range sources(t, dir) {
			for expression, name := range metricNames {
				for _, m := range expression.FindAllStringSubmatch(text, -1) {
					want = append(want, strings.Replace(name, "%", m[1], 1))
				}
			}
		}
	}
	slices.Sort(want)
	require.GreaterOrEqual(t, len(want), 34)

	var got []string
	for _, m := range regexp.MustCompile("`((?:rate_limit|sluice)_\\w+)`").FindAllStringSubmatch(document(t, "docs/metrics.md").text, -1) {
		got = append(got, m[1])
	}
	slices.Sort(got)
	require.Equal(t, slices.Compact(want), slices.Compact(got))
}

// sources returns the text of every Go file of the product below a folder.
func sources(t *testing.T, dir string) (texts []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(buildtest.Root(), dir), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		texts = append(texts, string(text))
		return err
	})
	require.NoError(t, err)
	return texts
}
