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
	for ctx.Err() == nil {
		trying, cancel := context.WithCancel(ctx)
		session, err := concurrency.NewSession(e.client, concurrency.WithTTL(lease), concurrency.WithContext(trying))
		if err != nil {
			e.wrote(err) // a full etcd gives no lease
		} else {
			e.setSession(session, nil)
			e.stand(trying, session)
			e.setSession(nil, nil)
			leaving, done := context.WithTimeout(context.WithoutCancel(ctx), lookWithin)
			_, _ = e.client.Revoke(leaving, session.Lease()) // it ends by itself
			done()
		}
		cancel()
		pause(ctx, lookEvery)
	}
}

// stand stands for leader until the session ends.
func (e *Etcd) stand(ctx context.Context, session *concurrency.Session) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, session.Orphan)
	e.ended.Go(func() { <-session.Done(); cancel() })
	election := concurrency.NewElection(session, e.root+leaderBucket)
	for ctx.Err() == nil {
		if election.Campaign(ctx, e.id) == nil {
			leads := clientv3.Compare(clientv3.CreateRevision(election.Key()), "=", election.Rev())
			e.setSession(session, &leads)
			<-ctx.Done()
		}
		pause(ctx, lookEvery)
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
		k := fmt.Sprintf("%s/%d", e.id, i)
		e.mu.RLock()
		session, told := e.session, e.copy.get(replicaBucket, k)
		e.mu.RUnlock()
		if session == nil || told.mod > 0 && bytes.Equal(told.value, part) {
			continue
		}
		put := clientv3.OpPut(e.key(replicaBucket, []byte(k)), string(part), clientv3.WithLease(session.Lease()))
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
	defer e.mu.RUnlock()
	proxies = map[string][]byte{}
	for part, i := range e.copy.buckets[replicaBucket] {
		if !strings.HasPrefix(part, e.id+"/") {
			proxies[part] = i.value
		}
	}
	return proxies, e.told
}
