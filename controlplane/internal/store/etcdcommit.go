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

// commit makes a change durable: it attempts it until no other change comes between, and
// until etcd has said what became of it.
func (e *etcdCopy) commit(ctx context.Context, byLeader bool, change func(records) error) error {
	ctx, cancel := context.WithTimeout(ctx, commitWithin)
	defer cancel()
	a := attempts{etcd: e, byLeader: byLeader, change: change}
	for {
		err := a.next(ctx)
		if !errors.Is(err, errAgain) {
			return err
		}
		pause(ctx, 10*time.Millisecond)
	}
}

// attempts are those to make one change durable. Each reads the copy anew, and etcd stores it only if what it
// read still holds. For example:
//
//	attempt 1  outrun: another change came between               errAgain
//	attempt 2  unknown: etcd did not answer, sign A is kept       errAgain
//	attempt 3  etcd is out of reach; it may have stored A         errAgain
//	attempt 4  the copy has A: attempt 2 was stored               done
//	           or it has not: the change is made again            stored, done
//
// Where the time is over first, whether the change is stored is not known, and the error says so.
type attempts struct {
	etcd       *etcdCopy
	byLeader   bool
	change     func(records) error
	unanswered []item // the signs of those that etcd did not answer: the store has one if it took it
}

// errAgain says that another attempt may succeed.
var errAgain = errors.New("try again")

// next makes an attempt. The error is errAgain, or why the change is not made.
func (a *attempts) next(ctx context.Context) error {
	if err := a.etcd.Healthy(ctx); err != nil {
		return a.waitFor(ctx, err)
	}
	t := a.etcd.newTx()
	if slices.ContainsFunc(a.unanswered, t.has) {
		return nil
	}
	if err := t.make(a.byLeader, a.change); err != nil {
		return err
	}
	became, err := t.store(ctx)
	switch became {
	case stored:
		return nil
	case outrun:
		return errAgain
	case unknown:
		a.unanswered = append(a.unanswered, t.sign())
	case notStored: // the error says why
	}
	return a.judge(ctx, err)
}

// waitFor waits for etcd where an earlier attempt may have been stored: once etcd answers
// again, the store tells.
func (a *attempts) waitFor(ctx context.Context, cutOff error) error {
	switch {
	case len(a.unanswered) == 0:
		return cutOff
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", a.outcome(), cutOff)
	}
	return errAgain
}

// judge says what an error of etcd's means for the change.
func (a *attempts) judge(ctx context.Context, err error) error {
	code := codeOf(err)
	passes := code == codes.Unavailable || errors.Is(err, context.DeadlineExceeded) // a member is gone, another answers
	if passes && ctx.Err() == nil {
		return errAgain
	}
	switch code {
	case codes.Canceled, codes.DeadlineExceeded, codes.ResourceExhausted, codes.PermissionDenied:
		return fmt.Errorf("%w: %s: %w", ErrCutOff, a.outcome(), explain(err))
	default: // that etcd does not take such a change
	}
	if len(a.unanswered) > 0 || ctx.Err() != nil {
		return fmt.Errorf("%w: %s: %w", ErrCutOff, a.outcome(), explain(err))
	}
	return explain(err)
}

// outcome says what is known of the change.
func (a *attempts) outcome() string {
	if len(a.unanswered) > 0 {
		return "whether the change is stored is not known"
	}
	return "nothing is stored"
}

// has says whether the store has what an earlier attempt stored.
func (t *etcdTx) has(sign item) bool {
	found, _ := t.copy.Get(sign)
	return sign.value != nil && bytes.Equal(found.value, sign.value)
}

// make makes a change. With byLeader it is one only while this control plane leads.
func (t *etcdTx) make(byLeader bool, change func(records) error) error {
	if err := change(records{t}); err != nil || !byLeader {
		return err
	}
	t.etcd.mu.RLock()
	defer t.etcd.mu.RUnlock()
	t.leader = t.etcd.leader
	if t.leader == nil {
		return fmt.Errorf("%w: another control plane steps rollouts", ErrConflict)
	}
	return nil
}

// became is what became of a transaction.
type became int

const (
	stored    became = iota // it is durable, and the copy has it
	outrun                  // somebody else changed what it read, so nothing of it is stored
	notStored               // etcd refused it
	unknown                 // etcd did not answer; the store has its sign if it took it
)

