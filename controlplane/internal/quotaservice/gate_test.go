package quotaservice

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGate: who has had little goes first, and who gives up holds nobody up.
func TestGate(t *testing.T) {
	g := gate{free: 1}
	passes := make([]pass, 4)
	for i := range passes {
		passes[i] = newPass()
	}
	enter := func(ctx context.Context, i int) chan error {
		done := make(chan error, 1)
		waiting := len(g.waiting)
		go func() { done <- g.enter(ctx, &passes[i]) }()
		require.Eventually(t, func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return len(g.waiting) > waiting || len(done) > 0
		}, 5e9, 1e5)
		return done
	}
	ctx, giveUp := context.WithCancel(t.Context())
	require.NoError(t, <-enter(ctx, 0))
	g.leave(&passes[0], 1000)
	require.NoError(t, <-enter(ctx, 1))
	heavy, gone, light := enter(t.Context(), 0), enter(ctx, 2), enter(t.Context(), 3)
	giveUp()
	require.ErrorIs(t, <-gone, context.Canceled)
	g.leave(&passes[1], 10)
	require.NoError(t, <-light)
	require.Empty(t, heavy)
	g.leave(&passes[3], 10)
	require.NoError(t, <-heavy)
	g.leave(&passes[0], 10)
	require.Equal(t, 1, g.free)
}
