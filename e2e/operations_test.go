package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
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
func (p *proxy) operate(t *testing.T, op, query string) operation {
	t.Helper()
	answer, err := p.tryOperate(op, query)
	require.NoError(t, err)
	return answer
}

func (p *proxy) tryOperate(op, query string) (answer operation, err error) {
	r, err := http.NewRequest(http.MethodPost, "http://"+p.address+"/.sluice/counters/"+op+"?"+query, nil)
	if err != nil {
		return answer, err
	}
	r.Close = true
	r.Header.Set("authorization", bearer)
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return answer, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %d %s", op, query, res.StatusCode, body)
	}
	if err != nil {
		return answer, err
	}
	return answer, json.Unmarshal(body, &answer)
}

// Increments and hits that race for one record are all counted exactly once.
func TestOperationsRace(t *testing.T) {
	eachSeparately(t, func(t *testing.T, d driver) {
		for _, window := range []string{
			"{requests: 500, per: " + far + "}",
			"{requests: 500, per: " + far + ", algorithm: fixed_window_per_key}",
			"{requests: 500, per: " + far + ", algorithm: sliding_window_log}",
			"{requests: 500, per: " + far + ", algorithm: sliding_window_counter}",
			"{requests: 1, per: " + far + ", burst: 500, algorithm: token_bucket}",
		} {
			s := serve(t, d, oneRule("limits: ["+window+"]"))
			errs := make(chan error, 4*50)
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					for range 50 {
						_, err := s.tryOperate("inc", "rule=per-user&key=alice&n=1")
						errs <- err
					}
				})
			}
			passed := count(s.load(12).send(t, 300, user("alice")), allowed)
			wg.Wait()
			close(errs)
			for err := range errs {
				require.NoError(t, err)
			}
			require.Equal(t, 300, passed, window)
			require.EqualValues(t, 500, s.operate(t, "get", "rule=per-user&key=alice").Value, window)
			require.Zero(t, count(s.load(16).send(t, 50, user("alice")), allowed), window)
		}
	})
}