// store makes a transaction durable. It compares what it read: so of several attempts at a
// change only one is stored. The error says why it is not stored, or why that is unknown.
func (t *etcdTx) store(ctx context.Context) (became, error) {
	ops, chunks := t.ops()
	if len(ops) == 0 {
		return stored, nil
	}
	if err := t.putChunks(ctx, chunks); err != nil {
		return notStored, err
	}
	compared, otherwise := t.comparisons()
	answer, err := t.etcd.transact(ctx, compared, nest(ops), otherwise)
	if err != nil {
		return t.afterError(ctx, err)
	}
	if answer.Succeeded {
		t.etcd.await(ctx, answer.Header.Revision)
		return stored, nil
	}
	for _, r := range answer.Responses {
		for _, kv := range r.GetResponseRange().GetKvs() {
			t.etcd.await(ctx, kv.ModRevision) // else the next attempt reads what this one read
		}
	}
	return outrun, nil
}

// afterError says what became of a transaction that etcd answered with an error.
func (t *etcdTx) afterError(ctx context.Context, err error) (became, error) {
	switch codeOf(err) {
	case codes.InvalidArgument, codes.PermissionDenied:
		return notStored, err
	case codes.ResourceExhausted: // which also one that was stored can get
		return t.lookUp(ctx, err)
	default:
		return unknown, err
	}
}

// lookUp asks etcd whether it has a transaction's sign.
func (t *etcdTx) lookUp(ctx context.Context, why error) (became, error) {
	sign := t.sign()
	if sign.value == nil {
		return unknown, why
	}
	got, err := t.etcd.client.Get(ctx, t.etcd.key(sign.recordKey))
	switch {
	case err != nil:
		return unknown, why
	case len(got.Kvs) == 0 || !bytes.Equal(got.Kvs[0].Value, sign.value):
		return notStored, why
	}
	t.etcd.await(ctx, got.Kvs[0].ModRevision)
	return stored, nil
}

// transact gives a transaction its time: a member waits seconds for a leader that has died
// meanwhile.
func (e *etcdCopy) transact(
	ctx context.Context, compared []clientv3.Cmp, then, otherwise []clientv3.Op,
) (*clientv3.TxnResponse, error) {
	trying, cancel := context.WithTimeout(ctx, tryWithin)
	defer cancel()
	answer, err := e.client.Txn(trying).If(compared...).Then(then...).Else(otherwise...).Commit()
	// A transaction whose comparisons did not hold has only read.
	hasTriedToWrite := err != nil || answer.Succeeded
	e.note(err, hasTriedToWrite)
	return answer, err
}

// putChunks writes chunks under a lease of their own.
func (t *etcdTx) putChunks(ctx context.Context, chunks []item) error {
	if len(chunks) == 0 {
		return ctx.Err()
	}
	trying, cancel := context.WithTimeout(ctx, tryWithin)
	defer cancel()
	granted, err := t.etcd.client.Grant(trying, chunkLease)
	if err != nil {
		t.etcd.note(err, true)
		return err
	}
	for _, c := range chunks {
		put := clientv3.OpPut(t.etcd.key(c.recordKey), string(c.value), clientv3.WithLease(granted.ID))
		if _, err := t.etcd.transact(ctx, nil, []clientv3.Op{put}, nil); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// comparisons are what must hold when the transaction is stored: that nobody has changed what
// it read, and that this control plane leads if it must. Where that does not hold, etcd
// answers otherwise: what is there instead.
func (t *etcdTx) comparisons() (compared []clientv3.Cmp, otherwise []clientv3.Op) {
	if t.leader != nil {
		compared = append(compared, *t.leader)
	}
	for at, mod := range t.read {
		compared = append(compared, clientv3.Compare(clientv3.ModRevision(t.etcd.key(at)), "=", mod))
		otherwise = append(otherwise, clientv3.OpGet(t.etcd.key(at)))
	}
	return compared, otherwise
}

// ops are what the transaction writes, and the chunks that come before.
func (t *etcdTx) ops() (ops []clientv3.Op, chunks []item) {
	for at := range t.written {
		i, isThere := t.copy.Get(item{recordKey: at})
		name := t.etcd.key(at)
		switch {
		case !isThere:
			ops = append(ops, clientv3.OpDelete(name))
		case at.bucket == chunkBucket:
			chunks = append(chunks, i)
			ops = append(ops, clientv3.OpPut(name, "", clientv3.WithIgnoreValue())) // without the lease
		default:
			ops = append(ops, clientv3.OpPut(name, string(i.value)))
		}
	}
	return ops, chunks
}

// sign is a value that the store has only if it took the transaction: an audit entry, which
// nobody changes but its author, else the longest value. It has none if nothing is written.
func (t *etcdTx) sign() (sign item) {
	for at := range t.written {
		i, isThere := t.copy.Get(item{recordKey: at})
		if !isThere || at.bucket == chunkBucket || isText(at.bucket) {
			continue
		}
		if at.bucket == auditBucket {
			return i
		}
		if len(i.value) > len(sign.value) {
			sign = i
		}
	}
	return sign
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
