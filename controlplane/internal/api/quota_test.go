package api

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quota"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	lease "github.com/sluice-ratelimit/sluice/shared/quota"
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
	quota.Store
	broken bool
}

func (b *brokenStore) Swap(ctx context.Context, swaps []quota.Swap, done func(int, quota.Result)) {
	if !b.broken {
		b.Store.Swap(ctx, swaps, done)
		return
	}
	for i := range swaps {
		done(i, quota.Result{Outcome: quota.Failed, Err: errors.New("connection refused")})
	}
}

// TestCountersOfAClusterRule: the quota service answers, and the proxies say what they
// hold beside it.
func TestCountersOfAClusterRule(t *testing.T) {
	m := newManagedFixture(t)
	backing := &brokenStore{Store: quota.NewMemory(quota.SteadyClock())}
	service, err := quota.NewService(t.Context(), quota.Options{Store: backing})
	require.NoError(t, err)
	var asked []string
	at := listener(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.String())
		_, _ = w.Write([]byte(`{"value":3}`))
	})
	var a Applied
	m.json("POST", "/v1/policies", leased, 201, &a)
	m.proxyAt("edge-1", at)
	m.proxyAt("edge-2", "")
	form := url.Values{"rule": {"shared"}, "key": {"alice"}}
	newest := func() store.Entry {
		list, err := m.store.Audit(t.Context(), "", 1, 0)
		require.NoError(t, err)
		return list[0]
	}

	var refused Error
	m.counters("get", form, 501, &refused)
	require.Contains(t, refused.Error, "start it with --quota-store")
	m.server.quota = Quota{Service: service, Private: true}
	m.counters("get", form, 501, &refused)
	require.Contains(t, refused.Error, "no proxy has asked the quota service of this serve")
	stream, err := service.Open(quota.Peer{}, func() {})
	require.NoError(t, err)
	first := lease.Asks{Domain: "shop", Process: 1}
	require.NoError(t, stream.Receive(first.Append(nil)))

	var c Counters
	form.Set("n", "7")
	m.counters("inc", form, 200, &c)
	require.Equal(t, "inc", c.Op)
	require.EqualValues(t, 7, *c.Quota.Value)
	require.EqualValues(t, 3, *c.Quota.Windows[0].Remaining)
	require.EqualValues(t, 3600_000, c.Quota.Windows[0].PerMs)
	require.Equal(t, []string{"/.sluice/counters/leased?key=alice&rule=shared"}, asked)
	require.EqualValues(t, 3, *c.Proxies[0].Value)
	require.Contains(t, c.Proxies[1].Error, "reported no management address")
	require.EqualValues(t, 3, *c.AtLeast)
	require.Nil(t, c.Sum)
	require.Equal(t, 1, c.Failed)
	require.Empty(t, c.Note)
	require.Equal(t, "counters inc", newest().Action)
	require.Regexp(t, `^rule="shared" key=hmac:[0-9a-f]{32} n=7$`, newest().Text)
	require.Equal(t, "done by the quota service", newest().Outcome)

	form.Set("n", "4")
	c = Counters{}
	m.counters("peek", form, 200, &c)
	require.False(t, *c.Quota.Allowed)
	require.Positive(t, *c.Quota.RetryMs)
	require.Equal(t, "shared", c.Quota.DeniedBy)

	form.Del("n")
	c = Counters{}
	m.counters("reset", form, 200, &c)
	require.EqualValues(t, 1, *c.Quota.Value)
	require.Contains(t, c.Note, "up to 10s more")

	form["key"] = []string{"alice", "bob"}
	m.counters("get", form, 400, &refused)
	require.Contains(t, refused.Error, `the key of rule "shared" has 1 part, not 2`)
	form["key"] = []string{"alice"}

	m.server.fleet = nil
	c = Counters{}
	m.counters("get", form, 200, &c)
	require.Zero(t, *c.Quota.Value)
	require.NotNil(t, c.Proxies)
	require.Nil(t, c.Sum)
	require.Contains(t, c.Note, "is not known")
	m.counters("get", url.Values{"rule": {"own"}, "key": {"alice"}}, 501, &refused)
	require.Contains(t, refused.Error, "no management token")

	backing.broken = true
	m.counters("reset", form, 503, &refused)
	require.Contains(t, refused.Error, "connection refused")
	require.Equal(t, "failed: "+refused.Error, newest().Outcome)

	m.caller = access.Caller{Name: "token reader", Role: access.Read}
	backing.broken = false
	m.counters("get", form, 200, &c)
	for _, op := range manage.Operations {
		if op.Changes {
			got, _ := m.do("POST", "/v1/counters/"+op.Name, form.Encode(), "Content-Type", "application/x-www-form-urlencoded")
			require.Equal(t, 403, got, op.Name)
		}
	}
	require.NotContains(t, m.log.String(), "alice")
}
