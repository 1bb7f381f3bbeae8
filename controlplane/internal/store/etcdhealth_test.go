package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What is gone says so also where it was full before, and is full still once it is back.
func TestFullThenGone(t *testing.T) {
	e := &Etcd{change: make(chan struct{})}
	full, gone := rpctypes.ErrNoSpace, status.Error(codes.Unavailable, "connection refused")
	e.note(full, true)
	e.note(gone, true)
	require.ErrorContains(t, e.Healthy(t.Context()), "etcd takes no more", "members may be electing a leader")
	e.reached = time.Now().Add(-lookWithin)
	e.note(gone, true)
	require.ErrorContains(t, e.Healthy(t.Context()), "connection refused")
	e.note(nil, false)
	require.Error(t, e.Healthy(t.Context()), "a reading says nothing of what was refused")
	e.note(full, true)
	require.ErrorContains(t, e.Healthy(t.Context()), "etcd takes no more")
	e.note(nil, true)
	require.NoError(t, e.Healthy(t.Context()))
}
