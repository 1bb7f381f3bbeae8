package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
)

// Debt is paid: an answer that takes more than a limit is paid by the minutes that follow, a limit
// each.
func TestDebtIsPaid(t *testing.T) {
	for _, algorithm := range []string{"token_bucket", "fixed_window", "fixed_window_per_key"} {
		p := hosttest.New()
		p.Clock = 1000 * 60e9
		e := compileJSON(t, p, `{"name":"r","algorithm":"`+algorithm+`","limits":["10/1m"],"settle":{"to":{"header":"x-cost"}}}`)
		for _, h := range e.Decide().AppendHolds(nil) {
			h.Settle(35, decide.ByAnswer, p.Clock)
		}
		for _, left := range []uint32{35, 25, 15, 5} {
			require.Equal(t, [][]uint32{{left}}, used(e.Peek()), algorithm)
			p.Clock += 60e9
		}
		require.True(t, e.Decide().Allowed)
	}
}
