package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
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
		o.Fleet = manage.NewFleet(manage.Rules{Allow: &allow}, func() manage.Credentials { return manage.Credentials{Token: managementToken} })
		o.Log = slog.New(slog.NewTextHandler(&m.log, nil))
		o.Identify = func(*http.Request) (access.Caller, bool) { return m.caller, true }
	})
	return m
}

// proxyAt connects a proxy that announces the address, and waits until it runs
// revision 1.
func (m *managedFixture) proxyAt(id, address string) {
	m.t.Helper()
	m.proxyWith(id, map[string]any{"manage": address}, func(int) bool { return true })
	require.Eventually(m.t, func() bool {
		for _, p := range m.xds.Ledger().Managed() {
			if p.Node == id {
				return p.Runs == 1
			}
		}
		return false
	}, 2*time.Minute, time.Millisecond)
}

func (m *managedFixture) counters(op string, form url.Values, code int, into any) {
	m.t.Helper()
	got, text := m.do("POST", "/v1/counters/"+op, form.Encode(), "Content-Type", "application/x-www-form-urlencoded")
	require.Equal(m.t, code, got, text)
	decode(m.t, text, into)
}

// Proxies whose Envoy has the quota service under another name than the policy are named, and get it all
// the same. The script proxies.txtar has those of another management port.
func TestApplyNamesProxiesOfAnotherQuotaCluster(t *testing.T) {
	m := newManagedFixture(t)
	on := func(rule string) []string {
		m.t.Helper()
		var a Applied
		m.json("POST", "/v1/policies", "version: 1\nquota: {cluster: quota_eu}\nrules: [{name: r, "+rule+"limits: [1/1h]}]\n", 201, &a)
		return a.ProxyWarnings
	}
	require.Empty(t, on("scope: cluster, "), "no proxy")
	always := func(int) bool { return true }
	m.proxyWith("edge-0", map[string]any{}, always)
	m.proxyWith("edge-1", map[string]any{"quota_cluster": "sluice_quota"}, always)
	m.proxyWith("edge-2", map[string]any{"quota_cluster": "quota_eu"}, always)
	m.proxyWith("edge-3", map[string]any{"quota_cluster": "*"}, always)
	require.Eventually(t, func() bool { return len(m.xds.Ledger().Managed()) == 4 }, time.Minute, time.Millisecond)
	require.Empty(t, on(""), "no rule asks the quota service")
	require.Equal(t, []string{`quota.cluster is "quota_eu", but the quota service's cluster in the Envoy of edge-1 is "sluice_quota": ` +
		"on_unavailable will decide rules of scope cluster",
		`whether the Envoy of edge-0 has the cluster "quota_eu" of the quota service is not known, because sluice.quota_cluster in the node's metadata names none: ` +
			"without it on_unavailable will decide rules of scope cluster"}, on("scope: cluster, "))
}

// listener is where a proxy answers management requests.
func listener(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// Who asked, what and what came of it: the entry is there before the first proxy
// is asked, and its outcome also when the caller has gone.
func TestCountersAreAudited(t *testing.T) {
	m := newManagedFixture(t)
	newest := func() store.Entry {
		list, err := m.store.Audit(context.Background(), "", 1, 0)
		require.NoError(t, err)
		if len(list) == 0 {
			return store.Entry{}
		}
		return list[0]
	}
	asked, stuck := make(chan store.Entry, 10), make(chan struct{})
	t.Cleanup(func() { close(stuck) })
	var wait atomic.Bool
	at := listener(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- newest()
		if wait.Load() {
			select {
			case <-stuck:
			case <-r.Context().Done():
			}
		}
		_, _ = w.Write([]byte(`{"value":1,"windows":[]}`))
	})
	var a Applied
	m.json("POST", "/v1/policies", managed, 201, &a)
	m.proxyAt("edge-1", at)
	m.proxyAt("edge-2", "")

	var c Counters
	form := url.Values{"rule": {"per-user"}, "key": {"alice", "x"}, "n": {"2"}}
	m.counters("set", form, 200, &c)
	before, after := <-asked, newest()
	require.Equal(t, "counters set", before.Action)
	require.Empty(t, before.Outcome)
	require.Equal(t, "token ops", before.Who)
	require.Equal(t, "127.0.0.1", before.From)
	require.Regexp(t, `^rule="per-user" key=hmac:[0-9a-f]{32} n=2$`, before.Text)
	require.Equal(t, before.ID, after.ID)
	require.Equal(t, "1 of 2 proxies", after.Outcome)

	// Equal keys have equal hashes, others not, however they are cut.
	m.counters("set", form, 200, &c)
	require.Equal(t, before.Text, (<-asked).Text)
	m.counters("set", url.Values{"rule": {"per-user"}, "key": {"alicex", ""}, "n": {"2"}}, 200, &c)
	require.NotEqual(t, before.Text, (<-asked).Text)

	// What changes nothing is not written down.
	last := newest().ID
	m.counters("get", form2(form, "n"), 200, &c)
	<-asked
	require.Equal(t, last, newest().ID)

	// A caller who goes.
	wait.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, m.url+"/v1/counters/reset", strings.NewReader(form2(form, "n").Encode()))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	gone := make(chan struct{})
	go func() {
		if res, err := http.DefaultClient.Do(request); err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
		close(gone)
	}()
	require.Equal(t, "counters reset", (<-asked).Action)
	cancel()
	<-gone
	require.Eventually(t, func() bool { return newest().Outcome != "" }, 2*time.Minute, time.Millisecond)
	require.Equal(t, "0 of 2 proxies, until the caller had gone", newest().Outcome)

	require.Equal(t, "1 of 1 proxy", outcome([]manage.Row{{}}))
	require.Equal(t, "0 of 0 proxies", outcome(nil))

	// What cannot be written down is not done.
	wait.Store(false)
	m.broken = true
	var e Error
	m.counters("reset", form2(form, "n"), 500, &e)
	require.Contains(t, e.Error, "disk is full")
	require.Empty(t, asked)
}

