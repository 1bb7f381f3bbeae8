// Package cli is the sluice command: one file a subject. Each command is newXCommand, which names
// it, an options struct with AddFlags, and a function that does it.
//
// Its invariant: a command returns its errors and prints only its output, so that main alone
// writes "error:" and "hint:" and picks the exit code. It must never import the filter: it
// carries the compiled one.
package cli

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-ratelimit/sluice/build"
)

// NewRootCommand returns the whole command tree.
func NewRootCommand() *cobra.Command {
	var version bool
	root := &cobra.Command{
		Use:   "sluice",
		Short: "Per-client rate limits inside Envoy",
		Long: `sluice limits requests per client inside Envoy, without Redis and without a
service next to it. A policy is a YAML file. This command checks it, serves it to
proxies, and shows what they do with it.`,
		Example: `  sluice validate -f policy.yaml
  sluice serve --data /var/lib/sluice
  sluice apply -f policy.yaml
  sluice status
  sluice --version`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs, // so that unknown commands get the message below
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 && version:
				return printVersion(cmd.OutOrStdout())
			case len(args) == 0:
				return cmd.Help()
			case args[0] == "version":
				return usageError(errors.New(`unknown command "version"`), "did you mean --version?")
			}
			err := fmt.Errorf("unknown command %q", args[0])
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				return usageError(err, "did you mean "+strings.Join(near, " or ")+"?")
			}
			return usageError(err, "sluice --help lists the commands")
		},
	}
	root.Flags().BoolVar(&version, "version", false, "print the version, and the digest of the filter inside")
	root.SuggestionsMinimumDistance = 2
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError(err, cmd.CommandPath()+" --help lists the flags")
	})
	root.AddCommand(commands()...)
	forEach(root, complete)
	return root
}

// commands lists the commands, in no particular order: help sorts them.
func commands() []*cobra.Command {
	return []*cobra.Command{
		newAbortCommand(),
		newApplyCommand(),
		newAuditCommand(),
		newCountersCommand(),
		newDiffCommand(),
		newExplainCommand(),
		newGetCommand(),
		newHistoryCommand(),
		group("image", "Put the filter into an image registry", newImagePushCommand()),
		newImportCommand(),
		newPromoteCommand(),
		newQuickstartCommand(),
		newQuotaCommand(),
		group("render", "Write the configuration of proxies",
			newRenderEnvoyCommand(), newRenderFilterCommand(), newRenderIstioCommand(), newRenderEnvoyGatewayCommand()),
		newReplayCommand(),
		newRollbackCommand(),
		newRunCommand(),
		newSchemaCommand(),
		newServeCommand(),
		newSimulateCommand(),
		newStatusCommand(),
		group("store", "Back up, restore and move what serve stores",
			newBackupCommand(), newRestoreCommand(), newCopyCommand()),
		newSuggestCommand(),
		newTestCommand(),
		newValidateCommand(),
	}
}

// group returns a command that only has others.
func group(name, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: name, Short: short}
	cmd.AddCommand(commands...)
	return cmd
}

// markRequired makes flags required, and has the help say so.
func markRequired(cmd *cobra.Command, flags ...string) {
	for _, name := range flags {
		cmd.Flags().Lookup(name).Usage += " (required)"
		_ = cmd.MarkFlagRequired(name) // an error only if there is no such flag
	}
}

// complete gives each command what most commands need: there are no arguments unless the command
// takes some, wrong arguments are a usage error, and a group without a subcommand prints help, with
// the examples of its first command.
func complete(cmd *cobra.Command) {
	if cmd.HasSubCommands() && cmd.RunE == nil {
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		cmd.Example = cmp.Or(cmd.Example, cmd.Commands()[0].Example)
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Value.Type() == "stringToString" {
			f.DefValue = "" // help would say []
		}
	})
	check := cmd.Args
	if check == nil {
		check = cobra.NoArgs
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if err == nil {
			return nil
		}
		hint := "usage: " + cmd.UseLine()
		if !cmd.HasSubCommands() && check(cmd, nil) == nil { // cobra would call it an unknown command
			err = fmt.Errorf("unexpected argument %q", args[len(args)-1])
			if f := cmd.Flags().Lookup("file"); f != nil && !f.Changed {
				hint = fmt.Sprintf("the policy is given with -f: %s -f %s", cmd.CommandPath(), args[0])
			}
		}
		return usageError(err, hint)
	}
}

func forEach(cmd *cobra.Command, do func(*cobra.Command)) {
	do(cmd)
	for _, c := range slices.Clone(cmd.Commands()) {
		forEach(c, do)
	}
}

// Version and commit of a release, set by the linker: a release is built without the repository's
// history, so that its bytes are the same wherever it is built.
var releaseVersion, releaseCommit string

// printVersion prints what this program was built from, and the digest of the
// filter inside it: the same as `sha256sum sluice.wasm`, and as a resource's
// sha256.
func printVersion(w io.Writer) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	if releaseVersion != "" {
		info.Main.Version = releaseVersion
	}
	if releaseCommit != "" {
		info.Settings = append(info.Settings, debug.BuildSetting{Key: "vcs.revision", Value: releaseCommit})
	}
	wasm, err := build.Filter()
	if err != nil && !errors.Is(err, build.ErrNoFilter) {
		return err
	}
	_, err = io.WriteString(w, versionText(info, wasm))
	return err
}

// versionText is one fact a line: version, commit where the build knows it,
// compiler, filter.
func versionText(info *debug.BuildInfo, wasm []byte) string {
	setting := map[string]string{}
	for _, s := range info.Settings {
		setting[s.Key] = s.Value
	}
	version := info.Main.Version
	if version == "" {
		version = "(devel)"
	}
	text := "sluice " + version + "\n"
	if revision := setting["vcs.revision"]; revision != "" {
		text += "commit " + revision
		if setting["vcs.time"] != "" {
			text += " of " + setting["vcs.time"]
		}
		if setting["vcs.modified"] == "true" {
			text += ", with changes"
		}
		text += "\n"
	}
	if info.GoVersion != "" {
		text += fmt.Sprintf("built with %s for %s/%s\n", info.GoVersion, setting["GOOS"], setting["GOARCH"])
	}
	if len(wasm) == 0 {
		return text + "filter: none inside\n"
	}
	return text + fmt.Sprintf("filter: %d bytes, sha256 %x\n", len(wasm), sha256.Sum256(wasm))
}
