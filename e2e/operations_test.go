package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// operation is the answer to a management request.
type operation struct {
	Allowed bool  `json:"allowed"`
	Value   int64 `json:"value"`
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

// Operations change the counts of all workers' requests, and requests those of
// operations.
func TestOperations(t *testing.T) {
	eachSeparately(t, func(t *testing.T, d driver) {
		s := serve(t, d, oneRule("limits: [100/"+far+"]"))
		const alice = "rule=per-user&key=alice"
		admitted := func() int { return count(s.load(16).send(t, 320, user("alice")), allowed) }

		require.Zero(t, s.operate(t, "get", alice).Value)
		require.Zero(t, s.operate(t, "reset", alice).Value, "there was no record")
		s.load(16).send(t, 60, user("alice"))
		for range 3 * workers {
			require.EqualValues(t, 60, s.operate(t, "get", alice).Value, "every worker sees the same")
		}
		require.EqualValues(t, 75, s.operate(t, "inc", alice+"&n=15").Value)
		require.Equal(t, 25, admitted())

		set := s.operate(t, "set", alice+"&n=90")
		require.EqualValues(t, 90, set.Value)
		require.EqualValues(t, 10, set.Windows[0].Remaining)
		require.Equal(t, 10, admitted())
		require.EqualValues(t, 1000, s.operate(t, "set", alice+"&n=1000").Value, "beyond the limit")
		require.Zero(t, admitted())

		require.EqualValues(t, 1, s.operate(t, "reset", alice).Value)
		require.Zero(t, s.operate(t, "get", alice).Value)
		require.Equal(t, 100, admitted())
		require.EqualValues(t, 105, s.operate(t, "inc", alice+"&n=5").Value, "inc ignores the limit")
		require.Zero(t, admitted())

		const per = 366 * 24 * int64(time.Hour)
		require.Equal(t, (time.Now().UnixNano()/per+1)*per, s.operate(t, "expires_at", alice).Value)
		require.Zero(t, s.operate(t, "get", "rule=per-user&key=bob").Value, "another key")
		require.True(t, s.operate(t, "hit", "rule=per-user&key=bob&n=30").Allowed)
		require.False(t, s.operate(t, "hit", "rule=per-user&key=bob&n=71").Allowed)
		require.True(t, s.operate(t, "peek", "rule=per-user&key=bob&n=70").Allowed)
		require.EqualValues(t, 30, s.operate(t, "get", "rule=per-user&key=bob").Value)
	})
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
