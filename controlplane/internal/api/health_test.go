package api

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
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

// stopped is a clock.
type stopped struct{}

func (stopped) NowNs() int64 { return 0 }

func (stopped) AfterFunc(int64, func()) {}

// A quota store without state makes serve not ready, if some policy has rules that wait for it: else
// nobody misses it.
func TestAQuotaStoreThatStarts(t *testing.T) {
	memory := swapstore.NewMemory(stopped{}.NowNs)
	open := func() *quotaservice.Service {
		s, err := quotaservice.NewService(t.Context(), quotaservice.Options{Store: memory, Clock: stopped{}})
		require.NoError(t, err)
		return s
	}
	f := newFixtureWith(t, func(o *Options) { o.Quota.Service = open() })
	const says = "the quota store is starting: it has no state yet, and proxies report what they hold; " +
		"on_unavailable decides for 4s"
	holding := strings.Replace(leased, `limits: ["10/1h"]`, `limits: ["10/1h"], settle: {}`, 1)
	f.as("", "POST /v1/policies", leased, 201)
	f.as("", "GET /healthz", "", 200)
	f.as("", "POST /v1/policies", strings.Replace(holding, "settle: {}", "settle: {}, mode: off", 1), 201)
	f.as("", "GET /healthz", "", 200)
	f.as("", "POST /v1/policies", holding, 201)
	f.as("", "GET /healthz", "", 503, `"error":"`+says+`"`)
	f.as("", "GET /v1/status", "", 200, `"starting":"`+says+`"`)
	f.as("", "GET /metrics", "", 200)
	memory.Aged()
	f.server.Quota.Service = open()
	f.as("", "GET /healthz", "", 200)
	f.as("", "GET /v1/status", "", 200, `"untaken":0}`)
}
