package cli

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// A server that is stopped while it starts ends without an error, as later.
func TestStoppedWhileItStarts(t *testing.T) {
	for _, args := range [][]string{
		{"serve", "--data", t.TempDir(), "--http", "127.0.0.1:0", "--xds", "127.0.0.1:0"},
		{"quota", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0"},
	} {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		root := NewRootCommand()
		root.SetArgs(args)
		root.SetErr(io.Discard)
		require.NoError(t, root.ExecuteContext(ctx), args)
	}
}
