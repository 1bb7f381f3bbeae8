package wasmimage

import (
	"errors"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

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
