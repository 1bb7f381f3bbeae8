package store

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/storeurl"
)

const (
	// lookEvery and lookWithin say how soon a store knows that it is cut off: later than
	// members take to elect a leader.
	lookEvery, lookWithin = time.Second, 3 * time.Second
	// commitWithin bounds a change, and tryWithin each attempt: longer than an election, too.
	commitWithin, tryWithin = 10 * time.Second, time.Second
	// lease is after how many seconds of silence others take a control plane for gone.
	lease = 10
	// pageKeys is how many keys one answer has: each may have 1.5 MiB, and gRPC takes 2 GiB.
	// maxLoads is how often all pages are read where etcd forgets their moment meanwhile.
	pageKeys, maxLoads = 1000, 5
)

// Etcd is the store of several control planes. Each has a copy of all records, compressed,
// that it keeps up to date by watching; reading takes no etcd. A change reads the copy,
// and is one transaction that compares what it read.
type Etcd struct {
	store
	*etcdCopy
}

// etcdCopy is the backend of an Etcd.
type etcdCopy struct {
	client *clientv3.Client
	root   string // begins every key
	id     string // of this control plane
	stop   context.CancelFunc
	ended  sync.WaitGroup

	mu       sync.RWMutex
	copy     *mirror
	revision int64         // of etcd's, as of which the copy is
	change   chan struct{} // closed and replaced when revisions or their marks change
	told     chan struct{} // the same, when another control plane tells of its proxies
	reached  time.Time     // when etcd was, last
	lost     error         // why nothing can be changed here, nil: it can
	since    time.Time     // it was so
	refused  bool          // it can be reached, and took nothing when something was written last
	session  *concurrency.Session
	leader   *clientv3.Cmp // holds as long as this control plane leads, nil if it does not
}

var _ Store = (*Etcd)(nil)

// connect makes the client; tests make one that loses answers.
var connect = clientv3.New

// OpenEtcd opens the store at a URL.
func OpenEtcd(ctx context.Context, at string, log *slog.Logger) (*Etcd, error) {
	config, root, err := address(at)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	setTimes(&config)
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	e := &etcdCopy{
		root: root, id: rand.Text(), stop: stop,
		change: make(chan struct{}), told: make(chan struct{}), reached: time.Now(),
	}
	if err := e.open(ctx, running, config, log); err != nil {
		err = fmt.Errorf("open the store on etcd at %s: %w", strings.Join(config.Endpoints, ","), explain(err))
		return nil, errors.Join(err, e.Close())
	}
	for _, run := range []func(context.Context){e.look, e.campaign} {
		e.ended.Go(func() { run(running) })
	}
	return &Etcd{store{e}, e}, nil
}

// setTimes has the client find out soon that a member is gone, and that it is back.
func setTimes(c *clientv3.Config) {
	c.Logger = zap.NewNop() // it would log addresses with users
	c.DialTimeout = commitWithin / 2
	c.DialKeepAliveTime = lookWithin
	c.DialKeepAliveTimeout = lookWithin
	// By default gRPC tries a member that was gone for long after two minutes, and others
	// may be gone by then.
	c.DialOptions = append(c.DialOptions, grpc.WithConnectParams(grpc.ConnectParams{
		Backoff: backoff.Config{
			BaseDelay: lookEvery / 10, Multiplier: 2, Jitter: 0.2, MaxDelay: lookEvery / 2,
		},
		MinConnectTimeout: lookWithin,
	}))
}

// open reads everything, and begins to follow. What goes on until Close has another context.
func (e *etcdCopy) open(ctx, running context.Context, config clientv3.Config, log *slog.Logger) (err error) {
	e.client, err = connect(config)
	if err != nil {
		return err
	}
	opening, cancel := context.WithTimeout(ctx, commitWithin)
	defer cancel()
	if err := e.load(opening); err != nil {
		return err
	}
	e.ended.Go(func() { e.follow(running, log) })
	return e.commit(opening, false, records.setFormat)
}

// setFormat notes the format in an empty store, and else checks it.
func (r records) setFormat() error {
	if r.value(metaBucket, formatKey) == nil {
		return r.set(metaBucket, formatKey, []byte(format))
	}
	return r.checkFormat()
}

