package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func TestPageIsUpToDate(t *testing.T) {
	have, err := os.ReadFile(filepath.Join(buildtest.Root(), file))
	require.NoError(t, err)
	require.Equal(t, page(policy.Model()), string(have), "go run ./docs/reference")
}

// Every field has one line, and so has what is not built.
func TestEveryFieldHasALine(t *testing.T) {
	text := page(policy.Model())
	fields := 0
	for _, o := range policy.Model() {
		_, section, _ := strings.Cut(text, "\n## "+o.Name+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		for _, f := range o.Fields {
			fields++
			lines := 0
			for _, line := range strings.Split(section, "\n") {
				if strings.HasPrefix(line, "| `"+f.Name+"` ") || strings.Contains(line, "."+f.Name+"` | ") {
					lines++
					require.Equal(t, 5, strings.Count(strings.ReplaceAll(line, `\|`, ""), "|"), line)
					require.Contains(t, line, escape(f.Doc))
				}
			}
			require.Equal(t, 1, lines, "%s.%s", o.Name, f.Name)
		}
		for _, name := range o.NotBuilt {
			require.Contains(t, section, name+"` | | | Not built yet. |\n")
		}
	}
	require.Greater(t, fields, 40)
	require.NotContains(t, text, "](#host)", "a link to an object without fields leads nowhere")
}
