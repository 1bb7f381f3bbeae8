package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

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

// released is an image of a release.
type released struct {
	tag    string
	digest v1.Hash
}

// writeImages writes the images into one OCI layout: the filter in both forms, and the
// command for each of Linux' architectures. The latter are also archives for docker load.
func writeImages(dir string, o options, from source) ([]released, error) {
	wasm, err := os.ReadFile(filepath.Join(dir, filterFile))
	if err != nil {
		return nil, err
	}
	path, err := layout.Write(filepath.Join(dir, layoutDir), empty.Index)
	if err != nil {
		return nil, err
	}
	var list []released
	for _, filter := range []struct {
		tag  string
		form wasmimage.Form
	}{{"filter-", wasmimage.Compat}, {"filter-artifact-", wasmimage.Artifact}} {
		img, err := wasmimage.New(filter.form, wasm)
		if err != nil {
			return nil, err
		}
		list, err = appendImage(path, list, filter.tag+o.version, img)
		if err != nil {
			return nil, err
		}
	}
	index, err := commandIndex(dir, o, from)
	if err != nil {
		return nil, err
	}
	if index == nil {
		return list, nil
	}
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{nameAnnotation: o.version})); err != nil {
		return nil, err
	}
	digest, err := index.Digest()
	return append(list, released{o.version, digest}), err
}

func appendImage(path layout.Path, list []released, tag string, img v1.Image) ([]released, error) {
	if err := path.AppendImage(img, layout.WithAnnotations(map[string]string{nameAnnotation: tag})); err != nil {
		return nil, err
	}
	digest, err := img.Digest()
	return append(list, released{tag, digest}), err
}

// commandIndex is the command for each architecture; nil without a binary for Linux.
func commandIndex(dir string, o options, from source) (v1.ImageIndex, error) {
	var index v1.ImageIndex
	for _, platform := range o.platforms {
		arch, isLinux := strings.CutPrefix(platform, "linux/")
		if !isLinux {
			continue
		}
		file := binaryFile(o.version, platform)
		img, err := commandImage(dir, file, arch, o.version, from)
		if err != nil {
			return nil, err
		}
		if err := writeDockerArchive(filepath.Join(dir, file+".image.tar"), o.version, img); err != nil {
			return nil, err
		}
		if index == nil {
			index = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: arch},
		}})
	}
	return index, nil
}

// user is nobody's number on a usual system, and that of other images without root.
const user = 65532

// commandImage has the binary, the licenses and a folder for the store. It has no shell
// and no certificates: the flags name those to trust.
func commandImage(dir, file, arch, version string, from source) (v1.Image, error) {
	layer, err := commandLayer(dir, file, from)
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.AppendLayers(img, layer); err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: from.time}
	config.Config = v1.Config{
		User: fmt.Sprintf("%d:%d", user, user), WorkingDir: "/", Entrypoint: []string{"/sluice"},
		Env: []string{"PATH=/"},
		Labels: map[string]string{
			"org.opencontainers.image.title": "sluice", "org.opencontainers.image.version": version,
			"org.opencontainers.image.revision": from.commit,
		},
	}
	return mutate.ConfigFile(img, config)
}

func commandLayer(dir, file string, from source) (v1.Layer, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	header := func(name string, kind byte, mode, size int64, owner int) error {
		return w.WriteHeader(&tar.Header{
			Format: tar.FormatUSTAR, Typeflag: kind, Name: name, Mode: mode, Size: size, Uid: owner, Gid: owner, ModTime: from.time,
		})
	}
	for _, entry := range []struct {
		name, from string
		mode       int64
	}{{"sluice", file, 0o755}, {"licenses/" + noticesFile, noticesFile, 0o644}} {
		content, err := os.ReadFile(filepath.Join(dir, entry.from))
		if err != nil {
			return nil, err
		}
		if err := header(entry.name, tar.TypeReg, entry.mode, int64(len(content)), 0); err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	if err := header("var/lib/sluice/", tar.TypeDir, 0o700, 0, user); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}
