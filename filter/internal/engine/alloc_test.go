package engine

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
)

// Every algorithm decides, counts, denies and refunds without allocating.
func TestNoAlgorithmAllocates(t *testing.T) {
	for _, window := range []string{
		`"algorithm":"fixed_window"`, `"algorithm":"fixed_window","jitter":30`, `"algorithm":"fixed_window_per_key"`,
		`"algorithm":"fixed_window_per_key","elastic":true`, `"algorithm":"sliding_window_log"`,
		`"algorithm":"sliding_window_counter"`, `"algorithm":"token_bucket","burst":300`,
	} {
		for _, more := range []string{
			``, `,"mode":"shadow"`, `,"enforce_percent":40`, `,"count_denied":true`,
			`,"overrides":[{"key":["x"],"limits":[{"requests":9,"per":"1h",` + window + `}]},{"key":["~a.*"],"limits":[{"requests":400,"per":"1h",` + window + `}]}]`,
		} {
			if strings.Contains(window, "token_bucket") && strings.Contains(more, "count_denied") {
				continue
			}
			// The last rule denies some: then the first has checked and counts nothing.
			s := &hosttest.Steady{Proxy: hosttest.New()}
			s.With("u", "alice")
			e := compileJSON(t, s, `{"name":"r","key":[{"header":"u"}],"limits":[{"requests":300,"per":"1h",`+window+`},"4000000000/1d"]`+more+`},
				{"name":"last","limits":["2/2s"],"algorithm":"fixed_window_per_key"}`)
			passed, denied := 0, 0
			serve := func() {
				if s.Clock += 700_000_000; e.Decide().Allowed {
					passed++
				} else {
					denied++
				}
			}
			for range 400 {
				serve()
			}
			require.Zero(t, testing.AllocsPerRun(400, serve), "%s%s", window, more)
			require.NotZero(t, passed)
			require.NotZero(t, denied)
			subject := e.verdict.Subjects[0]
			source := subject.Rule.Source
			require.Zero(t, testing.AllocsPerRun(100, func() {
				s.Clock += 100_000_000_000 // a token and more for each
				if source.Check(subject, s.Clock) == decide.Granted {
					require.Equal(t, decide.Taken, source.Take(subject))
					require.True(t, source.Refund(subject, s.Clock))
				}
			}), "refunding: %s%s", window, more)
		}
	}
}
