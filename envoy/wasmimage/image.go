// Package wasmimage makes an image of the filter, in the forms that Istio's agent and Envoy
// Gateway read.
//
// Its invariant: an image depends only on the filter's bytes, so the same filter has the same
// digest on every machine and on every day. It must never talk to a registry.
package wasmimage

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Form is how an image holds the filter.
type Form string

// The forms. Both products read both. Compat is an image like any other, so every registry
// accepts it.
const (
	Compat   Form = "compat"   // one layer, an archive with plugin.wasm
	Artifact Form = "artifact" // the module itself as a layer, with a media type of its own
)

// File is the filter's name in an image of the form Compat.
const File = "plugin.wasm"

// Variant is the annotation of a manifest that says that its form is Compat.
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
	return nil, fmt.Errorf("form %q of an image: want %s or %s", form, Compat, Artifact)
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

// Entry is a file, or a folder if its name ends with a slash.
type Entry struct {
	tar.Header
	Content []byte
}

// Layer returns a layer of an image.
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

// runtimeConfig is the second layer of an artifact: it says what runs the module.
const runtimeConfig = `{"type":"envoy_proxy"}`

// artifact makes two layers: both products refuse any other number.
func artifact(wasm []byte) (v1.Image, error) {
	return mutate.AppendLayers(oci(ConfigLayer),
		static.NewLayer(wasm, ContentLayer), static.NewLayer([]byte(runtimeConfig), ConfigLayer))
}

// oci returns an image without layers, with the OCI's media types.
func oci(config types.MediaType) v1.Image {
	return mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), config)
}

// OnlyTLS refuses plain HTTP, which go-containerregistry would use by itself if the registry's
// address is a private one.
type OnlyTLS struct {
	Next     http.RoundTripper
	Loopback bool // may be plain
}

// RoundTrip sends the request, or refuses to.
func (t OnlyTLS) RoundTrip(r *http.Request) (*http.Response, error) {
	host := r.URL.Hostname()
	local := host == "localhost" || net.ParseIP(host).IsLoopback()
	if r.URL.Scheme != "https" && (!t.Loopback || !local) {
		return nil, fmt.Errorf("%s wants plain HTTP", r.URL.Host)
	}
	return t.Next.RoundTrip(r)
}
