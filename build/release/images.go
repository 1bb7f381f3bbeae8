package main

import (
	"archive/tar"
	"fmt"
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

func tagged(tag string, image mutate.Appendable) mutate.IndexAddendum {
	return mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Annotations: map[string]string{nameAnnotation: tag}}}
}

func (r *release) writeLayout(dir string, images []mutate.IndexAddendum) error {
	_, err := layout.Write(filepath.Join(r.Name(), dir), mutate.AppendManifests(empty.Index, images...))
	return err
}

// writeImages writes the images into one OCI layout: the chart, the filter in both forms, and the
// command for each of Linux' architectures. The latter are also archives for docker load.
func (r *release) writeImages() error {
	if err := r.writeChart(); err != nil {
		return err
	}
	for _, filter := range []struct {
		tag  string
		form wasmimage.Form
	}{{"filter-", wasmimage.Compat}, {"filter-artifact-", wasmimage.Artifact}} {
		img, err := wasmimage.New(filter.form, r.filter)
		if err != nil {
			return err
		}
		r.images = append(r.images, tagged(filter.tag+r.version, img))
	}
	archive := name.MustParseReference("sluice.local/sluice").Context().Tag(r.version)
	var commands []mutate.IndexAddendum
	for _, platform := range r.platforms {
		arch, isLinux := strings.CutPrefix(platform, "linux/")
		if !isLinux {
			continue
		}
		img, err := r.commandImage(platform, arch)
		if err != nil {
			return err
		}
		if err := tarball.WriteToFile(filepath.Join(r.Name(), r.binaryFile(platform)+".image.tar"), archive,
			img); err != nil {
			return err
		}
		commands = append(commands, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: arch},
		}})
	}
	if len(commands) > 0 {
		r.images = append(r.images, tagged(r.version, mutate.AppendManifests(empty.Index, commands...)))
	}
	return r.writeLayout(layoutDir, r.images)
}

// user is nobody's number on a usual system, and that of other images without root.
const user = 65532

// emptyImage is an image without layers, in OCI's form.
func emptyImage() v1.Image {
	return mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
}

// commandImage has the binary, the licenses and a folder for the store. The binary also has the
// name of envoyproxy/ratelimit's, in whose place it can be started. The image has no shell and no
// certificates: the flags name those to trust.
func (r *release) commandImage(platform, arch string) (v1.Image, error) {
	binary, err := r.ReadFile(r.binaryFile(platform))
	if err != nil {
		return nil, err
	}
	layer, err := wasmimage.Layer(
		wasmimage.Entry{Header: tar.Header{Name: "sluice", Mode: 0o755, ModTime: r.time}, Content: binary},
		wasmimage.Entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/ratelimit", Linkname: "/sluice",
			Mode: 0o777, ModTime: r.time}},
		wasmimage.Entry{Header: tar.Header{Name: "licenses/" + noticesFile, Mode: 0o644, ModTime: r.time},
			Content: r.notices},
		wasmimage.Entry{Header: tar.Header{Name: "var/lib/sluice/", Mode: 0o700, Uid: user, Gid: user, ModTime: r.time}})
	if err != nil {
		return nil, err
	}
	img, err := mutate.ConfigFile(emptyImage(), &v1.ConfigFile{
		OS: "linux", Architecture: arch, Created: v1.Time{Time: r.time}, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User: fmt.Sprintf("%d:%d", user, user), WorkingDir: "/", Entrypoint: []string{"/sluice"},
			Env: []string{"PATH=/"},
			Labels: map[string]string{
				"org.opencontainers.image.title": "sluice", "org.opencontainers.image.version": r.version,
				"org.opencontainers.image.revision": r.commit,
			},
		},
	})
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(img, layer)
}
