package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
)

// format is the number of the layout below. A store in another format is rejected, except
// oldFormat: its policies have no names and no rollouts.
// All values but the format are sealed.
//
//	meta       "format" → "4", "audit_secret" → 32 bytes; "probe" → what Healthy tried to write
//	revisions  number, 8 bytes big-endian → Summary as JSON, without marks
//	yaml       number → the text as given
//	json       number → what proxies get
//	acked      number → "", some proxy accepted it
//	nacked     number → "", some proxy refused it
//	proxies    Identity.key → Proxy as JSON
//	audit      id, 8 bytes big-endian → Entry as JSON
const (
	format    = "4"
	oldFormat = "3"
)

const (
	metaBucket      = "meta"
	revisionsBucket = "revisions"
	yamlBucket      = "yaml"
	jsonBucket      = "json"
	ackedBucket     = "acked"
	nackedBucket    = "nacked"
	proxiesBucket   = "proxies"
	auditBucket     = "audit"
)

var (
	// textBuckets make a revision. They have the same numbers.
	textBuckets     = []string{revisionsBucket, yamlBucket, jsonBucket}
	revisionBuckets = append([]string{ackedBucket, nackedBucket}, textBuckets...)

	buckets = append([]string{metaBucket, proxiesBucket, auditBucket}, revisionBuckets...)

	formatKey = []byte("format")
	secretKey = []byte("audit_secret")
	probeKey  = []byte("probe")
)

func key(number uint64) []byte { return binary.BigEndian.AppendUint64(nil, number) }

// recordKey is where a record is.
type recordKey struct{ bucket, k string }

// tx is a transaction of a database: values by bucket and key, and a number for each
// bucket, the highest that was given in it. One that writes is made anew if another one has
// changed a value or a number that it asked for by name.
type tx interface {
	value(bucket string, k []byte) []byte // valid within the transaction, nil: none
	set(bucket string, k, value []byte) error
	remove(bucket string, k []byte) error
	descend(bucket string, below []byte) iter.Seq2[[]byte, []byte] // from the last key on; nil is no bound
	sequence(bucket string) uint64
	setSequence(bucket string, n uint64) error
}

// records are what a transaction reads and writes. Revisions, replies and the audit
// log know of the database only this, and commit and view.
type records struct{ tx }

// next gives the next number of a bucket. Restore may have set it above the last key.
func (r records) next(bucket string) (uint64, error) {
	n := r.sequence(bucket) + 1
	return n, r.setSequence(bucket, n)
}

// put stores a text and its seal.
func (r records) put(bucket string, k, text []byte) error {
	return r.set(bucket, k, append(seal(bucket, k, text), text...))
}

func (r records) putJSON(bucket string, k []byte, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return r.put(bucket, k, text)
}

// get returns the text, ErrNotFound, or ErrDamaged.
func (r records) get(bucket string, k []byte) ([]byte, error) {
	value := r.value(bucket, k)
	if value == nil {
		return nil, ErrNotFound
	}
	text, err := unseal(bucket, k, value)
	return bytes.Clone(text), err // the value is only valid within the transaction
}

func (r records) getJSON(bucket string, k []byte, v any) error {
	text, err := r.get(bucket, k)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// delete deletes the records with a key in some buckets.
func (r records) delete(k []byte, buckets ...string) error {
	var errs []error
	for _, bucket := range buckets {
		errs = append(errs, r.remove(bucket, k))
	}
	return errors.Join(errs...)
}

// newest gives the numbers of a bucket that are below a bound, the newest first; 0 is
// no bound.
func (r records) newest(bucket string, below uint64) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		var bound []byte
		if below > 0 {
			bound = key(below)
		}
		for k := range r.descend(bucket, bound) {
			if !yield(binary.BigEndian.Uint64(k)) {
				return
			}
		}
	}
}

// keys returns all keys of a bucket, the last one first.
func (r records) keys(bucket string) (all [][]byte) {
	for k := range r.descend(bucket, nil) {
		all = append(all, bytes.Clone(k))
	}
	return all
}

// seal is the digest that stands before a text. bbolt has no checksums of its own
// apart from those of its two meta pages, so a byte that changes on the disk would
// otherwise become part of a policy.
func seal(bucket string, k, text []byte) []byte {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(bucket), k, text} {
		_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part)))) // a hash never fails
		_, _ = h.Write(part)
	}
	return h.Sum(make([]byte, 0, sha256.Size+len(text)))
}

// unseal returns the text of a value that was read.
func unseal(bucket string, k, value []byte) ([]byte, error) {
	if len(value) >= sha256.Size {
		if text := value[sha256.Size:]; bytes.Equal(seal(bucket, k, text), value[:sha256.Size]) {
			return text, nil
		}
	}
	return nil, fmt.Errorf("%w: %v is not what was stored", ErrDamaged, recordKey{bucket, string(k)})
}

// String names the record for people.
func (at recordKey) String() string {
	switch {
	case at.bucket == proxiesBucket:
		return fmt.Sprintf("proxy %q", at.k)
	case len(at.k) != 8:
		return "a record of " + at.bucket
	case at.bucket == auditBucket:
		return fmt.Sprintf("audit entry %d", binary.BigEndian.Uint64([]byte(at.k)))
	default:
		return fmt.Sprintf("revision %d (%s)", binary.BigEndian.Uint64([]byte(at.k)), at.bucket)
	}
}
