package cli

import (
	"cmp"
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// printsNoData are the commands without --output, and why.
var printsNoData = map[string]string{
	"sluice import envoy-ratelimit": "prints a policy",
	"sluice import local-ratelimit": "prints a policy",
	"sluice quickstart":             "prints a transcript",
	"sluice render envoy":           "prints a configuration",
	"sluice render envoy-gateway":   "prints a resource",
	"sluice render filter":          "prints a configuration",
	"sluice render grafana":         "prints JSON in any case",
	"sluice render istio":           "prints a resource",
	"sluice render kubernetes":      "prints resources",
	"sluice quota":                  "serves",
	"sluice run":                    "serves",
	"sluice schema":                 "prints JSON in any case",
	"sluice serve":                  "serves",
	"sluice simulate":               "prints JSON in any case",
	"sluice store backup":           "writes a file",
	"sluice store copy":             "writes a store",
	"sluice store restore":          "writes a file",

	"sluice render prometheus-rules": "prints a configuration",
}

// failing is, for each command, a correct call that cannot succeed: nobody
// listens at the server, and there is no such file.
var failing = map[string]string{
	"sluice abort":                  "--server http://127.0.0.1:1",
	"sluice apply":                  "-f POLICY --server http://127.0.0.1:1",
	"sluice audit":                  "--server http://127.0.0.1:1",
	"sluice counters clean":         "--rule r --proxy http://127.0.0.1:1/.sluice/ --manage-token-file NONE",
	"sluice counters expires-at":    "--rule r --proxy http://127.0.0.1:1/.sluice/ --manage-token-file NONE",
	"sluice counters find":          "--client-ip 192.0.2.7 --proxy http://127.0.0.1:1/.sluice/ --manage-token-file NONE",
	"sluice counters get":           "--rule r --proxy http://127.0.0.1:1/.sluice/ --manage-token-file NONE",
	"sluice counters hit":           "--rule r --proxy http://127.0.0.1:1/.sluice/ --manage-token-file NONE",
	"sluice counters inc":           "--rule r --n 1 --proxy http://127.0.0.1:1/.sluice/ --manage-token-file NONE",
	"sluice counters peek":          "--rule r --proxy http://127.0.0.1:1/.sluice/ --manage-token-file NONE",
	"sluice counters reset":         "--rule r --proxy http://127.0.0.1:1/.sluice/ --manage-token-file NONE",
	"sluice counters set":           "--rule r --n 1 --proxy http://127.0.0.1:1/.sluice/ --manage-token-file NONE",
	"sluice counters stats":         "--proxy http://127.0.0.1:1/.sluice/ --manage-token-file NONE",
	"sluice counters top":           "--proxy http://127.0.0.1:1/.sluice/ --manage-token-file NONE",
	"sluice diff":                   "-f POLICY --server http://127.0.0.1:1",
	"sluice explain":                "-f NONE --path /",
	"sluice get":                    "--server http://127.0.0.1:1",
	"sluice history":                "--server http://127.0.0.1:1",
	"sluice image push":             "127.0.0.1:1/sluice:1 --wasm NONE",
	"sluice import envoy-ratelimit": "NONE",
	"sluice import local-ratelimit": "NONE",
	"sluice promote":                "--server http://127.0.0.1:1",
	"sluice quickstart":             "--wasm NONE",
	"sluice quota":                  "--quota-store memory --http 127.0.0.1:0 --listen 127.0.0.1:0 --quota-key-file NONE",
	"sluice render envoy":           "-f NONE --listen 127.0.0.1:1 --upstream 127.0.0.1:2 --admin 127.0.0.1:3",
	"sluice render envoy-gateway":   "-f NONE --url oci://a/b --target Gateway/a",
	"sluice render filter":          "-f NONE",
	"sluice render grafana":         "",
	"sluice render istio":           "-f NONE --url oci://a/b",
	"sluice render kubernetes":      "",
	"sluice replay":                 "NONE -f NONE",
	"sluice rollback":               "--server http://127.0.0.1:1",
	"sluice run":                    "-f NONE --upstream http://127.0.0.1:1",
	"sluice schema":                 "", // never fails but where it cannot write
	"sluice serve":                  "--data POLICY/data",
	"sluice simulate":               "-f NONE",
	"sluice status":                 "--server http://127.0.0.1:1",
	"sluice store backup":           "-o NONE --server http://127.0.0.1:1",
	"sluice store copy":             "NONE NONE",
	"sluice store restore":          "NONE --data NONE",
	"sluice suggest":                "NONE --key client_ip",
	"sluice validate":               "-f NONE",

	"sluice render prometheus-rules": "",
}

// succeeding is a call of each command that wants flags and cannot fail with them.
var succeeding = map[string]string{"sluice render kubernetes": "--image a -n a --proxies b"}

// leaves are the commands that do something, but for those of cobra's own.
func leaves() (list []*cobra.Command) {
	forEach(NewRootCommand(), func(cmd *cobra.Command) {
		if !cmd.HasSubCommands() {
			list = append(list, cmd)
		}
	})
	return list
}

// runCommand runs a command as main does and returns its exit code.
func runCommand(t *testing.T, path string, args ...string) (exit int, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	root := NewRootCommand()
	root.SetArgs(append(strings.Fields(path)[1:], args...))
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	root.SetIn(strings.NewReader(""))
	err = root.ExecuteContext(ctx)
	require.NoError(t, ctx.Err(), path)
	return ExitCode(err), err
}

// Every command explains itself, prints its data as JSON if asked to, and tells
// by its exit code whether it was called wrongly or failed.
func TestEveryCommand(t *testing.T) {
	policy := file(t, "policy.yaml", "version: 1\nrules: []\n")
	none := filepath.Join(t.TempDir(), "none")
	place := strings.NewReplacer("POLICY", policy, "NONE", none)
	asked := 0
	for _, cmd := range leaves() {
		path := cmd.CommandPath()
		t.Run(path, func(t *testing.T) {
			asked++
			require.NotEmpty(t, cmd.Short)
			require.Contains(t, cmd.Example, path)
			require.False(t, strings.HasSuffix(cmd.Short, "."))
			cmd.Flags().VisitAll(func(f *pflag.Flag) { require.NotEmpty(t, f.Usage, f.Name) })
			why, without := printsNoData[path]
			require.Equal(t, without, cmd.Flags().Lookup("output") == nil, why)

			exit, err := runCommand(t, path, "--no-such-flag")
			require.Equal(t, ExitUsage, exit, "%v", err)
			require.NotEmpty(t, Hint(err), "%v", err)
			if !strings.Contains(path, " import ") {
				exit, err = runCommand(t, path, "1", "2", "surplus")
				require.Equal(t, ExitUsage, exit, "%v", err)
			}

			args, known := failing[path]
			require.True(t, known, "no call that fails is known")
			exit, err = runCommand(t, path, strings.Fields(place.Replace(cmp.Or(args, succeeding[path])))...)
			if args == "" {
				require.NoError(t, err)
				return
			}
			require.Equal(t, ExitFailed, exit, "%v", err)
			require.NotEmpty(t, Lines(err))
		})
	}
	require.Len(t, failing, asked, "a command that is gone")
}

// A group without a command is help; with a wrong one, an error.
func TestEveryGroup(t *testing.T) {
	groups := 0
	forEach(NewRootCommand(), func(cmd *cobra.Command) {
		if !cmd.HasSubCommands() {
			return
		}
		groups++
		exit, err := runCommand(t, cmd.CommandPath())
		require.Equal(t, ExitOK, exit, "%v", err)
		exit, err = runCommand(t, cmd.CommandPath(), "no-such-command")
		require.Equal(t, ExitUsage, exit, "%v", err)
		require.NotEmpty(t, Hint(err))
	})
	require.Greater(t, groups, 3)
}
