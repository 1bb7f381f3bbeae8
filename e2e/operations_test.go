package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// The token of management requests.
const (
	token       = "operator-token-of-the-tests"
	tokenSHA256 = "11371aff22562e1c8540b6417a2429007fbbdb4ae0ffda050503b3d77632e972"
	bearer      = "Bearer " + token
)

// operation is the answer to a management request.
type operation struct {
	Allowed bool    `json:"allowed"`
	Value   int64   `json:"value"`
	Held    *uint32 `json:"held"`
	Windows []struct {
		Name      string `json:"name"`
		Limit     uint32 `json:"limit"`
		Used      uint32 `json:"used"`
		Remaining uint32 `json:"remaining"`
		ResetNs   int64  `json:"reset_ns"`
	} `json:"windows"`
	Rules []struct {
		Rule     string            `json:"rule"`
		Keys     uint64            `json:"keys"`
		Capacity uint64            `json:"capacity"`
		Bytes    uint64            `json:"bytes"`
		Metrics  map[string]uint64 `json:"metrics"`
	} `json:"rules"`
}

// operate runs an operation on a new connection, so that any worker may answer it.
func (p *proxy) operate(t *testing.T, op, query string) (answer operation) {
	r, err := http.NewRequest(http.MethodPost, "http://"+p.address+"/.sluice/counters/"+op+"?"+query, nil)
	require.NoError(t, err)
	r.Close = true
	r.Header.Set("authorization", bearer)
	res, err := http.DefaultTransport.RoundTrip(r)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode, "%s %s: %s", op, query, body)
	require.NoError(t, json.Unmarshal(body, &answer))
	return answer
}
