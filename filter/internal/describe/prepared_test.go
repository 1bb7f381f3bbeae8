package describe

import (
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/filter/internal/hosttest"
)

// Prepared fields are those that are written in general.
func TestPreparedFields(t *testing.T) {
	for _, windows := range []string{
		`"7/1h"`, `{"name":"a","requests":7,"per":"1h"},"20/1d"`, `{"requests":7,"per":"1500ms","algorithm":"fixed_window_per_key"},"9/1m"`,
		`{"requests":7,"per":"1m","algorithm":"sliding_window_log"},{"requests":9,"per":"1m","algorithm":"sliding_window_counter"}`,
		`{"requests":7,"per":"1m","algorithm":"token_bucket","burst":3}`, `{"requests":7,"per":"1h","jitter":40}`,
	} {
		p := hosttest.New()
		p.Clock = 1_700_000_000_000_000_123
		e := engine.New(hosttest.Policy(t, `{"name":"r \"é","limits":[`+windows+`]}`), p, engine.Identity{Random: func(b []byte) { clear(b) }})
		f := Fields{}
		for range 12 {
			v := e.Decide()
			require.True(t, isPrepared(v.Attempts[0]))
			want := f.appendXRateLimit(f.appendIETF(nil, v.Attempts, v.Now), v.Attempts, v.Now)
			require.Equal(t, want, f.appendOne(nil, v.Attempts[0], v.Now, true, true), windows)
			require.Equal(t, want[:2], f.appendOne(nil, v.Attempts[0], v.Now, true, false))
			require.Equal(t, want[2:], f.appendOne(nil, v.Attempts[0], v.Now, false, true))
			p.Clock += 333_000_000
		}
	}
	for _, n := range []uint64{0, 9, 10, 4_294_967_295, math.MaxUint64} {
		require.Equal(t, strconv.FormatUint(n, 10), string(appendNumber(nil, n)))
	}
}
