package store

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
)

// request is a transaction as etcd gets it.
type request struct {
	compared []clientv3.Cmp
	wanted   []clientv3.Op // read what was compared
	ops      []clientv3.Op
	chunks   []clientv3.Op // written before
	lease    clientv3.LeaseID
	inline   int    // bytes of texts in ops
	sign     string // a key that has this value only if the transaction is stored
	value    []byte
}

// commit makes a transaction durable. done is false where somebody else's came between,
// and, with an error, where it is not known.
func (t *etcdTx) commit(ctx context.Context) (done bool, err error) {
	// A member waits seconds for a leader that has died meanwhile.
	trying, cancel := context.WithTimeout(ctx, tryWithin)
	defer cancel()
	q, err := t.request(trying)
	if err != nil {
		return false, err
	}
	if len(q.ops) == 0 {
		return true, nil
	}
	for part := range slices.Chunk(q.chunks, 2) {
		if _, err := t.client.Txn(trying).Then(part...).Commit(); err != nil {
			return false, err
		}
	}
	answer, err := t.client.Txn(trying).If(q.compared...).Then(nest(q.ops)...).Else(q.wanted...).Commit()
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
	case q.sign == "" || code == codes.InvalidArgument || code == codes.ResourceExhausted || code == codes.PermissionDenied:
		return false, err
	}
	for ctx.Err() == nil { // whoever answers now knows of all that was stored before
		asking, cancel := context.WithTimeout(ctx, tryWithin)
		got, lost := t.client.Get(asking, q.sign)
		cancel()
		if lost == nil && len(got.Kvs) == 1 && bytes.Equal(got.Kvs[0].Value, q.value) {
			t.await(ctx, got.Kvs[0].ModRevision)
			return true, nil
		}
		if lost == nil {
			return false, nil
		}
		pause(ctx, lookEvery/10)
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
	for bucket := range t.given {
		q.compare(t.key(sequenceBucket, []byte(bucket)), t.copy.get(sequenceBucket, bucket))
	}
	for _, bucket := range slices.Sorted(maps.Keys(t.written)) {
		for _, k := range slices.Sorted(maps.Keys(t.written[bucket])) {
			name, value, old := t.key(bucket, []byte(k)), t.written[bucket][k], t.copy.get(bucket, k)
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
			} else if len(value) > len(q.value) {
				q.sign, q.value = name, value
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
	if chunks, parts := chunksOf(bucket, k, old.value); parts > 0 {
		q.ops = append(q.ops, clientv3.OpDelete(t.key(chunkBucket, []byte(chunks)), clientv3.WithPrefix()))
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
		granted, err := t.client.Grant(ctx, chunkLease)
		if err != nil {
			return nil, err
		}
		q.lease = granted.ID
	}
	parts := slices.Collect(slices.Chunk(packed.Bytes()[1:], maxChunk))
	place := fmt.Appendf([]byte{1}, "%x %d", q.lease, len(parts))
	chunks, _ := chunksOf(bucket, k, place)
	for i, part := range parts {
		name := t.key(chunkBucket, fmt.Appendf(nil, "%s%d", chunks, i))
		q.chunks = append(q.chunks, clientv3.OpPut(name, string(part), clientv3.WithLease(q.lease)))
		q.ops = append(q.ops, clientv3.OpPut(name, "", clientv3.WithIgnoreValue())) // without the lease
	}
	return place, nil
}

// batched is a change that waits for its transaction.
type batched struct {
	change func(records) error
	done   chan error
}

// commitBatches commits changes that came while those before were under way.
func (e *Etcd) commitBatches(ctx context.Context) {
	for {
		var list []batched
		select {
		case <-ctx.Done():
			return
		case first := <-e.queue:
			list = append(list, first)
		}
		for more := true; more && len(list) < maxBatch; {
			select {
			case next := <-e.queue:
				list = append(list, next)
			default:
				more = false
			}
		}
		err := e.commit(ctx, "commit", alone, func(r records) (err error) {
			for _, b := range list {
				err = errors.Join(err, b.change(r))
			}
			return err
		})
		for _, b := range list {
			b.done <- err
		}
	}
}
