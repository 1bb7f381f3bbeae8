package main

import (
	"archive/tar"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/sluice-ratelimit/sluice/envoy/wasmimage"
)

// nameAnnotation is where a layout says which tag an image gets.
const nameAnnotation = "org.opencontainers.image.ref.name"

func tagged(tag string) layout.Option {
	return layout.WithAnnotations(map[string]string{nameAnnotation: tag})
}

// writeImages writes the images into one OCI layout: the filter in both forms, and the
// command for each of Linux' architectures. The latter are also archives for docker load.
func writeImages(dir string, o options, from source) error {
	path, err := layout.Write(filepath.Join(dir, layoutDir), empty.Index)
	if err != nil {
		return err
	}
	wasm, err := os.ReadFile(filepath.Join(dir, filterFile))
	if err != nil {
		return err
	}
	for _, filter := range []struct {
		tag  string
		form wasmimage.Form
	}{{"filter-", wasmimage.Compat}, {"filter-artifact-", wasmimage.Artifact}} {
		img, err := wasmimage.New(filter.form, wasm)
		if err != nil {
			return err
		}
		if err := path.AppendImage(img, tagged(filter.tag+o.version)); err != nil {
			return err
		}
	}
	archive, err := name.NewTag("sluice.local/sluice:" + o.version)
	if err != nil {
		return fmt.Errorf("version %s is no tag: %w", o.version, err)
	}
	var commands []mutate.IndexAddendum
	for _, platform := range o.platforms {
		arch, isLinux := strings.CutPrefix(platform, "linux/")
		if !isLinux {
			continue
		}
		file := filepath.Join(dir, binaryFile(o.version, platform))
		img, err := commandImage(dir, file, arch, o.version, from)
		if err != nil {
			return err
		}
		if err := tarball.WriteToFile(file+".image.tar", archive, img); err != nil {
			return err
		}
		commands = append(commands, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: arch},
		}})
	}
	if len(commands) == 0 {
		return nil
	}
	return path.AppendIndex(mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), commands...), tagged(o.version))
}

// user is nobody's number on a usual system, and that of other images without root.
const user = 65532

// emptyImage is an image without layers, in OCI's form.
func emptyImage() v1.Image {
	return mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
}

// commandImage has the binary, the licenses and a folder for the store. It has no shell
// and no certificates: the flags name those to trust.
func commandImage(dir, file, arch, version string, from source) (v1.Image, error) {
	binary, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	notices, err := os.ReadFile(filepath.Join(dir, noticesFile))
	if err != nil {
		return nil, err
	}
	layer, err := wasmimage.Layer(
		wasmimage.Entry{Header: tar.Header{Name: "sluice", Mode: 0o755, ModTime: from.time}, Content: binary},
		wasmimage.Entry{Header: tar.Header{Name: "licenses/" + noticesFile, Mode: 0o644, ModTime: from.time}, Content: notices},
		wasmimage.Entry{Header: tar.Header{Name: "var/lib/sluice/", Mode: 0o700, Uid: user, Gid: user, ModTime: from.time}})
	if err != nil {
		return nil, err
	}
	img, err := mutate.ConfigFile(emptyImage(), &v1.ConfigFile{
		OS: "linux", Architecture: arch, Created: v1.Time{Time: from.time}, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User: fmt.Sprintf("%d:%d", user, user), WorkingDir: "/", Entrypoint: []string{"/sluice"},
			Env: []string{"PATH=/"},
			Labels: map[string]string{
				"org.opencontainers.image.title": "sluice", "org.opencontainers.image.version": version,
				"org.opencontainers.image.revision": from.commit,
			},
		},
	})
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(img, layer)
}
