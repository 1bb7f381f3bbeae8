package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	token       = "operator-token-of-the-tests"
	tokenSHA256 = "11371aff22562e1c8540b6417a2429007fbbdb4ae0ffda050503b3d77632e972"
	bearer      = "Bearer " + token
)

func TestPeek(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		s := serve(t, d, perUser("3/"+far)+managed)
		s.get(t, "/", "x-user-id", "alice")
		for range 2 {
			res, body := s.get(t, "/.sluice/counters/peek?rule=per-user&key=alice&n=3", ":method", "POST", "authorization", bearer)
			require.Equal(t, 200, res.StatusCode)
			require.Equal(t, "application/json", res.Header.Get("content-type"))
			require.Contains(t, body, `{"allowed":false,"denied_by":"per-user","retry_after_ns":`)
			require.Contains(t, body, `"used":1,"remaining":2,`)
		}
		for _, bad := range []struct {
			status int
			method string
			path   string
			token  string
			want   string
		}{
			{401, "POST", "counters/peek?rule=per-user&key=alice", "Bearer nonsense", "bearer token"},
			{401, "POST", "counters/peek?rule=per-user&key=alice", "Basic test", "bearer token"},
			{401, "GET", "", "", "bearer token"},
			{404, "POST", "", bearer, "counters/peek"},
			{405, "GET", "counters/peek?rule=per-user&key=alice", bearer, "POST"},
			{400, "POST", "counters/peek?rule=%zz", bearer, "parse the query"},
			{400, "POST", "counters/peek?rule=per-user&key=alice&rule=per-user", bearer, "rule is given twice"},
			{400, "POST", "counters/peek?rule=per-user&key=alice&units=1", bearer, `unknown parameter \"units\"`},
		} {
			res, body := s.get(t, "/.sluice/"+bad.path, ":method", bad.method, "authorization", bad.token)
			require.Equal(t, bad.status, res.StatusCode, bad.path)
			require.Contains(t, body, bad.want, bad.path)
		}
	})
}
