package store

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func open(t *testing.T, dir string) *Bolt {
	t.Helper()
	b, err := Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func TestWhatIsKnownAfterAReply(t *testing.T) {
	ack := func(r uint64) Reply { return Reply{Node: "n", Revision: r, Accepted: true} }
	nack := func(r uint64) Reply { return Reply{Node: "n", Revision: r} }
	for _, tc := range []struct {
		replies   []Reply
		acked     uint64
		refused   []uint64
		unsettled bool
	}{
		{[]Reply{ack(1)}, 1, nil, false},
		{[]Reply{ack(1), nack(2)}, 1, []uint64{2}, true},
		{[]Reply{ack(1), nack(2), ack(1)}, 1, []uint64{2}, false}, // its withdrawal
		{[]Reply{ack(1), nack(2), ack(1), ack(3)}, 3, nil, false},
		{[]Reply{nack(2), ack(2)}, 2, nil, false},
		{[]Reply{nack(2), nack(2)}, 0, []uint64{2}, true},
		{[]Reply{ack(6), nack(6), ack(3)}, 3, []uint64{6}, false},
	} {
		var p Proxy
		for _, a := range tc.replies {
			p = p.After(a)
		}
		require.ElementsMatch(t, tc.refused, p.Refused, "%v", tc)
		require.Equal(t, []any{tc.acked, tc.unsettled}, []any{p.Acked, p.Unsettled}, "%v", tc)
	}
	var p Proxy
	for r := range uint64(100) {
		p = p.After(nack(r))
	}
	require.Len(t, p.Refused, maxRefused)
}

func TestAnotherFormatIsRefused(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	other := func(r records) error { return r.set(metaBucket, formatKey, []byte("99")) }
	require.NoError(t, b.commit(t.Context(), false, other))
	require.NoError(t, b.Close())
	for range 2 { // it is not left locked
		_, err := Open(dir)
		require.ErrorContains(t, err, `"99"`)
	}
	_, err := Open(filepath.Join(dir, FileName))
	require.ErrorContains(t, err, "create data directory")
}

// testdata/before-policies was written by the release before policies had names: three
// revisions, a refusal, an audit log.
func TestDirectoryOfBeforePoliciesHadNames(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	for _, name := range []string{FileName, LastName} {
		f, err := os.Open(filepath.Join("testdata", "before-policies", name+".gz"))
		require.NoError(t, err)
		defer f.Close()
		from, err := gzip.NewReader(f)
		require.NoError(t, err)
		text, err := io.ReadAll(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	b := open(t, dir)
	require.Equal(t, []uint64{3, 2, 1}, numbersOf(t, b, DefaultPolicy, 0))
	third, err := b.Get(ctx, 3)
	require.NoError(t, err)
	require.Equal(t, "third", string(third.YAML))
	require.Equal(t, DefaultPolicy, third.Policy)
	require.True(t, third.Nacked)
	proxies, err := b.Proxies(ctx)
	require.NoError(t, err)
	require.Equal(t, uint64(2), proxies[0].Acked)
	_, err = add(ctx, b, of("edge", "fourth"))
	require.NoError(t, err)
	require.NoError(t, b.Close())
	b = open(t, dir)
	require.Equal(t, []uint64{3, 2, 1}, numbersOf(t, b, DefaultPolicy, 0))
	require.Equal(t, []uint64{4}, numbersOf(t, b, "edge", 0))
}

func damagedRecord(t *testing.T, open opener) {
	s, ctx := open(), t.Context()
	appendAll(t, s, "a", "b")
	require.NoError(t, s.commit(ctx, false, func(r records) error {
		value := append([]byte{}, r.value(yamlBucket, key(2))...)
		value[len(value)-1] ^= 1
		return r.set(yamlBucket, key(2), value)
	}))
	_, err := s.Get(ctx, 2)
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, "revision 2 (yaml) is not what was stored")
	_, err = s.Get(ctx, 1)
	require.NoError(t, err)
}

func backupOpens(t *testing.T, reopen opener) {
	s, ctx := reopen(), t.Context()
	appendAll(t, s, "a", "b")
	_, err := add(ctx, s, of("edge", "c"))
	require.NoError(t, err)
	require.NoError(t, s.Drop(ctx, []uint64{1}))
	secret, err := s.Secret(ctx)
	require.NoError(t, err)
	dir := t.TempDir()
	restored, err := Restore(backupOf(t, s), dir, false)
	require.NoError(t, err)
	require.Equal(t, Contents{Revisions: 2, Newest: 3, Given: 3}, restored.Contents)
	copied := open(t, dir)
	for _, number := range []uint64{2, 3} {
		want, err := s.Get(ctx, number)
		require.NoError(t, err)
		got, err := copied.Get(ctx, number)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	again, err := copied.Secret(ctx)
	require.NoError(t, err)
	require.Equal(t, secret, again)
}

// A rollout is kept with its revision, changes with the audit log, and ends once.
func rollouts(t *testing.T, open opener) {
	b, ctx := open(), t.Context()
	appendAll(t, b, "first")
	begun := Rollout{
		Percent: 10, Except: []string{"edge-3"}, PromoteAfter: 5 * time.Minute, MaxDenied: 2,
		Who: "token ci", State: Canary,
	}
	d := of("default", "second")
	d.Rollout = &begun
	second, err := add(ctx, b, d)
	require.NoError(t, err)
	require.Equal(t, &begun, second.Rollout)
	step := func(state RolloutState, why string) error {
		step := Step{Revision: 2, State: state, Why: why, Audit: Entry{Action: string(state), Text: why}}
		_, err := b.Append(ctx, Change{Last: 2, Steps: []Step{step}})
		return err
	}
	stands := func() *Rollout {
		require.NoError(t, b.Close())
		b = open()
		list, err := b.History(ctx, DefaultPolicy, 1)
		require.NoError(t, err)
		return list[0].Rollout
	}
	require.Equal(t, &begun, stands())

	appended := b.Appended()
	require.NoError(t, step(Stalled, "edge-3 refused it"))
	<-appended
	want := begun
	want.State, want.Why = Stalled, "edge-3 refused it"
	require.Equal(t, &want, stands())
	require.True(t, want.Lasts())

	_, err = b.Append(ctx, Change{Last: 1, Steps: []Step{{Revision: 2, State: Promoted}}})
	require.ErrorIs(t, err, ErrConflict)
	require.NoError(t, b.SaveReply(ctx, Reply{Node: "edge-3", Revision: 2}))
	require.Eventually(t, b.Leads, 20*time.Second, time.Millisecond)
	_, err = b.Append(ctx, Change{Last: 2, ByLeader: true, Steps: []Step{{Revision: 2, State: Promoted}}})
	require.ErrorIs(t, err, ErrConflict, "a proxy has refused it")
	require.Equal(t, &want, stands())
	require.NoError(t, step(Aborted, ""))
	want.State, want.Why = Aborted, ""
	require.Equal(t, &want, stands())
	require.True(t, !want.Lasts() && want.IsAborted())
	require.ErrorIs(t, step(Promoted, ""), ErrConflict, "it has ended")
	require.Equal(t, &want, stands())

	entries, err := b.Audit(ctx, DefaultPolicy, 2, 0)
	require.NoError(t, err)
	require.Equal(t, []string{"aborted", "stalled"}, []string{entries[0].Action, entries[1].Action},
		"what is refused is not in the log")
	require.Equal(t, []uint64{2, 2}, []uint64{entries[0].Revision, entries[1].Revision})
	_, err = b.Append(ctx, Change{Last: 2, Steps: []Step{{Revision: 1, State: Promoted}}})
	require.ErrorIs(t, err, ErrConflict, "it never was a canary")
	_, err = b.Append(ctx, Change{Last: 2, Steps: []Step{{Revision: 9, State: Promoted}}})
	require.ErrorIs(t, err, ErrNotFound)
}

func TestURLs(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(secret, []byte("hunter2\n"), 0o600))
	for at, want := range map[string]struct {
		endpoints, root, user, password string
		tls                             bool
	}{
		"etcd://a:2379":                         {endpoints: "http://a:2379", root: "sluice/"},
		"etcd://a:2379,[::1]:2380/":             {endpoints: "http://a:2379 http://[::1]:2380", root: "sluice/"},
		"etcds://a:1/prod/eu/?server_name=etcd": {endpoints: "https://a:1", root: "prod/eu/", tls: true},
		"etcd://joe@a:1/?password_file=" + secret: {
			endpoints: "http://a:1", root: "sluice/", user: "joe", password: "hunter2",
		},
	} {
		c, root, err := address(at)
		require.NoError(t, err, at)
		require.Equal(t, want.endpoints, strings.Join(c.Endpoints, " "))
		require.Equal(t, []any{want.root, want.user, want.password, want.tls},
			[]any{root, c.Username, c.Password, c.TLS != nil})
	}
	for at, want := range map[string]string{
		"http://a:2379":                       "a store's URL is etcd://HOST:PORT",
		"etcd://a":                            "HOST:PORT",
		"etcd://joe:hunter2@a:1":              "holds no password",
		"etcd://joe@a:1":                      "a user and a password",
		"etcd://a:1/?password_file=" + secret: "a user and a password",
		"etcd://joe@a:1/?password_file=/no":   "read the store's password",
		"etcd://a:1/?ca=/ca.pem":              "etcds://",
		"etcd://a:1/?prefix=x":                "once at most: ca, cert, key, password_file, server_name",
	} {
		_, _, err := address(at)
		require.ErrorContains(t, err, want, at)
		require.NotContains(t, err.Error(), "hunter2")
	}
}

// What is gone says so also where it was full before, and is full still once it is back.
func TestFullThenGone(t *testing.T) {
	e := &etcdCopy{change: make(chan struct{})}
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
