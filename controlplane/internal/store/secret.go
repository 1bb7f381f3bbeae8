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
	err = b.commit(b.db.Update, func(tx *bbolt.Tx) error {
		known, _ := get(tx, metaBucket, secretKey) // a damaged one counts as none
		if secret = slices.Clone(known); len(secret) > 0 {
			return nil
		}
		secret = make([]byte, 32)
		_, _ = rand.Read(secret) // never fails: see its documentation
		return put(tx, metaBucket, secretKey, secret)
	})
	if err != nil {
		return nil, fmt.Errorf("read audit secret: %w", err)
	}
	return secret, nil
}
