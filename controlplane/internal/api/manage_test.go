package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

var managed = good + "manage: {path: /.sluice/, token_sha256: \"" + strings.Repeat("5a", 32) + "\"}\n"

const managementToken = "s3cret-of-the-fleet"

// managedFixture is one with a fleet, a log and a caller.
type managedFixture struct {
	*fixture
	log    bytes.Buffer
	caller access.Caller
	broken bool // the store records nothing
}

func (m *managedFixture) Record(ctx context.Context, e store.Entry) (uint64, error) {
	if m.broken {
		return 0, errors.New("disk is full")
	}
	return m.store.Record(ctx, e)
}

// recorder is the store with the fixture's Record.
type recorder struct {
	store.Store
	m *managedFixture
}

func (r recorder) Record(ctx context.Context, e store.Entry) (uint64, error) {
	return r.m.Record(ctx, e)
}

func newManagedFixture(t *testing.T) *managedFixture {
	t.Helper()
	m := &managedFixture{caller: access.Caller{Name: "token ops", Role: access.Admin}}
	allow, err := manage.ParseAllow(manage.DefaultAllow)
	require.NoError(t, err)
	m.fixture = newFixtureWith(t, func(o *Options) {
		o.Store = recorder{o.Store, m}
		o.Fleet = manage.NewFleet(manage.Reach{Allow: &allow}, func() manage.Credentials {
			return manage.Credentials{Token: managementToken}
		})
		o.Log = slog.New(slog.NewTextHandler(&m.log, nil))
		o.Identify = func(*http.Request) (access.Caller, bool) { return m.caller, true }
	})
	return m
}

// proxyAt connects a proxy that announces the address, and waits until it runs
// revision 1.
func (m *managedFixture) proxyAt(id, address string) {
	m.t.Helper()
	m.proxy(id, func(int) bool { return true }, address)
	m.eventually(func(list []xds.ProxyStatus) bool {
		return slices.ContainsFunc(list, func(p xds.ProxyStatus) bool { return p.Node == id && p.Runs == 1 })
	})
}

func (m *managedFixture) counters(op, form string, code int, into any) {
	m.t.Helper()
	got, text := m.do("POST", "/v1/counters/"+op, form, "Content-Type", "application/x-www-form-urlencoded")
	require.Equal(m.t, code, got, text)
	decode(m.t, text, into)
}

// newest is the newest audit entry.
func (m *managedFixture) newest() (e store.Entry) {
	list, err := m.store.Audit(context.Background(), "", 1, 0)
	if require.NoError(m.t, err); len(list) > 0 {
		e = list[0]
	}
	return e
}

// Proxies whose Envoy has the quota service under another name than the policy are named. The script
// proxies.txtar has those of another management port.
func TestMisfitsOfProxiesAreNamed(t *testing.T) {
	const text = "version: 1\nquota: {cluster: quota_eu}\nrules: [{name: r, scope: cluster, limits: [1/1h]}]\n"
	p, _, _, err := policyfile.Read("p.yaml", []byte(text))
	require.NoError(t, err)
	proxies := []xds.Managed{
		{Node: "edge-0"}, {Node: "edge-1", Quota: "sluice_quota"},
		{Node: "edge-2", Quota: "quota_eu"}, {Node: "edge-3", Quota: "*"},
	}
	require.Empty(t, new(Quota).misfits(p, nil), "no proxy")
	require.Equal(t, []string{
		`quota.cluster is "quota_eu", but the quota service's cluster in the Envoy of edge-1 is "sluice_quota": ` +
			"on_unavailable will decide rules of scope cluster",
		`whether the Envoy of edge-0 has the cluster "quota_eu" of the quota service is not known, ` +
			"because sluice.quota_cluster in the node's metadata names none: " +
			"without it on_unavailable will decide rules of scope cluster"}, new(Quota).misfits(p, proxies))
	require.Equal(t, []string{countedApart}, (&Quota{Apart: true}).misfits(p, nil), "others count for themselves")
	p.Rules[0].Scope = policy.ScopeProxy
	require.Empty(t, (&Quota{Apart: true}).misfits(p, proxies), "no rule asks the quota service")
}