// Close implements Store. Others learn at once that this control plane is gone.
func (e *etcdCopy) Close() error {
	e.stop()
	e.ended.Wait()
	if e.client == nil {
		return nil
	}
	if err := e.client.Close(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// load reads everything, as of one moment.
func (e *etcdCopy) load(ctx context.Context) (err error) {
	for range maxLoads {
		err = e.loadOnce(ctx)
		if !errors.Is(err, rpctypes.ErrCompacted) {
			return err
		}
	}
	return err
}

func (e *etcdCopy) loadOnce(ctx context.Context) error {
	all, revision := newMirror(), int64(0) // 0 is the newest
	for from, more := e.root, true; more; {
		page, err := e.client.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(e.root)),
			clientv3.WithLimit(pageKeys), clientv3.WithRev(revision))
		if err != nil {
			return err
		}
		for _, kv := range page.Kvs {
			all.Set(item{e.split(kv.Key), kv.Value, kv.ModRevision})
			from = string(kv.Key) + "\x00"
		}
		revision, more = cmp.Or(revision, page.Header.Revision), page.More
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.copy, e.revision = all, revision
	e.wake(&e.change, &e.told)
	return nil
}

// follow keeps the copy up to date.
func (e *etcdCopy) follow(ctx context.Context, log *slog.Logger) {
	for ; ctx.Err() == nil; pause(ctx, lookEvery/5) {
		watching, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
		e.mu.RLock()
		next := e.revision + 1
		e.mu.RUnlock()
		for got := range e.client.Watch(watching, e.root, clientv3.WithPrefix(), clientv3.WithRev(next)) {
			if got.CompactRevision > 0 { // it was cut off for longer than etcd remembers
				if err := e.load(ctx); err != nil {
					log.Warn("read the store anew", "error", explain(err))
				}
			}
			if got.Err() != nil {
				break
			}
			e.apply(got.Events, got.Header.Revision)
		}
		cancel()
	}
}

func (e *etcdCopy) apply(events []*clientv3.Event, revision int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	woken := []*chan struct{}{}
	for _, event := range events {
		at := e.split(event.Kv.Key)
		if event.Type == clientv3.EventTypeDelete {
			e.copy.Delete(item{recordKey: at})
		} else {
			e.copy.Set(item{at, event.Kv.Value, event.Kv.ModRevision})
		}
		switch at.bucket {
		case revisionsBucket, ackedBucket, nackedBucket:
			woken = append(woken, &e.change)
		case replicaBucket:
			woken = append(woken, &e.told)
		}
	}
	e.revision = max(e.revision, revision)
	e.wake(woken...)
}

// wake closes and replaces channels; twice does no harm. The caller holds mu.
func (e *etcdCopy) wake(channels ...*chan struct{}) {
	for _, c := range channels {
		close(*c)
		*c = make(chan struct{})
	}
}

// await waits until the copy is as new as a revision of etcd's.
func (e *etcdCopy) await(ctx context.Context, revision int64) {
	for ; ctx.Err() == nil; pause(ctx, time.Millisecond) {
		e.mu.RLock()
		isThere := e.revision >= revision
		e.mu.RUnlock()
		if isThere {
			return
		}
	}
}

// Appended implements Store.
func (e *etcdCopy) Appended() <-chan struct{} {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.change
}

func (e *etcdCopy) appended() {} // follow tells of each change, whoever made it

// view reads a copy.
func (e *etcdCopy) view(do func(records) error) error { return do(records{e.newTx()}) }

// Backup implements Store.
func (e *Etcd) Backup(ctx context.Context) (io.ReadCloser, int64, error) {
	dir, err := os.MkdirTemp("", "sluice-backup-")
	if err != nil {
		return nil, 0, fmt.Errorf("back up: %w", err)
	}
	defer os.RemoveAll(dir)
	b, err := Open(dir)
	if err != nil {
		return nil, 0, fmt.Errorf("back up: %w", err)
	}
	defer b.Close()
	if _, err := Copy(ctx, e, b); err != nil {
		return nil, 0, err
	}
	return b.Backup(ctx)
}

var urlForm = storeurl.Form{
	Usage: "a store's URL is etcd://HOST:PORT,HOST:PORT,… or, for TLS, etcds://…, with USER@ before the hosts, " +
		"/PREFIX of the keys and ?ca=FILE&cert=FILE&key=FILE&server_name=NAME&password_file=FILE " +
		"behind them where need be",
	Schemes:    map[string]storeurl.Scheme{"etcd": {}, "etcds": {TLS: true}},
	Parameters: []string{"password_file"},
}

// IsURL says whether a store is named by a URL, and not by a directory.
func IsURL(at string) bool { return strings.Contains(at, "://") }

// address reads a store's URL: what the client is started with, and what all keys begin
// with. Its errors hold nothing of what stands before the hosts.
func address(at string) (c clientv3.Config, root string, err error) {
	u, err := storeurl.Parse(at, &urlForm)
	if err != nil {
		return c, "", err
	}
	if u.Password != "" {
		return c, "", errors.New("a store's URL holds no password, since others can read it: " +
			"name a file with ?password_file=FILE")
	}
	c.Username = u.User
	if u.Query.Has("password_file") {
		c.Password, err = storeurl.Secret(u.Query.Get("password_file"))
		if err != nil {
			return c, "", err
		}
	}
	if (c.Username == "") != (c.Password == "") {
		return c, "", errors.New("etcd takes a user and a password: etcd://USER@HOST:PORT/?password_file=FILE")
	}
	c.TLS, err = u.Config()
	if err != nil {
		return c, "", err
	}
	scheme := "http://"
	if u.TLS {
		scheme = "https://"
	}
	for _, host := range u.Hosts {
		c.Endpoints = append(c.Endpoints, scheme+host)
	}
	return c, cmp.Or(u.Path, "sluice") + "/", nil
}
