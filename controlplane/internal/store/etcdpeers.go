package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// campaign keeps this control plane among those on the store, and has it stand for the one
// that steps rollouts.
func (e *etcdCopy) campaign(ctx context.Context) {
	for ; ctx.Err() == nil; pause(ctx, lookEvery) {
		session, err := concurrency.NewSession(e.client, concurrency.WithTTL(lease), concurrency.WithContext(ctx))
		if err != nil {
			e.note(err, true) // a full etcd gives no lease
			continue
		}
		alive, cancel := context.WithCancel(ctx)
		e.ended.Go(func() { <-session.Done(); cancel() })
		e.setSession(session, nil)
		election := concurrency.NewElection(session, e.root+leaderBucket)
		for ; alive.Err() == nil; pause(alive, lookEvery) {
			if election.Campaign(alive, e.id) == nil {
				leader := clientv3.Compare(clientv3.CreateRevision(election.Key()), "=", election.Rev())
				e.setSession(session, &leader)
				<-alive.Done()
			}
		}
		e.setSession(nil, nil)
		leaving, done := context.WithTimeout(context.WithoutCancel(ctx), lookWithin)
		_, _ = e.client.Revoke(leaving, session.Lease()) // it ends by itself
		done()
	}
}

func (e *etcdCopy) setSession(s *concurrency.Session, leader *clientv3.Cmp) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.session, e.leader = s, leader
	e.wake(&e.change, &e.told) // there is something to tell, or to step
}

// Leads implements Store.
func (e *etcdCopy) Leads() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.leader != nil
}

// Tell implements Store.
func (e *etcdCopy) Tell(ctx context.Context, parts [][]byte) (written int, err error) {
	for i, part := range slices.Backward(parts) { // what moves to a part more is there before it leaves its own
		at := recordKey{replicaBucket, fmt.Sprintf("%s/%d", e.id, i)}
		e.mu.RLock()
		session := e.session
		told, before := e.copy.Get(item{recordKey: at})
		e.mu.RUnlock()
		if session == nil || before && bytes.Equal(told.value, part) {
			continue
		}
		put := clientv3.OpPut(e.key(at), string(part), clientv3.WithLease(session.Lease()))
		if _, err := e.transact(ctx, nil, []clientv3.Op{put}, nil); err != nil {
			return written, explain(err)
		}
		written += len(part)
	}
	return written, nil
}

// Told implements Store.
func (e *etcdCopy) Told() (proxies map[string][]byte, changed <-chan struct{}) {
	e.mu.RLock()
	changed = e.told
	e.mu.RUnlock()
	proxies = map[string][]byte{}
	for part, value := range e.newTx().descend(replicaBucket, nil) {
		if !strings.HasPrefix(string(part), e.id+"/") {
			proxies[string(part)] = value
		}
	}
	return proxies, changed
}

// look finds out whether etcd is reached, by a reading that takes most of its members, and
// whether it takes writes again.
func (e *etcdCopy) look(ctx context.Context) {
	at := recordKey{metaBucket, string(probeKey)}
	probe := clientv3.OpPut(e.key(at), string(seal(at.bucket, probeKey, nil)))
	for ; ctx.Err() == nil; pause(ctx, lookEvery) {
		e.mu.RLock()
		refused := e.refused
		e.mu.RUnlock()
		if refused {
			_, _ = e.transact(ctx, nil, []clientv3.Op{probe}, nil) // it notes what becomes of it
			continue
		}
		trying, cancel := context.WithTimeout(ctx, lookWithin)
		_, err := e.client.Get(trying, e.key(at))
		cancel()
		e.note(err, false)
	}
}

func pause(ctx context.Context, long time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(long):
	}
}

// note keeps why nothing can be changed, from what became of a call to etcd. wrote says that the
// call tells whether etcd takes writes. The first row that fits counts:
//
//	a read, after etcd has refused a write        tells nothing: a full etcd still answers, and
//	                                              a user may be one that only reads
//	etcd has taken a write, or answers a read     nothing is lost
//	etcd has refused a write: it is full, or the  refused: it is reached, and nothing can be changed
//	user may not write
//	another error, soon after etcd was reached    tells nothing: members may be electing a leader
//	another error, lookWithin later               lost
//
// Where it begins or ends that nothing can be changed, note wakes those that wait for changes: what
// was withheld may be done now.
func (e *etcdCopy) note(err error, wrote bool) {
	now := time.Now()
	isRefusal := wrote && refusesWrite(err)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil || isRefusal {
		e.reached = now
	}
	readsAfterRefusal := e.refused && !wrote
	mayBeElecting := err != nil && !isRefusal && now.Sub(e.reached) < lookWithin
	if readsAfterRefusal || mayBeElecting {
		return
	}
	if (err == nil) != (e.lost == nil) {
		e.since = e.reached
		e.wake(&e.change)
	}
	e.lost = err
	e.refused = isRefusal || e.refused && err != nil // only a write that is taken ends it
}

// refusesWrite says whether etcd answered, and took nothing: it is full, or the user may not write.
func refusesWrite(err error) bool {
	code := codeOf(err)
	return code == codes.ResourceExhausted || code == codes.PermissionDenied
}

// Healthy implements Store.
func (e *etcdCopy) Healthy(context.Context) error {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.lost == nil {
		return nil
	}
	return fmt.Errorf("%w since %s: proxies keep what they have, and nothing can be changed here: %w",
		ErrCutOff, e.since.UTC().Format("15:04:05Z"), explain(e.lost))
}

func codeOf(err error) codes.Code {
	var refused rpctypes.EtcdError
	if errors.As(err, &refused) {
		return refused.Code()
	}
	return status.Code(err)
}

// explain says what an error of the client means, without what was sent.
func explain(err error) error {
	switch codeOf(err) {
	case codes.Unauthenticated, codes.InvalidArgument:
		if strings.Contains(err.Error(), "authentication failed") || strings.Contains(err.Error(), "user name") {
			return errors.New("user or password is wrong, or etcd wants one: " +
				"name the user in the URL, and ?password_file=FILE behind it")
		}
	case codes.PermissionDenied:
		return errors.New("etcd's user may not read and write all keys under the store's prefix")
	case codes.ResourceExhausted:
		return fmt.Errorf("etcd takes no more: %w", err)
	default: // as it is
	}
	if errors.Is(err, context.DeadlineExceeded) || codeOf(err) == codes.DeadlineExceeded {
		return errors.New("etcd does not answer, or too few of its members do, or TLS is missing on one side")
	}
	return err
}
