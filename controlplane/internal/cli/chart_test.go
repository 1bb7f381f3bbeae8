package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// TestFlagsOfTheChart: the values of the Helm chart below flags have the names of flags, and each
// flag is a value, unless the chart itself sets it or has another value for it.
func TestFlagsOfTheChart(t *testing.T) {
	type flags struct {
		Properties struct {
			Flags struct{ Properties map[string]any }
		}
	}
	var schema struct {
		Properties struct{ Serve, Quota, Apply flags }
	}
	text, err := os.ReadFile(filepath.Join(buildtest.Root(), "examples", "chart", "values.schema.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &schema))
	set := []string{"http", "tls-cert", "tls-key", "insecure", "help"} // insecure: nothing listens without TLS
	for _, c := range []struct {
		command *cobra.Command
		values  flags
		without []string
	}{
		{newServeCommand(), schema.Properties.Serve, append([]string{
			"data", "xds", // rate limit calls are quota's
			"ratelimit-config", "ratelimit-merge", "ratelimit-xds", "ratelimit-xds-ca", "ratelimit-node", "ratelimit-headers",
			"ratelimit-metadata",
		}, set...)},
		{newQuotaCommand(), schema.Properties.Quota, append([]string{"listen"}, set...)},
		{newApplyCommand(), schema.Properties.Apply, []string{ // canaries are for people who watch them
			"file", "server", "output", "canary", "promote-after", "max-denied", "abort-on-denied", "help",
		}},
	} {
		c.command.InitDefaultHelpFlag()
		want := c.without
		for name := range c.values.Properties.Flags.Properties {
			want = append(want, name)
		}
		var got []string
		c.command.Flags().VisitAll(func(f *pflag.Flag) { got = append(got, f.Name) })
		require.ElementsMatch(t, want, got, c.command.Name())
	}
}
