package cli

import (
	"context"
	"io"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// printsNoData matches the commands without --output: they serve, or print a policy, a
// configuration, or JSON in any case, or write a file.
var printsNoData = regexp.MustCompile(`^sluice (import|quickstart|quota|render|run|schema|serve|simulate|store)\b`)

// takesFiles matches the commands that take any number of files.
var takesFiles = regexp.MustCompile(`^sluice (import .*|test)$`)

// usage is a correct call of each of these commands.
type usage struct{ args, commands string }

// failing cannot succeed: nobody listens at the server, and there is no such file.
var failing = []usage{
	{"--server http://127.0.0.1:1", "abort, audit, get, history, promote, rollback, status"},
	{"-f POLICY --server http://127.0.0.1:1", "apply, diff"},
	{"-o NONE --server http://127.0.0.1:1", "store backup"},
	{
		"--rule r --proxy http://127.0.0.1:1/.sluice/ --manage-token-file NONE",
		"counters clean, counters expires-at, counters get, counters hit, counters peek, counters reset, counters stats, " +
			"counters top",
	},
	{"--rule r --n 1 --proxy http://127.0.0.1:1/.sluice/ --manage-token-file NONE", "counters inc, counters set"},
	{"--client-ip 192.0.2.7 --proxy http://127.0.0.1:1/.sluice/ --manage-token-file NONE", "counters find"},
	{"-f NONE", "render filter, simulate, validate"},
	{"-f NONE --path /", "explain"},
	{"-f NONE --upstream http://127.0.0.1:1", "run"},
	{"-f NONE --listen 127.0.0.1:1 --upstream 127.0.0.1:2 --admin 127.0.0.1:3", "render envoy"},
	{"-f NONE --url oci://a/b --target Gateway/a", "render envoy-gateway, render istio"},
	{"NONE", "import envoy-ratelimit, import local-ratelimit, import ingress-nginx, import nginx"},
	{"NONE -f NONE", "replay"},
	{"NONE --key client_ip", "suggest"},
	{"NONE", "test"},
	{"NONE NONE", "store copy"},
	{"NONE --data NONE", "store restore"},
	{"127.0.0.1:1/sluice:1 --wasm NONE", "image push"},
	{"--wasm NONE", "quickstart"},
	{"--quota-store memory --http 127.0.0.1:0 --listen 127.0.0.1:0 --quota-key-file NONE", "quota"},
	{"--data POLICY/data", "serve"},
}

// succeeding cannot fail, but where they cannot write.
var succeeding = []usage{
	{"", "schema"},
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
	args, succeeds := map[string]string{}, map[string]bool{}
	for i, c := range slices.Concat(failing, succeeding) {
		for command := range strings.SplitSeq(c.commands, ", ") {
			args["sluice "+command], succeeds["sluice "+command] = place.Replace(c.args), i >= len(failing)
		}
	}
	var leaves []*cobra.Command // those that do something
	forEach(NewRootCommand(), func(cmd *cobra.Command) {
		require.Contains(t, cmd.Example, cmd.CommandPath())
		require.NotContains(t, cmd.UsageString(), "(default )")
		if !cmd.HasSubCommands() {
			leaves = append(leaves, cmd)
			return
		}
		exit, err := runCommand(t, cmd.CommandPath())
		require.Equal(t, ExitOK, exit, "a group alone is help: %v", err)
		exit, err = runCommand(t, cmd.CommandPath(), "no-such-command")
		require.Equal(t, ExitUsage, exit, "%v", err)
		require.NotEmpty(t, Hint(err))
	})
	require.Greater(t, len(leaves), 30)
	for _, cmd := range leaves {
		path := cmd.CommandPath()
		t.Run(path, func(t *testing.T) {
			require.NotEmpty(t, cmd.Short)
			require.False(t, strings.HasSuffix(cmd.Short, "."))
			cmd.Flags().VisitAll(func(f *pflag.Flag) { require.NotEmpty(t, f.Usage, f.Name) })
			require.Equal(t, printsNoData.MatchString(path), cmd.Flags().Lookup("output") == nil)

			exit, err := runCommand(t, path, "--no-such-flag")
			require.Equal(t, ExitUsage, exit, "%v", err)
			require.NotEmpty(t, Hint(err), "%v", err)
			if !takesFiles.MatchString(path) {
				exit, err = runCommand(t, path, "1", "2", "surplus")
				require.Equal(t, ExitUsage, exit, "%v", err)
			}
			require.Contains(t, args, path, "no call is known")
			exit, err = runCommand(t, path, strings.Fields(args[path])...)
			delete(args, path)
			if succeeds[path] {
				require.NoError(t, err)
				return
			}
			require.Equal(t, ExitFailed, exit, "%v", err)
			require.NotEmpty(t, Lines(err))
		})
	}
	require.Empty(t, args, "commands that are gone")
}

func TestVersionText(t *testing.T) {
	settings := func(pairs ...string) (list []debug.BuildSetting) {
		for i := 0; i < len(pairs); i += 2 {
			list = append(list, debug.BuildSetting{Key: pairs[i], Value: pairs[i+1]})
		}
		return list
	}
	for _, c := range []struct {
		name string
		info debug.BuildInfo
		wasm string
		want string
	}{
		{"from a commit", debug.BuildInfo{
			GoVersion: "go1.26.8", Main: debug.Module{Version: "v0.3.0"},
			Settings: settings("GOOS", "linux", "GOARCH", "arm64", "vcs.revision", "c0ffee",
				"vcs.time", "2026-11-22T00:00:00Z", "vcs.modified", "false"),
		}, "x", "sluice v0.3.0\ncommit c0ffee of 2026-11-22T00:00:00Z\nbuilt with go1.26.8 for linux/arm64\n" +
			"filter: 1 bytes, sha256 2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881\n"},
		{
			"from a changed tree", debug.BuildInfo{
				Main:     debug.Module{Version: "v0.0.0-x+dirty"},
				Settings: settings("vcs.revision", "c0ffee", "vcs.modified", "true"),
			}, "",
			"sluice v0.0.0-x+dirty\ncommit c0ffee, with changes\nfilter: none inside\n",
		},
		{"from no repository", debug.BuildInfo{}, "", "sluice (devel)\nfilter: none inside\n"},
	} {
		require.Equal(t, c.want, versionText(&c.info, []byte(c.wasm)), c.name)
	}
}
