package store

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// campaign keeps this control plane among those on the store, and has it stand for the one
// that steps rollouts.
func (e *Etcd) campaign(ctx context.Context) {
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
				leads := clientv3.Compare(clientv3.CreateRevision(election.Key()), "=", election.Rev())
				e.setSession(session, &leads)
				<-alive.Done()
			}
		}
		e.setSession(nil, nil)
		leaving, done := context.WithTimeout(context.WithoutCancel(ctx), lookWithin)
		_, _ = e.client.Revoke(leaving, session.Lease()) // it ends by itself
		done()
	}
}

func (e *Etcd) setSession(s *concurrency.Session, leads *clientv3.Cmp) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.session, e.leads = s, leads
	e.wake(&e.change, &e.told) // there is something to tell, or to step
}

// Leads implements Store.
func (e *Etcd) Leads() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.leads != nil
}

// Tell implements Store.
func (e *Etcd) Tell(ctx context.Context, parts [][]byte) (written int, err error) {
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
func (e *Etcd) Told() (proxies map[string][]byte, changed <-chan struct{}) {
	e.mu.RLock()
	changed = e.told
	e.mu.RUnlock()
	proxies = map[string][]byte{}
	for part, value := range e.begin().descend(replicaBucket, nil) {
		if !strings.HasPrefix(string(part), e.id+"/") {
			proxies[string(part)] = value
		}
	}
	return proxies, changed
}
