package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
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

// credentials are those of the environment or, without any there, those that docker
// login stored.
func credentials() remote.Option {
	if name := os.Getenv("REGISTRY_USERNAME"); name != "" {
		return remote.WithAuth(&authn.Basic{Username: name, Password: os.Getenv("REGISTRY_PASSWORD")})
	}
	return remote.WithAuthFromKeychain(authn.DefaultKeychain)
}

// newPushCommand pushes the images of a release, then their signatures.
func newPushCommand() *cobra.Command {
	var ca string
	cmd := &cobra.Command{
		Use:   "push DIR REGISTRY/IMAGE",
		Short: "Push a release's images and their signatures",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			repository, err := name.NewRepository(args[1], name.StrictValidation)
			if err != nil {
				return err
			}
			connect := remote.DefaultTransport.(*http.Transport).Clone()
			if ca != "" {
				text, err := os.ReadFile(ca)
				if err != nil {
					return err
				}
				pool := x509.NewCertPool()
				if !pool.AppendCertsFromPEM(text) {
					return fmt.Errorf("%s holds no PEM certificate", ca)
				}
				connect.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
			}
			for _, part := range []string{layoutDir, signatureDir} {
				lines, err := pushLayout(filepath.Join(args[0], part), repository, remote.WithContext(cmd.Context()),
					credentials(), remote.WithTransport(wasmimage.OnlyTLS{Next: connect, Loopback: true}))
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
	cmd.Flags().StringVar(&ca, "ca", "", "`FILE` with the certificates that vouch for the registry")
	return cmd
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
