package api

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

func TestHealthzOfAStoreThatIsGone(t *testing.T) {
	dir := t.TempDir()
	s, err := store.Open(dir)
	require.NoError(t, err)
	f := newFixtureWith(t, func(o *Options) { o.Store = s })
	code, text := f.do("GET", "/healthz", "")
	require.Equal(t, 200, code, text)
	require.NoError(t, os.RemoveAll(dir))
	code, text = f.do("GET", "/healthz", "")
	require.Equal(t, 500, code)
	require.Contains(t, text, "has been taken away or replaced")
	require.NoError(t, s.Close())
}
