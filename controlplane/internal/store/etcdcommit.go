package store

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
)

// sign is a key that has this value only if a transaction is stored.
type sign struct {
	bucket, k string
	value     []byte
}

// shows says whether a copy has the sign.
func (s sign) shows(in mirror) bool {
	return s.bucket != "" && bytes.Equal(in.get(s.bucket, s.k).value, s.value)
}

// write tries a change until nobody else's comes between, and etcd has said what became
// of it.
func (e *Etcd) write(ctx context.Context, leading bool, change func(records) error) error {
	ctx, cancel := context.WithTimeout(ctx, commitWithin)
	defer cancel()
	var doubts []sign // of tries that etcd did not answer: it may store one later
	for {
		if err := e.Healthy(ctx); err != nil {
			if len(doubts) > 0 {
				err = fmt.Errorf("%s: %w", standing(doubts), err)
			}
			return err
		}
		t, err := e.try(leading, doubts, change)
		if t == nil || err != nil {
			return err
		}
		done, err := t.commit(ctx, &doubts)
		switch code := codeOf(err); {
		case done:
			return nil
		case err == nil, ctx.Err() == nil && (code == codes.Unavailable || errors.Is(err, context.DeadlineExceeded)):
		case len(doubts) > 0, ctx.Err() != nil, code == codes.Canceled, code == codes.DeadlineExceeded,
			code == codes.ResourceExhausted, code == codes.PermissionDenied:
			return fmt.Errorf("%w: %s: %w", ErrCutOff, standing(doubts), explain(err))
		default:
			return explain(err)
		}
		pause(ctx, 10*time.Millisecond)
	}
}

// standing says what is known of a change that was given up.
func standing(doubts []sign) string {
	if len(doubts) > 0 {
		return "whether the change is stored is not known"
	}
	return "nothing is stored"
}

// try makes a change of the copy as it is now. It returns no transaction where the copy has
// what an earlier try stored.
func (e *Etcd) try(leading bool, earlier []sign, change func(records) error) (*etcdTx, error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if slices.ContainsFunc(earlier, func(s sign) bool { return s.shows(e.copy) }) {
		return nil, nil //nolint:nilnil // there is nothing left to commit
	}
	t := e.begin()
	if err := change(records{t}); err != nil {
		return nil, err
	}
	if leading {
		if t.leader = e.leads; t.leader == nil {
			return nil, fmt.Errorf("%w: another control plane steps rollouts", ErrConflict)
		}
	}
	return t, nil
}

// transact gives a transaction its time: a member waits seconds for a leader that has died
// meanwhile.
func (e *Etcd) transact(ctx context.Context, compared []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	trying, cancel := context.WithTimeout(ctx, tryWithin)
	defer cancel()
	answer, err := e.client.Txn(trying).If(compared...).Then(then...).Else(otherwise...).Commit()
	if err != nil || answer.Succeeded {
		e.wrote(err)
	}
	return answer, err
}

// request is a transaction as etcd gets it.
type request struct {
	compared []clientv3.Cmp
	wanted   []clientv3.Op // read what was compared
	ops      []clientv3.Op
	chunks   []clientv3.Op // written before
	lease    clientv3.LeaseID
	inline   int // bytes of texts in ops
	sign     sign
}