// form2 is a form without a field.
func form2(form url.Values, without string) url.Values {
	f := url.Values{}
	for name, values := range form {
		if name != without {
			f[name] = values
		}
	}
	return f
}

// Forms and descriptions count like policies, but for small ones.
func TestNoRoomForForms(t *testing.T) {
	m := newManagedFixture(t)
	free := fill(t, m.server.memory, maxHeld)
	large := strings.Repeat("x", 2*uncounted)
	for path, body := range map[string]string{"/v1/counters/get": "rule=r&key=" + large, "/v1/explain": `{"path":"/` + large + `"}`} {
		code, text := m.do("POST", path, body, "Content-Type", "application/x-www-form-urlencoded")
		require.Equal(t, 503, code, text)
		require.Contains(t, text, "busy")
	}
	code, text := m.do("POST", "/v1/counters/get", "rule=r&key=alice", "Content-Type", "application/x-www-form-urlencoded")
	require.Equal(t, 200, code, text)
	free()
	code, text = m.do("POST", "/v1/counters/get", "rule=r&key="+large, "Content-Type", "application/x-www-form-urlencoded")
	require.Equal(t, 200, code, text)
	fill(t, m.server.memory, maxHeld)() // all is given back
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
		{"/v1/counters/get?rule=r&key=alice", form, "", 400, "the query is not read: give policy, rule, key, n, limit, window and timeout as a form in the body"},
		{"/v1/counters/get", form, "key=alice", 400, "rule is missing"},
		{"/v1/counters/get", "application/json", `{"rule":"alice"}`, 400, "send the form as application/x-www-form-urlencoded"},
		{"/v1/counters/get", "multipart/form-data; boundary=b", "--b--\r\n", 400, "send the form as application/x-www-form-urlencoded"},
		{"/v1/counters/get", "", "rule=r&key=alice", 400, "send the form as application/x-www-form-urlencoded"},
		{"/v1/counters/get", form, "rule=r&key=alice%zz", 400, "the body is not a form"},
		{"/v1/counters/get", form, "rule=r&rule=s", 400, "rule is given twice"},
		{"/v1/counters/get", form, "rule=r&keys=alice", 400, `unknown parameter \"keys\"`},
		{"/v1/counters/get", form, "rule=r&n=1", 400, "n does not go with get"},
		{"/v1/counters/inc", form, "rule=r&limit=1", 400, "limit does not go with inc"},
		{"/v1/counters/get", form, "rule=r&limit=-1", 400, `limit \"-1\" is not a whole number`},
		{"/v1/counters/get", form, "rule=r" + strings.Repeat("&key=a", 17), 400, "at most 16 parts, not 17"},
		{"/v1/counters/get", form, "rule=" + strings.Repeat("r", 129), 400, "at most 128 bytes"},
		{"/v1/counters/get", form, "rule=r&key=" + strings.Repeat("alice", 60_000), 400, "larger than"},
		{"/v1/counters/get", form, "rule=r&timeout=soon", 400, "is not a duration"},
		{"/v1/counters/get", form, "rule=r&timeout=1h", 400, "up to 5m0s"},
		{"/v1/counters/set", form, "rule=r&key=alice", 400, "n is missing"},
		{"/v1/counters/inc", form, "rule=r&n=-1", 400, "is not a whole number"},
		{"/v1/counters/stats", form, "rule=r&key=alice", 400, "key does not go with stats"},
		{"/v1/counters/clean", form, "window=w", 400, "window does not go with clean"},
		{"/v1/counters/steal", form, "", 404, "no POST"},
		{"/v1/explain", "", strings.Repeat(" ", manage.MaxDescribed+1), 400, "at most 49152 bytes"},
		{"/v1/explain", "", "{\r\nx-evil: 1}", 400, "one line"},
		{"/v1/explain?timeout=0", "", "{}", 400, "above 0"},
		{"/v1/explain?timeuot=9s", "", "{}", 400, `no parameter \"timeuot\" here: known are [`},
	} {
		got, text := m.do("POST", tc.path, tc.body, "Content-Type", tc.kind)
		require.Equal(t, tc.code, got, text)
		require.Contains(t, text, tc.want)
		require.NotContains(t, text, "alice")
	}
	require.NotContains(t, m.log.String(), "alice")
	plain := newFixture(t, "")
	got, text := plain.do("POST", "/v1/counters/stats", "", "Content-Type", form)
	require.Equal(t, 501, got)
	require.Contains(t, text, "start it with --manage-token-file")
}
