package wasmimage

import (
	"errors"
	"net/http"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"
)

// The digests follow from the filter alone. That of the form Compat also follows from
// the compiler's gzip: its configuration has the digest of the archive inside. Istio and Envoy
// Gateway read one: see make e2e-istio and e2e-gateway.
func TestDigestFollowsFromTheFilter(t *testing.T) {
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
	manifest, err := img.Manifest()
	require.NoError(t, err)
	require.Equal(t, []types.MediaType{types.OCIManifestSchema1, types.OCIConfigJSON, types.OCILayer},
		[]types.MediaType{manifest.MediaType, manifest.Config.MediaType, manifest.Layers[len(manifest.Layers)-1].MediaType})
	require.Equal(t, map[string]string{Variant: "compat"}, manifest.Annotations)
}

type sent struct{}

var errSent = errors.New("sent")

func (sent) RoundTrip(*http.Request) (*http.Response, error) { return nil, errSent }

func TestOnlyTLS(t *testing.T) {
	for url, loopback := range map[string]struct{ never, local bool }{
		"https://registry.example.com/v2/": {true, true},
		"http://127.0.0.1:5000/v2/":        {false, true},
		"http://localhost:5000/v2/":        {false, true},
		"http://10.0.0.1:5000/v2/":         {false, false},
		"http://registry.local/v2/":        {false, false},
	} {
		for allowed, passes := range map[bool]bool{false: loopback.never, true: loopback.local} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
			require.NoError(t, err)
			response, err := OnlyTLS{Next: sent{}, Loopback: allowed}.RoundTrip(r)
			require.Nil(t, response)
			require.Equal(t, passes, errors.Is(err, errSent), "%s, loopback %t", url, allowed)
		}
	}
}
