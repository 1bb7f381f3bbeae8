package wasmimage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/stretchr/testify/require"
)

// read takes the filter out of an image by the rules of Istio's agent (pkg/wasm) and
// Envoy Gateway (internal/wasm), which are the same.
func read(img v1.Image) ([]byte, error) {
	manifest, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	if manifest.MediaType == types.DockerManifestSchema2 {
		return nil, fmt.Errorf("a manifest of Docker's takes layers of Docker's")
	}
	last := layers[len(layers)-1]
	if kind, _ := last.MediaType(); kind == types.OCILayer {
		return readArchive(last)
	}
	if len(layers) != 2 {
		return nil, fmt.Errorf("want two layers, got %d", len(layers))
	}
	for _, layer := range layers {
		if kind, _ := layer.MediaType(); kind == "application/vnd.module.wasm.content.layer.v1+wasm" {
			content, err := layer.Compressed()
			if err != nil {
				return nil, err
			}
			return io.ReadAll(content)
		}
	}
	return nil, fmt.Errorf("no layer with a module")
}

func readArchive(layer v1.Layer) ([]byte, error) {
	compressed, err := layer.Compressed()
	if err != nil {
		return nil, err
	}
	plain, err := gzip.NewReader(compressed)
	if err != nil {
		return nil, err
	}
	for archive := tar.NewReader(plain); ; {
		header, err := archive.Next()
		if err != nil {
			return nil, err
		}
		if filepath.Base(header.Name) == "plugin.wasm" {
			return io.ReadAll(archive)
		}
	}
}

// Both products get the filter back from a registry.
func TestProductsReadTheForms(t *testing.T) {
	wasm := bytes.Repeat([]byte("\x00asm filter "), 10_000)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	for _, c := range []struct {
		form   Form
		config types.MediaType
		layers []types.MediaType
	}{
		{Compat, types.OCIConfigJSON, []types.MediaType{types.OCILayer}},
		{Artifact, ConfigLayer, []types.MediaType{ContentLayer, ConfigLayer}},
	} {
		t.Run(string(c.form), func(t *testing.T) {
			img, err := New(c.form, wasm)
			require.NoError(t, err)
			again, err := New(c.form, wasm)
			require.NoError(t, err)
			digest, err := img.Digest()
			require.NoError(t, err)
			other, err := again.Digest()
			require.NoError(t, err)
			require.Equal(t, digest, other)

			ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/sluice:" + string(c.form))
			require.NoError(t, err)
			require.NoError(t, remote.Write(ref, img))
			pulled, err := remote.Image(ref.Context().Digest(digest.String()))
			require.NoError(t, err)
			if c.form == Compat {
				require.NoError(t, validate.Image(pulled))
			}
			got, err := read(pulled)
			require.NoError(t, err)
			require.True(t, bytes.Equal(wasm, got))

			manifest, err := pulled.Manifest()
			require.NoError(t, err)
			require.Equal(t, types.OCIManifestSchema1, manifest.MediaType)
			require.Equal(t, c.config, manifest.Config.MediaType)
			var layers []types.MediaType
			for _, layer := range manifest.Layers {
				layers = append(layers, layer.MediaType)
			}
			require.Equal(t, c.layers, layers)
		})
	}
}

// The digests follow from the filter alone. That of the form Compat also follows from
// the compiler's gzip: its configuration has the digest of the archive inside.
func TestDigest(t *testing.T) {
	img, err := New(Artifact, []byte("\x00asm"))
	require.NoError(t, err)
	digest, err := img.Digest()
	require.NoError(t, err)
	require.Equal(t, "663199eae89daf5eba0b19f320afb9cf2dcbffd96bc75805eab131a9d1ab7503", digest.Hex)
	img, err = New(Compat, []byte("\x00asm"))
	require.NoError(t, err)
	digest, err = img.ConfigName()
	require.NoError(t, err)
	require.Equal(t, "f22bf72724831010559d946dfcdd0cda3201b66c4bbfda2d0a426b58a2b9c89c", digest.Hex)

	_, err = New("zip", nil)
	require.ErrorContains(t, err, "compat or artifact")
}

// The reader above refuses what the products refuse.
func TestReadRefuses(t *testing.T) {
	one, err := mutate.AppendLayers(oci(ConfigLayer), static.NewLayer([]byte("\x00asm"), ContentLayer))
	require.NoError(t, err)
	_, err = read(one)
	require.ErrorContains(t, err, "want two layers, got 1")

	docker, err := New(Compat, nil)
	require.NoError(t, err)
	_, err = read(mutate.MediaType(docker, types.DockerManifestSchema2))
	require.ErrorContains(t, err, "Docker")
}
