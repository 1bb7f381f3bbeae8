package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/envoy/wasmimage"
)

// newPushCommand pushes the images of a release, then their signatures. Credentials are
// those of the environment or, without any there, those that docker login stored.
func newPushCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "push DIR REGISTRY/IMAGE",
		Short: "Push a release's images and their signatures",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			repository, err := name.NewRepository(args[1], name.StrictValidation)
			if err != nil {
				return err
			}
			credentials := remote.WithAuthFromKeychain(authn.DefaultKeychain)
			if user := os.Getenv("REGISTRY_USERNAME"); user != "" {
				credentials = remote.WithAuth(&authn.Basic{Username: user, Password: os.Getenv("REGISTRY_PASSWORD")})
			}
			for _, part := range []string{layoutDir, signatureDir} {
				lines, err := pushLayout(filepath.Join(args[0], part), repository, remote.WithContext(cmd.Context()),
					credentials, remote.WithTransport(wasmimage.OnlyTLS{Next: remote.DefaultTransport, Loopback: true}))
				if err != nil {
					return err
				}
				for _, line := range lines {
					fmt.Fprintln(cmd.OutOrStdout(), line)
				}
			}
			return nil
		},
	}
}

// pushLayout pushes everything in a layout by the tags it gives.
func pushLayout(dir string, repository name.Repository, options ...remote.Option) (lines []string, err error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	all := map[name.Reference]remote.Taggable{}
	for _, entry := range manifest.Manifests {
		tag := repository.Tag(entry.Annotations[nameAnnotation])
		if entry.MediaType == types.OCIImageIndex {
			all[tag], err = index.ImageIndex(entry.Digest)
		} else {
			all[tag], err = index.Image(entry.Digest)
		}
		if err != nil {
			return nil, err
		}
		lines = append(lines, fmt.Sprintf("%s@%s", tag, entry.Digest))
	}
	if err := remote.MultiWrite(all, options...); err != nil {
		return nil, fmt.Errorf("push to %s: %w", repository, err)
	}
	return lines, nil
}
