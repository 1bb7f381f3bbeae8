package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
)

const (
	maxOps     = 64 // etcd takes 128 on each level, less those of the level above
	chunkLease = 60 // seconds
)

// commit tries a change until nobody else's comes between, and etcd has said what became
// of it.
func (e *Etcd) commit(ctx context.Context, leading bool, change func(records) error) error {
	ctx, cancel := context.WithTimeout(ctx, commitWithin)
	defer cancel()
	known, tried := "nothing is stored", []item{} // what is in the store where an attempt is that etcd did not answer
	for ; ; pause(ctx, 10*time.Millisecond) {
		switch err := e.Healthy(ctx); {
		case err == nil:
		case len(tried) == 0:
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %w", known, err)
		default:
			continue // once etcd answers again, it tells
		}
		t := e.begin()
		if slices.ContainsFunc(tried, t.has) {
			return nil
		}
		if err := t.make(leading, change); err != nil {
			return err
		}
		done, sign, err := t.commit(ctx)
		if sign != nil {
			known, tried = "whether the change is stored is not known", append(tried, *sign)
		}
		switch code := codeOf(err); {
		case done:
			return nil
		case err == nil, ctx.Err() == nil && (code == codes.Unavailable || errors.Is(err, context.DeadlineExceeded)):
		case len(tried) > 0, ctx.Err() != nil, code == codes.Canceled, code == codes.DeadlineExceeded,
			code == codes.ResourceExhausted, code == codes.PermissionDenied:
			return fmt.Errorf("%w: %s: %w", ErrCutOff, known, explain(err))
		default:
			return explain(err)
		}
	}
}

// has says whether the store has what an earlier attempt stored.
func (t *etcdTx) has(sign item) bool {
	found, _ := t.Get(sign)
	return sign.value != nil && bytes.Equal(found.value, sign.value)
}

// make makes a change. With leading it is one only while this control plane leads.
func (t *etcdTx) make(leading bool, change func(records) error) error {
	if err := change(records{t}); err != nil || !leading {
		return err
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.leader = t.leads; t.leader == nil {
		return fmt.Errorf("%w: another control plane steps rollouts", ErrConflict)
	}
	return nil
}

// transact gives a transaction its time: a member waits seconds for a leader that has died
// meanwhile.
func (e *Etcd) transact(ctx context.Context, compared []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	trying, cancel := context.WithTimeout(ctx, tryWithin)
	defer cancel()
	answer, err := e.client.Txn(trying).If(compared...).Then(then...).Else(otherwise...).Commit()
	e.note(err, err != nil || answer.Succeeded)
	return answer, err
}

// commit makes a transaction durable. done is false where somebody else's came between, and,
// with an error, where it is not stored. Where that is not known, the sign is what the store
// has if it is: a later attempt compares what it replaces, so only one of them is stored.
func (t *etcdTx) commit(ctx context.Context) (done bool, sign *item, err error) {
	ops, chunks, sign := t.ops()
	if len(ops) == 0 {
		return true, nil, nil
	}
	if err := t.putChunks(ctx, chunks); err != nil {
		return false, nil, err
	}
	var compared []clientv3.Cmp
	var otherwise []clientv3.Op
	if t.leader != nil {
		compared = append(compared, *t.leader)
	}
	for at, mod := range t.read {
		compared = append(compared, clientv3.Compare(clientv3.ModRevision(t.key(at)), "=", mod))
		otherwise = append(otherwise, clientv3.OpGet(t.key(at)))
	}
	answer, err := t.transact(ctx, compared, nest(ops), otherwise)
	if err == nil {
		if answer.Succeeded {
			t.await(ctx, answer.Header.Revision)
		}
		for _, r := range answer.Responses {
			for _, kv := range r.GetResponseRange().GetKvs() {
				t.await(ctx, kv.ModRevision)
			}
		}
		return answer.Succeeded, nil, nil
	}
	switch code := codeOf(err); {
	case code == codes.InvalidArgument || code == codes.PermissionDenied:
		return false, nil, err
	case code == codes.ResourceExhausted && sign.value != nil: // which also one that was stored can get
		if got, lost := t.client.Get(ctx, t.key(sign.recordKey)); lost == nil {
			if len(got.Kvs) == 0 || !bytes.Equal(got.Kvs[0].Value, sign.value) {
				return false, nil, err
			}
			t.await(ctx, got.Kvs[0].ModRevision)
			return true, nil, nil
		}
	}
	return false, sign, err
}

// putChunks writes chunks under a lease of their own.
func (t *etcdTx) putChunks(ctx context.Context, chunks []item) error {
	if len(chunks) == 0 {
		return ctx.Err()
	}
	trying, cancel := context.WithTimeout(ctx, tryWithin)
	defer cancel()
	granted, err := t.client.Grant(trying, chunkLease)
	if err != nil {
		t.note(err, true)
		return err
	}
	for _, c := range chunks {
		put := clientv3.OpPut(t.key(c.recordKey), string(c.value), clientv3.WithLease(granted.ID))
		if _, err := t.transact(ctx, nil, []clientv3.Op{put}, nil); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// ops are what the transaction writes, the chunks that come before, and its sign.
func (t *etcdTx) ops() (ops []clientv3.Op, chunks []item, sign *item) {
	sign = &item{}
	for at := range t.written {
		i, isThere := t.Get(item{recordKey: at})
		name := t.key(at)
		switch {
		case !isThere:
			ops = append(ops, clientv3.OpDelete(name))
			continue
		case at.bucket == chunkBucket:
			chunks = append(chunks, i)
			ops = append(ops, clientv3.OpPut(name, "", clientv3.WithIgnoreValue())) // without the lease
			continue
		// Nobody changes an entry but who made it.
		case at.bucket == auditBucket || !isText(at.bucket) && sign.bucket != auditBucket && len(i.value) > len(sign.value):
			sign = &i
		}
		ops = append(ops, clientv3.OpPut(name, string(i.value)))
	}
	return ops, chunks, sign
}

// nest makes a transaction of more operations than etcd takes at once one of several.
func nest(ops []clientv3.Op) []clientv3.Op {
	if len(ops) <= maxOps {
		return ops
	}
	var list []clientv3.Op
	for part := range slices.Chunk(ops, maxOps) {
		list = append(list, clientv3.OpTxn(nil, part, nil))
	}
	return list
}
