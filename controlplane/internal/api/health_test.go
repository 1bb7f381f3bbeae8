package api

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// unreachable is a store that is out of reach.
type unreachable struct{ store.Store }

var errCutOff = fmt.Errorf("%w since noon", store.ErrCutOff)

func (unreachable) Healthy(context.Context) error { return errCutOff }

func (unreachable) Append(context.Context, store.Change) ([]store.Revision, error) {
	return nil, errCutOff
}

// A serve that is cut off says so, refuses changes, and counts as ready: its proxies get
// what it knows.
func TestCutOff(t *testing.T) {
	f := newFixtureWith(t, func(o *Options) { o.Store = unreachable{o.Store} })
	code, text := f.do("POST", "/v1/policies", good)
	require.Equal(t, 503, code, text)
	require.Contains(t, text, "cut off from etcd since noon")
	code, text = f.do("GET", "/healthz", "")
	require.Equal(t, 200, code)
	require.Contains(t, text, "cut off from etcd since noon")
	var st Status
	f.json("GET", "/v1/status", "", 200, &st)
	require.Equal(t, "cut off from etcd since noon", st.CutOff)
	_, text = f.do("GET", "/metrics", "")
	require.Contains(t, text, "\nsluice_store_cut_off 1\n")
	_, text = newFixture(t, "").do("GET", "/metrics", "")
	require.Contains(t, text, "\nsluice_store_cut_off 0\n")
}

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
