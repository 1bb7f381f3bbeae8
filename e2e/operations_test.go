package e2e

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/result"
)

// The token of management requests.
const (
	token       = "operator-token-of-the-tests"
	tokenSHA256 = "11371aff22562e1c8540b6417a2429007fbbdb4ae0ffda050503b3d77632e972"
	bearer      = "Bearer " + token
)

// operation is the answer to a management request.
type operation struct {
	Value   int64
	Held    *uint32
	Windows []result.Window
	Rules   []result.Stats
}

// operate runs an operation on a connection that ends then, so that any worker may answer.
func (p *proxy) operate(t *testing.T, op, query string) operation {
	res, body := p.get(t, "/.sluice/counters/"+op+"?"+query, ":method", http.MethodPost, "authorization", bearer, "connection", "close")
	require.Equal(t, http.StatusOK, res.StatusCode, "%s %s: %s", op, query, body)
	return decoded[operation](t, body)
}
