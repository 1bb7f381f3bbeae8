// The release command makes what a version is published as: binaries, the filter,
// images, a bill of materials, licenses, digests and signatures.
//
// Its invariant: what it writes follows from the source, the version and the compiler.
// Signatures alone differ from run to run.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	root := &cobra.Command{Use: "release", Short: "Make and push a release of sluice", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(newMakeCommand(), newPushCommand())
	return root
}

func newMakeCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "make --version VERSION --out DIR",
		Short: "Make a release of the tree",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return makeRelease(cmd.Context(), cmd.OutOrStdout(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.tree, "tree", ".", "`DIR` of the source, with the filter built")
	f.StringVar(&o.version, "version", "", "`VERSION`, such as v0.1.0")
	f.StringVar(&o.out, "out", "", "`DIR` to write; what is there is removed")
	f.StringVar(&o.signKey, "sign-key", "", "`FILE`, or env://VARIABLE, with an EC P-256 key in PEM or as cosign keeps it (default: a key for tests, made anew)")
	f.StringSliceVar(&o.platforms, "platform", allPlatforms, "`OS/ARCH` of a binary; may be repeated")
	_ = cmd.MarkFlagRequired("version")
	_ = cmd.MarkFlagRequired("out")
	return cmd
}
