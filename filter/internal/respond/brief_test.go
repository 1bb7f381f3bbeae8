package respond_test

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// The briefs of a verdict say what its report says.
func TestBriefsAreTheReport(t *testing.T) {
	dice := rand.NewChaCha8([32]byte{7})
	rules, denied := 0, 0
	for range 300 {
		data := make([]byte, 600)
		dice.Read(data)
		in := hosttest.Tape(data)
		text := in.Rules(in.Next()%2 == 1)
		p := hosttest.New()
		p.Clock = 1_700_000_000_123_456_789
		e := compileJSON(t, p, text)
		for len(in) > 0 {
			in.Request(p, true)
			v := e.Decide()
			var report result.Result
			require.NoError(t, json.Unmarshal(respond.AppendReport(nil, v), &report))
			rest := respond.AppendBriefs(nil, v)
			for i := range report.Rules {
				want := &report.Rules[i]
				brief, after, ok := result.CutBrief(rest)
				require.True(t, ok, text)
				require.Equal(t, want.Rule, string(brief.Rule))
				require.Equal(t, want.Allowed, brief.Allowed)
				require.Equal(t, want.Mode == "shadow", brief.Shadow)
				require.Equal(t, want.Reason, string(brief.Reason))
				parts := brief.KeyParts()
				require.Len(t, parts, len(want.Key))
				for j, part := range parts {
					require.Equal(t, want.Key[j] == nil, part == nil)
					if part != nil && utf8.ValidString(*part) {
						require.Equal(t, *want.Key[j], *part)
					}
				}
				if rules++; !brief.Allowed {
					denied++
				}
				rest = after
			}
			require.Empty(t, rest)
		}
	}
	require.Greater(t, rules, 1000)
	require.Greater(t, denied, 100)
}
