package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"
)

// Every value but the format is sealed: a SHA-256 of the bucket's name, the key
// and the text stands before the text. bbolt has no checksums of its own apart
// from those of its two meta pages, so a byte that changes on the disk would
// otherwise become part of a policy.

func seal(bucket, k, text []byte) []byte {
	h := sha256.New()
	for _, part := range [][]byte{bucket, k, text} {
		_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part)))) // a hash never fails
		_, _ = h.Write(part)
	}
	return h.Sum(make([]byte, 0, sha256.Size+len(text)))
}

// put stores a text and its seal.
func put(tx *bbolt.Tx, bucket, k, text []byte) error {
	return tx.Bucket(bucket).Put(k, append(seal(bucket, k, text), text...))
}

// get returns the text, nil if there is none. It is valid as long as tx.
func get(tx *bbolt.Tx, bucket, k []byte) ([]byte, error) {
	value := tx.Bucket(bucket).Get(k)
	if value == nil {
		return nil, nil
	}
	return unseal(bucket, k, value)
}

// unseal returns the text of a value that was read.
func unseal(bucket, k, value []byte) ([]byte, error) {
	if len(value) >= sha256.Size {
		if text := value[sha256.Size:]; bytes.Equal(seal(bucket, k, text), value[:sha256.Size]) {
			return text, nil
		}
	}
	return nil, fmt.Errorf("%w: %s is not what was stored", ErrDamaged, entryName(bucket, k))
}

// entryName names an entry for people.
func entryName(bucket, k []byte) string {
	switch name := string(bucket); {
	case name == string(proxiesBucket):
		return fmt.Sprintf("proxy %q", k)
	case len(k) != 8:
		return fmt.Sprintf("an entry of %s", name)
	case name == string(auditBucket):
		return fmt.Sprintf("audit entry %d", binary.BigEndian.Uint64(k))
	default:
		return fmt.Sprintf("revision %d (%s)", binary.BigEndian.Uint64(k), name)
	}
}
