// Package cli is the sluice command. Each command is newXCommand, which names it, an options
// struct with AddFlags, and a function that does it. Where to look:
//
//	root.go, errors.go   the tree of commands; hints and exit codes
//	serve, quota         servers, as is ratelimit, which takes the place of envoyproxy/ratelimit
//	run, quickstart      proxies in this process
//	render, image        what an Envoy, Istio and Envoy Gateway need
//	apply, rollout       change the policy that proxies have, and follow what they reply
//	show, diff, store    ask the API, by client.go; store also works on files
//	counters, explain    ask proxies, by ask.go: through the API, or one directly
//	validate, test, simulate, replay, import    work on files alone
//	policy.go, output.go                        read a policy; print
//	*flags.go            flags that several commands share, and what they open
//
// Three packages below it: serving runs the servers of a process, flagfile reads the files that flags
// name, and ratelimitenv reads the settings of ratelimit.
//
// One command from its name to its listeners: NewCommand makes the tree, and newQuotaCommand
// (quota.go) the flags. Cobra calls runQuota. It checks the flags; guard reads certificates and
// listen opens listeners (listenflags.go); quotaOptions.open (quotaflags.go) starts the service.
// AddQuota and AddCalls of serving.Servers add what proxies reach, and Run serves.
//
// Its invariant: a command returns its errors and prints only its output, so that main alone
// writes "error:" and "hint:" and picks the exit code. It must never import the filter: it
// carries the compiled one.
package cli

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// NewCommand returns the command tree of a program that was called by this name.
func NewCommand(program string) *cobra.Command {
	if filepath.Base(program) == ratelimitName {
		return newRatelimitCommand()
	}
	return NewRootCommand()
}

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
