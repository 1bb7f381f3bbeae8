package store

import (
	"context"
	"errors"
	"fmt"
)

// SaveReply implements Store. Replies that come at once share a write: a fleet
// replies within the same second.
func (b *Bolt) SaveReply(ctx context.Context, reply Reply) error {
	what := fmt.Sprintf("save reply to revision %d", reply.Revision)
	return b.commit(ctx, what, b.db.Batch, func(r records) error {
		marks := nackedBucket
		if reply.Accepted {
			marks = ackedBucket
		}
		known, k := Proxy{}, reply.ID().key()
		_ = r.getJSON(proxiesBucket, k, &known) // a damaged one counts as unknown
		return errors.Join(r.put(marks, key(reply.Revision), nil), r.putJSON(proxiesBucket, k, known.After(reply)))
	})
}

// Proxies implements Store. A damaged one counts as unknown.
func (b *Bolt) Proxies(context.Context) ([]Proxy, error) {
	list := []Proxy{}
	err := b.view("list proxies", func(r records) error {
		return r.bucket(proxiesBucket).ForEach(func(k, _ []byte) error {
			var p Proxy
			if r.getJSON(proxiesBucket, k, &p) == nil {
				list = append(list, p)
			}
			return nil
		})
	})
	return list, err
}

// Forget implements Store.
func (b *Bolt) Forget(ctx context.Context, id Identity) error {
	return b.commit(ctx, "forget proxy", b.db.Batch, func(r records) error { return r.delete(id.key(), proxiesBucket) })
}
