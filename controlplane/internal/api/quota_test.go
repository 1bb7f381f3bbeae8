package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

const leased = `version: 1
domain: shop
manage: {path: /.sluice/, token_sha256: "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"}
rules:
  - {name: own, key: [{header: x-user-id}], missing_key: deny, limits: ["10/1m"]}
  - {name: shared, scope: cluster, key: [{header: x-user-id}], missing_key: deny, limits: ["10/1h"]}
`

// brokenStore is a quota store that can fail.
type brokenStore struct {
	swapstore.Store
	broken bool
}

func (b *brokenStore) Swap(ctx context.Context, swaps []swapstore.Swap, done func(int, swapstore.Result)) {
	if !b.broken {
		b.Store.Swap(ctx, swaps, done)
		return
	}
	for i := range swaps {
		done(i, swapstore.Result{Status: swapstore.Failed, Err: errors.New("connection refused")})
	}
}

// TestCountedApart: where each control plane on a store counts for itself, status says so while a policy in force
// has a rule of scope cluster.
func TestCountedApart(t *testing.T) {
	for _, apart := range []bool{false, true} {
		f := newFixtureWith(t, func(o *Options) { o.Quota.Apart = apart })
		says := func(want bool) {
			t.Helper()
			var st Status
			f.json("GET", "/v1/status", "", 200, &st)
			require.Equal(t, map[bool]string{true: countedApart}[want], st.Apart)
		}
		says(false)
		f.as("", "POST /v1/policies", good, 201)
		says(false)
		var applied Applied
		f.json("POST", "/v1/policies", leased, 201, &applied)
		require.Equal(t, apart, slices.Contains(applied.ProxyWarnings, countedApart))
		says(apart)
		f.as("", "POST /v1/policies", good, 201)
		says(false)
	}
}

// TestCountersOfAClusterRule: the quota service answers, and the proxies say what they hold
// beside it, as far as they can be asked. The script clustercounters.txtar has more operations.
func TestCountersOfAClusterRule(t *testing.T) {
	m := newManagedFixture(t)
	backing := &brokenStore{Store: swapstore.NewMemory(swapstore.SteadyClock())}
	service, err := quotaservice.NewService(t.Context(), quotaservice.Options{Store: backing})
	require.NoError(t, err)
	var asked []string
	at := listenerAt(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.String())
		_, _ = w.Write([]byte(`{"value":3}`))
	})
	m.json("POST", "/v1/policies", leased, 201, &Applied{})
	m.proxyAt("edge-1", at)
	m.proxyAt("edge-2", "")
	const key = "rule=shared&key=alice"
	var refused Error
	m.counters("get", key, 501, &refused)
	require.Contains(t, refused.Error, "start it with --quota-store")
	m.server.Quota.Service = service

	var c Counters
	m.counters("inc", key+"&n=7", 200, &c)
	require.Equal(t, []string{"/.sluice/counters/leased?key=alice&rule=shared"}, asked)
	require.Equal(t, []any{"inc", int64(7), int64(3600_000)}, []any{c.Op, *c.Quota.Value, c.Quota.Windows[0].PerMs})
	require.EqualValues(t, 3, *c.Proxies[0].Value)
	require.Contains(t, c.Proxies[1].Error, "reported no management address")
	require.EqualValues(t, 3, *c.AtLeast)
	require.Nil(t, c.Sum)
	require.Equal(t, 1, c.Failed)
	require.Empty(t, c.Note)
	require.Regexp(t, `^rule="shared" key=hmac:[0-9a-f]{32} n=7$`, m.newest().Text)
	require.Equal(t, []string{"counters inc", "done by the quota service"},
		[]string{m.newest().Action, m.newest().Outcome})

	m.counters("get", key+"&key=bob", 400, &refused)
	require.Contains(t, refused.Error, `the key of rule "shared" has 1 part, not 2`)

	m.server.Fleet = nil
	c = Counters{}
	m.counters("get", key, 200, &c)
	require.EqualValues(t, 7, *c.Quota.Value)
	require.NotNil(t, c.Proxies)
	require.Nil(t, c.Sum)
	require.Contains(t, c.Note, "is not known")
	m.counters("get", "rule=own&key=alice", 501, &refused)
	require.Contains(t, refused.Error, "no management token")
	backing.broken = true
	m.counters("reset", key, 503, &refused)
	require.Contains(t, refused.Error, "connection refused")
	require.Equal(t, "failed: "+refused.Error, m.newest().Outcome)
	require.NotContains(t, m.log.String(), "alice")
}
