package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// Every command of the page's section on counters is run by its script, there
// with addresses that are free.
func TestOperatingCommands(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(buildtest.Root(), "docs", "operating.md"))
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "\n## Manage counters\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	script, err := os.ReadFile("testdata/script/managecounters.txtar")
	require.NoError(t, err)
	free := strings.NewReplacer("127.0.0.1:18080", "$HTTP", "127.0.0.1:9902/", "$ONE/")
	commands := regexp.MustCompile(`(?m)^(?:    )?((?:sluice|openssl|printf|curl) .*)$`).FindAllStringSubmatch(section, -1)
	require.Len(t, commands, 10)
	for _, c := range commands {
		run := free.Replace(c[1])
		run, _ = strings.CutPrefix(run, "curl ")
		require.Contains(t, string(script), run, "docs/operating.md: %s", c[1])
	}
}
