package store

import (
	"context"
	"errors"
	"fmt"
)

// SaveReply implements Store.
func (s shared) SaveReply(ctx context.Context, reply Reply) error {
	what := fmt.Sprintf("save reply to revision %d", reply.Revision)
	return s.write(ctx, what, func(r records) error {
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
func (s shared) Proxies(context.Context) ([]Proxy, error) {
	list := []Proxy{}
	err := s.read("list proxies", func(r records) error {
		for k := range r.descend(proxiesBucket, nil) {
			var p Proxy
			if r.getJSON(proxiesBucket, k, &p) == nil {
				list = append(list, p)
			}
		}
		return nil
	})
	return list, err
}

// Forget implements Store.
func (s shared) Forget(ctx context.Context, id Identity) error {
	return s.write(ctx, "forget proxy", func(r records) error { return r.delete(id.key(), proxiesBucket) })
}