// commit makes a transaction durable. done is false where somebody else's came between, and,
// with an error, where it is not stored. Where that is not known, doubts gets its sign.
func (t *etcdTx) commit(ctx context.Context, doubts *[]sign) (done bool, err error) {
	q, err := t.request(ctx)
	if err != nil || len(q.ops) == 0 {
		return err == nil, err
	}
	for _, chunk := range q.chunks {
		if _, err := t.transact(ctx, nil, []clientv3.Op{chunk}, nil); err != nil {
			return false, err
		}
	}
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	answer, err := t.transact(ctx, q.compared, nest(q.ops), q.wanted)
	switch code := codeOf(err); {
	case err == nil && answer.Succeeded:
		t.await(ctx, answer.Header.Revision)
		return true, nil
	case err == nil:
		for _, r := range answer.Responses {
			for _, kv := range r.GetResponseRange().Kvs {
				t.await(ctx, kv.ModRevision)
			}
		}
		return false, nil
	case code == codes.InvalidArgument || code == codes.PermissionDenied:
		return false, err
	}
	before := *doubts
	*doubts = append(*doubts, q.sign)
	for q.sign.bucket != "" && ctx.Err() == nil { // whoever answers now knows of all that was stored before
		asking, cancel := context.WithTimeout(ctx, tryWithin)
		got, lost := t.client.Get(asking, t.key(q.sign.bucket, []byte(q.sign.k)))
		cancel()
		switch {
		case lost != nil:
			pause(ctx, lookEvery/10)
			continue
		case len(got.Kvs) == 1 && bytes.Equal(got.Kvs[0].Value, q.sign.value):
			t.await(ctx, got.Kvs[0].ModRevision)
			return true, nil
		case codeOf(err) == codes.ResourceExhausted: // an answer, which also one that was stored can get
			*doubts = before
			return false, err
		}
		return false, nil
	}
	return false, err
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

// request makes the request. What it compares is each number that was given and each value
// that another one replaces: what is new under a number of its own has no rival.
func (t *etcdTx) request(ctx context.Context) (q request, err error) {
	if t.leader != nil {
		q.compared = append(q.compared, *t.leader)
	}
	for at, old := range t.fixed {
		q.compare(t.key(at.bucket, []byte(at.k)), old)
	}
	for _, bucket := range slices.Sorted(maps.Keys(t.written)) {
		for _, k := range slices.Sorted(maps.Keys(t.written[bucket])) {
			name, value, old := t.key(bucket, []byte(k)), t.written[bucket][k], t.before[recordKey{bucket, k}]
			if value == nil {
				q.remove(t, bucket, name, k, old)
				continue
			}
			if bucket != sequenceBucket && (old.mod > 0 || !isNumbered(bucket)) {
				q.compare(name, old)
			}
			if isText(bucket) {
				if value, err = q.pack(ctx, t, bucket, k, value); err != nil {
					return q, err
				}
			} else if bucket == auditBucket || q.sign.bucket != auditBucket && len(value) > len(q.sign.value) {
				q.sign = sign{bucket, k, value} // nobody changes an entry but who made it
			}
			q.ops = append(q.ops, clientv3.OpPut(name, string(value)))
		}
	}
	return q, nil
}

func (q *request) compare(name string, old item) {
	q.compared = append(q.compared, clientv3.Compare(clientv3.ModRevision(name), "=", old.mod))
	q.wanted = append(q.wanted, clientv3.OpGet(name))
}

func (q *request) remove(t *etcdTx, bucket, name, k string, old item) {
	if old.mod == 0 {
		return
	}
	q.ops = append(q.ops, clientv3.OpDelete(name))
	if chunk := chunkOf(bucket, k, old.value); chunk != "" {
		q.ops = append(q.ops, clientv3.OpDelete(t.key(chunkBucket, []byte(chunk))))
	}
}

// pack compresses a text, and returns what is put in its place.
func (q *request) pack(ctx context.Context, t *etcdTx, bucket, k string, text []byte) ([]byte, error) {
	var packed bytes.Buffer
	packed.WriteByte(0)
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(text) // a buffer takes all
	_ = w.Close()
	if packed.Len() <= maxInline && q.inline+packed.Len() <= maxInlines {
		q.inline += packed.Len()
		return packed.Bytes(), nil
	}
	if q.lease == 0 {
		trying, cancel := context.WithTimeout(ctx, tryWithin)
		granted, err := t.client.Grant(trying, chunkLease)
		cancel()
		if err != nil {
			t.wrote(err)
			return nil, err
		}
		q.lease = granted.ID
	}
	place := fmt.Appendf([]byte{1}, "%x 1", q.lease)
	name := t.key(chunkBucket, []byte(chunkOf(bucket, k, place)))
	q.chunks = append(q.chunks, clientv3.OpPut(name, string(packed.Bytes()[1:]), clientv3.WithLease(q.lease)))
	q.ops = append(q.ops, clientv3.OpPut(name, "", clientv3.WithIgnoreValue())) // without the lease
	return place, nil
}
