package store

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"
)

var secretKey = []byte("audit_secret")

// Secret implements Store.
func (b *Bolt) Secret(context.Context) (secret []byte, err error) {
	err = b.db.Update(func(tx *bbolt.Tx) error {
		meta := tx.Bucket(metaBucket)
		if secret = slices.Clone(meta.Get(secretKey)); len(secret) > 0 {
			return nil
		}
		secret = make([]byte, 32)
		_, _ = rand.Read(secret) // never fails: see its documentation
		return meta.Put(secretKey, secret)
	})
	if err != nil {
		return nil, fmt.Errorf("read audit secret: %w", err)
	}
	return secret, nil
}
