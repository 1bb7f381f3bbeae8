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
	f.as("", "POST /v1/policies", good, 503, "cut off from etcd since noon")
	f.as("", "GET /healthz", "", 200, "cut off from etcd since noon")
	f.as("", "GET /v1/status", "", 200, `"cut_off":"cut off from etcd since noon"`)
	f.as("", "GET /metrics", "", 200, "\nsluice_store_cut_off 1\n")
	newFixture(t, "").as("", "GET /metrics", "", 200, "\nsluice_store_cut_off 0\n")
}

func TestHealthzOfAStoreThatIsGone(t *testing.T) {
	dir := t.TempDir()
	f := newFixtureOn(t, dir, func(*Options) {})
	f.as("", "GET /healthz", "", 200)
	require.NoError(t, os.RemoveAll(dir))
	f.as("", "GET /healthz", "", 500, "has been taken away or replaced")
}
