//go:build etcd

package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/sluice-ratelimit/sluice/build/servertest"
)

// A change compares what it read, not what the copy has by the time of the commit.
func TestEtcdComparesWhatWasRead(t *testing.T) {
	at, ctx := servertest.StartEtcd(t, 1).URL(), t.Context()
	a, b := openEtcd(t, at), openEtcd(t, at)
	appendAll(t, a, "first")
	require.NoError(t, a.SaveReply(ctx, Reply{Node: "n", Revision: 1, Accepted: true}))
	for range 20 {
		last, err := a.Last(ctx)
		require.NoError(t, err)
		tx := a.newTx()
		require.NoError(t, tx.make(false, func(r records) error {
			_, err := r.append(&Draft{YAML: []byte("rival")}, time.Now())
			return err
		}))
		soon(t, "b has it", func() bool { n, _ := b.Last(ctx); return n == last })
		_, err = b.Append(ctx, Change{Last: last, Drafts: []Draft{draft("acknowledged")}})
		require.NoError(t, err)
		soon(t, "a has it", func() bool { n, _ := a.Last(ctx); return n == last+1 })
		what, err := tx.store(ctx)
		require.NoError(t, err)
		require.Equal(t, outrun, what)
		r, err := a.Get(ctx, last+1)
		require.NoError(t, err)
		require.Equal(t, "acknowledged", string(r.YAML))
	}
}

// compacted is a client whose etcd forgets the first page before the second one is read.
type compacted struct {
	clientv3.KV
	pages int
}

func (c *compacted) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if c.pages++; c.pages == 2 {
		put, err := c.Put(ctx, "another", "")
		if err == nil {
			_, err = c.Compact(ctx, put.Header.Revision)
		}
		if err != nil {
			return nil, err
		}
	}
	return c.KV.Get(ctx, key, opts...)
}

// wrap has stores opened on a client that is changed.
func wrap(t *testing.T, change func(*clientv3.Client)) {
	connect = func(c clientv3.Config) (*clientv3.Client, error) {
		client, err := clientv3.New(c)
		if err == nil {
			change(client)
		}
		return client, err
	}
	t.Cleanup(func() { connect = clientv3.New })
}

// What is read in pages is read anew where etcd is compacted meanwhile.
func TestEtcdCompactedWhileItIsRead(t *testing.T) {
	at := servertest.StartEtcd(t, 1).URL()
	require.NoError(t, openEtcd(t, at).commit(t.Context(), false, func(r records) (err error) {
		for n := range pageKeys {
			err = errors.Join(err, r.appendEntry(&Entry{Text: fmt.Sprint(n)}))
		}
		return err
	}))
	wrap(t, func(c *clientv3.Client) { c.KV = &compacted{KV: c.KV} })
	list, err := openEtcd(t, at).Audit(t.Context(), "", 0, 0)
	require.NoError(t, err)
	require.Len(t, list, pageKeys)
}

// late is a client whose first transaction that stores something is answered by an error,
// and stored before the next one.
type late struct {
	clientv3.KV
	mu   sync.Mutex
	left int
	held clientv3.Txn
}

type lateTxn struct {
	clientv3.Txn
	of *late
}

func (l *late) Txn(ctx context.Context) clientv3.Txn {
	return &lateTxn{l.KV.Txn(context.WithoutCancel(ctx)), l}
}

func (t *lateTxn) If(c ...clientv3.Cmp) clientv3.Txn  { t.Txn = t.Txn.If(c...); return t }
func (t *lateTxn) Then(o ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Then(o...); return t }
func (t *lateTxn) Else(o ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Else(o...); return t }

func (t *lateTxn) Commit() (*clientv3.TxnResponse, error) {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	if t.of.left > 0 {
		t.of.left--
		t.of.held = t.Txn
		return nil, context.DeadlineExceeded
	}
	if t.of.held != nil {
		if _, err := t.of.held.Commit(); err != nil {
			return nil, err
		}
		t.of.held = nil
	}
	return t.Txn.Commit()
}

// A change that etcd stores after its answer was waited for, and after it said that there is
// no such thing, is made once, and its author learns what is stored.
func TestEtcdStoresLate(t *testing.T) {
	ctx, l := t.Context(), &late{}
	wrap(t, func(c *clientv3.Client) { l.KV, c.KV = c.KV, l })
	e := openEtcd(t, servertest.StartEtcd(t, 1).URL())
	soon(t, "its election is over", e.Leads)
	lose := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.left = 1
	}
	lose()
	list, err := e.Append(ctx, Change{Drafts: []Draft{draft("once")}})
	require.NoError(t, err)
	r, err := e.Get(ctx, 1)
	require.NoError(t, err)
	require.Equal(t, r.Summary, list[0].Summary)
	require.Equal(t, []uint64{1}, numbersOf(t, e, "", 0))
	entries, err := e.Audit(ctx, "", 0, 0)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	lose()
	id, err := e.Record(ctx, Entry{Action: "counters set"})
	require.NoError(t, err)
	entries, err = e.Audit(ctx, "", 0, 0)
	require.NoError(t, err)
	require.Len(t, entries, 2)
	require.Equal(t, id, entries[0].ID)
	lose()
	secret, err := e.Secret(ctx)
	require.NoError(t, err)
	same, err := e.Secret(ctx)
	require.NoError(t, err)
	require.Equal(t, same, secret)
}

// A change that etcd took before it fell silent is waited for, as long as any.
func TestEtcdSilentForAWhile(t *testing.T) {
	cluster, ctx := servertest.StartEtcd(t, 1), t.Context()
	e := openEtcd(t, cluster.URL())
	soon(t, "its election is over", e.Leads)
	cluster[0].Signal(syscall.SIGSTOP)
	done := make(chan error, 1)
	go func() {
		_, err := e.Append(ctx, Change{Drafts: []Draft{draft("once")}})
		done <- err
	}()
	soon(t, "it knows", func() bool { return e.Healthy(ctx) != nil })
	pause(ctx, time.Second)
	cluster[0].Signal(syscall.SIGCONT)
	require.NoError(t, <-done)
	require.Equal(t, []uint64{1}, numbersOf(t, e, "", 0))
}

// Nothing that a proxy has refused is promoted by itself, not even in the same moment.
func TestEtcdRefusedMeanwhile(t *testing.T) {
	e, ctx := openEtcd(t, servertest.StartEtcd(t, 1).URL()), t.Context()
	soon(t, "it leads", e.Leads)
	d := draft("careful")
	d.Rollout = &Rollout{Percent: 10, State: Canary}
	_, err := add(ctx, e, d)
	require.NoError(t, err)
	tx := e.newTx()
	require.NoError(t, tx.make(true, func(r records) error {
		return r.step(&Step{Revision: 1, State: Promoted}, true)
	}))
	require.NoError(t, e.SaveReply(ctx, Reply{Node: "n", Revision: 1}))
	what, err := tx.store(ctx)
	require.NoError(t, err)
	require.Equal(t, outrun, what)
	_, err = e.Append(ctx, Change{Last: 1, ByLeader: true, Steps: []Step{{Revision: 1, State: Promoted}}})
	require.ErrorIs(t, err, ErrConflict)
}
