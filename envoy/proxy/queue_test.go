package proxy

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestQueueIsBounded: who comes when it is full is sent away at once, and who
// leaves makes room.
func TestQueueIsBounded(t *testing.T) {
	p := &Proxy{options: Options{Queue: 1}, free: make(chan int, 1)}
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := p.take(ctx)
		left <- err
	}()
	require.Eventually(t, func() bool { return p.waiting.Load() == 1 }, time.Minute, time.Millisecond)
	_, err := p.take(t.Context())
	require.ErrorIs(t, err, errOverloaded)
	leave()
	require.ErrorIs(t, <-left, context.Canceled)
	p.free <- 3
	worker, err := p.take(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, worker)
}
