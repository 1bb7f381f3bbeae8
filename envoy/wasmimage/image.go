// Package wasmimage is the filter as an image, in the forms that Istio's agent and
// Envoy Gateway read.
//
// Its invariant: an image is made of the filter's bytes alone, so the same filter has
// the same digest on every machine and on every day. It must never talk to a registry.
package wasmimage

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Form is how an image holds the filter.
type Form string

// The forms. Both products read both. The first is an image like any other, so every
// registry takes it.
const (
	Compat   Form = "compat"   // one layer, an archive with plugin.wasm
	Artifact Form = "artifact" // the module itself as a layer, with a media type of its own
)

// File is the filter's name in an image of the form Compat.
const File = "plugin.wasm"

// Variant is the annotation by which a manifest says that its form is Compat.
const Variant = "module.wasm.image/variant"

// Media types of the form Artifact.
const (
	ContentLayer types.MediaType = "application/vnd.module.wasm.content.layer.v1+wasm"
	ConfigLayer  types.MediaType = "application/vnd.module.wasm.config.v1+json"
)

// New returns an image with the filter.
func New(form Form, wasm []byte) (v1.Image, error) {
	switch form {
	case Compat:
		return compat(wasm)
	case Artifact:
		return artifact(wasm)
	}
	return nil, fmt.Errorf("%q is no form of an image: it is %s or %s", form, Compat, Artifact)
}

func compat(wasm []byte) (v1.Image, error) {
	layer, err := Layer(Entry{tar.Header{Format: tar.FormatUSTAR, Typeflag: tar.TypeReg, Name: File, Mode: 0o644}, wasm})
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(oci(types.OCIConfigJSON), layer)
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(img, map[string]string{Variant: string(Compat)}).(v1.Image), nil
}

// Entry is a file or, where its name ends with a slash, a folder.
type Entry struct {
	tar.Header
	Content []byte
}

// Layer is a layer of an image.
func Layer(entries ...Entry) (v1.Layer, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, e := range entries {
		e.Size = int64(len(e.Content))
		if err := w.WriteHeader(&e.Header); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.Content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

// runtimeConfig is the second layer of an artifact: what runs the module.
const runtimeConfig = `{"type":"envoy_proxy"}`

// artifact has two layers, because both products refuse any other number.
func artifact(wasm []byte) (v1.Image, error) {
	return mutate.AppendLayers(oci(ConfigLayer),
		static.NewLayer(wasm, ContentLayer), static.NewLayer([]byte(runtimeConfig), ConfigLayer))
}

// oci is an image without layers, by the OCI's media types.
func oci(config types.MediaType) v1.Image {
	return mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), config)
}