// listenerAt is where a proxy answers management requests.
func listenerAt(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// Who asked, what and what came of it: the entry is there before the first proxy
// is asked, and its outcome also when the caller has gone.
func TestCountersAreAudited(t *testing.T) {
	m := newManagedFixture(t)
	asked, stuck := make(chan store.Entry, 10), make(chan struct{})
	t.Cleanup(func() { close(stuck) })
	var wait atomic.Bool
	at := listenerAt(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- m.newest()
		if wait.Load() {
			select {
			case <-stuck:
			case <-r.Context().Done():
			}
		}
		_, _ = w.Write([]byte(`{"value":1,"windows":[]}`))
	})
	m.json("POST", "/v1/policies", managed, 201, &Applied{})
	m.proxyAt("edge-1", at)
	m.proxyAt("edge-2", "")

	const key = "rule=per-user&key=alice&key=x"
	m.counters("set", key+"&n=2", 200, &Counters{})
	before, after := <-asked, m.newest()
	require.Equal(t, store.Entry{
		ID: after.ID, At: after.At, Who: "token ops", From: "127.0.0.1",
		Action: "counters set", Policy: "default", Text: before.Text,
	}, before)
	require.Regexp(t, `^rule="per-user" key=hmac:[0-9a-f]{32} n=2$`, before.Text)
	require.Equal(t, "1 of 2 proxies", after.Outcome)

	// Equal keys have equal hashes, others not, however they are cut.
	m.counters("set", key+"&n=2", 200, &Counters{})
	require.Equal(t, before.Text, (<-asked).Text)
	m.counters("set", "rule=per-user&key=alicex&key=&n=2", 200, &Counters{})
	require.NotEqual(t, before.Text, (<-asked).Text)

	// What changes nothing is not written down.
	last := m.newest().ID
	m.counters("get", key, 200, &Counters{})
	<-asked
	require.Equal(t, last, m.newest().ID)

	wait.Store(true)
	m.resetAndLeave(key, asked)
	require.Equal(t, "1 of 1 proxy", outcome([]manage.Row{{}}))

	// What cannot be written down is not done.
	wait.Store(false)
	m.broken = true
	var e Error
	m.counters("reset", key, 500, &e)
	require.Contains(t, e.Error, "disk is full")
	require.Empty(t, asked)
}

// resetAndLeave asks for a reset, and disconnects while a proxy is asked: the outcome is
// written down all the same.
func (m *managedFixture) resetAndLeave(key string, asked <-chan store.Entry) {
	t := m.t
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, m.url+"/v1/counters/reset", strings.NewReader(key))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	reset := make(chan store.Entry, 1)
	go func() {
		reset <- <-asked
		cancel()
	}()
	response, err := http.DefaultClient.Do(request)
	if err == nil {
		_, err = io.ReadAll(response.Body)
	}
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, "counters reset", (<-reset).Action)
	require.Eventually(t, func() bool { return m.newest().Outcome != "" }, 2*time.Minute, time.Millisecond)
	require.Equal(t, "0 of 2 proxies, the caller disconnected before it was done", m.newest().Outcome)
}

// Each bad request has one clear error, which has no key in it.
func TestBadCounters(t *testing.T) {
	m := newManagedFixture(t)
	const form = "application/x-www-form-urlencoded"
	for _, tc := range []struct {
		path, kind, body string
		code             int
		want             string
	}{
		{"counters/get?rule=r&key=alice", form, "", 400,
			"the query is not read: give policy, rule, key, n, limit, window, timeout as a form in the body"},
		{"counters/get", form, "key=alice", 400, "rule is missing"},
		{"counters/get", "application/json", `{"rule":"alice"}`, 400, "send the form as application/x-www-form-urlencoded"},
		{"counters/get", "", "rule=r&key=alice", 400, "send the form as application/x-www-form-urlencoded"},
		{"counters/get", form, "rule=r&key=alice%zz", 400, "the body is not a form"},
		{"counters/get", form, "rule=r&rule=s", 400, "rule is given twice"},
		{"counters/get", form, "rule=r&keys=alice", 400, `unknown parameter \"keys\"`},
		{"counters/get", form, "rule=r&n=1", 400, "n does not go with get"},
		{"counters/get", form, "rule=r&limit=-1", 400, `limit \"-1\" is not a whole number`},
		{"counters/get", form, "rule=r" + strings.Repeat("&key=a", 17), 400, "key has 17 parts, but at most 16 are allowed"},
		{"counters/get", form, "rule=" + strings.Repeat("r", 129), 400, "longer than the 128 bytes of a name"},
		{"counters/get", form, "rule=r&key=" + strings.Repeat("alice", 60_000), 413, "the form is larger than 262144 bytes"},
		{"counters/get", form, "rule=r&timeout=soon", 400, "is not a duration"},
		{"counters/get", form, "rule=r&timeout=1h", 400, "at most 5m0s"},
		{"counters/set", form, "rule=r&key=alice", 400, "n is missing"},
		{"counters/inc", form, "rule=r&limit=1", 400, "limit does not go with inc"},
		{"counters/stats", form, "rule=r&key=alice", 400, "key does not go with stats"},
		{"counters/clean", form, "window=w", 400, "window does not go with clean"},
		{"counters/steal", form, "", 404, "no POST"},
		{"explain", "", strings.Repeat(" ", manage.MaxDescribed+1), 413, "at most 49152 bytes"},
		{"explain", "", "{\r\nx-evil: 1}", 400, "one line"},
		{"explain?timeout=0", "", "{}", 400, "above 0"},
		{"explain?timeuot=9s", "", "{}", 400, `no parameter \"timeuot\" here: known are [`},
	} {
		got, text := m.do("POST", "/v1/"+tc.path, tc.body, "Content-Type", tc.kind)
		require.Equal(t, tc.code, got, text)
		require.Contains(t, text, tc.want)
		require.NotContains(t, text, "alice")
	}
	require.NotContains(t, m.log.String(), "alice")
	m.server.Fleet = nil
	var e Error
	m.counters("stats", "", 501, &e)
	require.Contains(t, e.Error, "start it with --manage-token-file")
}
