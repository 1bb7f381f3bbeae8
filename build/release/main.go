// The release command makes what a version is published as: binaries, the filter,
// images, the Helm chart, a bill of materials, licenses, digests and signatures.
//
// Its invariant: what it writes follows from the source, the version and the compiler.
// Signatures alone differ from run to run.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/envoy/wasmimage"
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
	root := &cobra.Command{Use: "release", Short: "Make and push a release of sluice", SilenceErrors: true,
		SilenceUsage: true}
	var r release
	makes := &cobra.Command{
		Use:   "make --version VERSION --out DIR",
		Short: "Make a release of the tree",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r.log = cmd.OutOrStdout()
			return r.make(cmd.Context())
		},
	}
	f := makes.Flags()
	f.StringVar(&r.tree, "tree", ".", "`DIR` of the source, with the filter built")
	f.StringVar(&r.version, "version", "", "`VERSION`, such as v0.1.0")
	f.StringVar(&r.out, "out", "", "`DIR` to write; what is there is removed")
	f.StringVar(&r.signKey, "sign-key", "",
		"`FILE`, or env://VARIABLE, with an EC P-256 key in PEM or as cosign keeps it (default: a key for tests, made anew)")
	f.StringSliceVar(&r.platforms, "platform", allPlatforms, "`OS/ARCH` of a binary; may be repeated")
	_ = makes.MarkFlagRequired("version")
	_ = makes.MarkFlagRequired("out")
	root.AddCommand(makes, &cobra.Command{
		Use:   "push DIR REGISTRY/IMAGE",
		Short: "Push a release's images and their signatures",
		Args:  cobra.ExactArgs(2),
		RunE:  push,
	})
	return root
}

// push pushes the images of a release, then their signatures. Credentials are those of the
// environment or, without any there, those that docker login stored.
func push(cmd *cobra.Command, args []string) error {
	repository, err := name.NewRepository(args[1], name.StrictValidation)
	if err != nil {
		return err
	}
	credentials := remote.WithAuthFromKeychain(authn.DefaultKeychain)
	if user := os.Getenv("REGISTRY_USERNAME"); user != "" {
		credentials = remote.WithAuth(&authn.Basic{Username: user, Password: os.Getenv("REGISTRY_PASSWORD")})
	}
	for _, part := range []string{layoutDir, signatureDir} {
		index, err := layout.ImageIndexFromPath(filepath.Join(args[0], part))
		if err != nil {
			return err
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			return err
		}
		images, err := partial.Manifests(index)
		if err != nil {
			return err
		}
		all, lines := map[name.Reference]remote.Taggable{}, ""
		for i, entry := range manifest.Manifests {
			tag := repository.Tag(entry.Annotations[nameAnnotation])
			all[tag] = images[i].(remote.Taggable)
			lines += fmt.Sprintf("%s@%s\n", tag, entry.Digest)
		}
		err = remote.MultiWrite(all, remote.WithContext(cmd.Context()), credentials,
			remote.WithTransport(wasmimage.OnlyTLS{Next: remote.DefaultTransport, Loopback: true}))
		if err != nil {
			return fmt.Errorf("push to %s: %w", repository, err)
		}
		fmt.Fprint(cmd.OutOrStdout(), lines)
	}
	return nil
}
