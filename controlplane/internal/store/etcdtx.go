package store

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Keys on etcd are the store's prefix, a bucket and a key of records; numbers have twenty
// digits. Values are those of records, but for texts:
//
//	yaml, json  a byte, then the text by gzip (0), or the name of its chunk, and 1 for one (1)
//	chunk       name/bucket/number/0 → bytes. It is written before the transaction that names
//	            it, under a lease that it takes away: that of one that failed ends with it
//	sequence    bucket → the highest number that was given in it
//	replica     control plane/part → what it tells of its proxies, under its lease
//	leader      the election of the control plane that steps rollouts
const (
	chunkBucket    = "chunk"
	sequenceBucket = "sequence"
	replicaBucket  = "replica"
	leaderBucket   = "leader"
)

const (
	maxInline  = 4 << 10   // of one text; etcd takes requests up to 1.5 MiB, and so any chunk
	maxInlines = 256 << 10 // of all texts of a transaction
	maxOps     = 64        // etcd takes 128 on each level, less those of the level above
	chunkLease = 60        // seconds
)

func isText(bucket string) bool { return bucket == yamlBucket || bucket == jsonBucket }

// isNumbered says whether a bucket's keys are numbers.
func isNumbered(bucket string) bool {
	return bucket == auditBucket || slices.Contains(revisionBuckets, bucket)
}

func (e *Etcd) key(bucket string, k []byte) string {
	if isNumbered(bucket) {
		return fmt.Sprintf("%s%s/%020d", e.root, bucket, binary.BigEndian.Uint64(k))
	}
	return e.root + bucket + "/" + string(k)
}

// recordKey is a bucket and a key.
type recordKey struct{ bucket, k string }

// split is the reverse of key.
func (e *Etcd) split(name []byte) (at recordKey) {
	at.bucket, at.k, _ = strings.Cut(string(name[len(e.root):]), "/")
	if n, err := strconv.ParseUint(at.k, 10, 64); isNumbered(at.bucket) && err == nil {
		at.k = string(key(n))
	}
	return at
}

// mirror is a copy of all that is on etcd.
type mirror struct {
	buckets  map[string]map[string]item
	revision int64 // of etcd's, as of which it is
}

type item struct {
	value []byte
	mod   int64 // etcd's revision that wrote it, 0: there is none
}

func (m mirror) get(bucket, k string) item { return m.buckets[bucket][k] }

func (m mirror) put(at recordKey, i item) {
	if m.buckets[at.bucket] == nil {
		m.buckets[at.bucket] = map[string]item{}
	}
	m.buckets[at.bucket][at.k] = i
}

// etcdTx is a transaction under way. It reads the copy, whose lock the caller holds.
type etcdTx struct {
	*Etcd
	written map[string]map[string][]byte // by bucket and key, nil: removed
	fixed   map[recordKey]item           // what must not change, as the change read it
	before  map[recordKey]item           // what was where the change writes: the copy goes on
	leader  *clientv3.Cmp                // holds as long as the change may be made, nil: for ever
}

func (e *Etcd) begin() *etcdTx {
	return &etcdTx{Etcd: e, written: map[string]map[string][]byte{}, fixed: map[recordKey]item{}, before: map[recordKey]item{}}
}

func (t *etcdTx) fix(bucket string, k []byte) {
	t.fixed[recordKey{bucket, string(k)}] = t.copy.get(bucket, string(k))
}

func (t *etcdTx) value(bucket string, k []byte) []byte {
	if value, ok := t.written[bucket][string(k)]; ok {
		return value
	}
	value := t.copy.get(bucket, string(k)).value
	if isText(bucket) && value != nil {
		return t.text(bucket, k, value)
	}
	return value
}

// text returns a text as it was before it was compressed. One that is not whole is empty,
// which none with a seal is.
func (t *etcdTx) text(bucket string, k, value []byte) []byte {
	packed := value[1:]
	if chunk := chunkOf(bucket, string(k), value); chunk != "" {
		packed = t.copy.get(chunkBucket, chunk).value
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return []byte{}
	}
	text, err := io.ReadAll(unpacked)
	if err != nil {
		return []byte{}
	}
	return text
}

// chunkOf returns the name of a text's chunk, "" where it has none.
func chunkOf(bucket, k string, value []byte) string {
	if !isText(bucket) || len(value) == 0 || value[0] == 0 {
		return ""
	}
	name, _, _ := strings.Cut(string(value[1:]), " ")
	return fmt.Sprintf("%s/%s/%d/0", name, bucket, binary.BigEndian.Uint64([]byte(k)))
}

func (t *etcdTx) write(bucket string, k, value []byte) error {
	if t.written[bucket] == nil {
		t.written[bucket] = map[string][]byte{}
	}
	t.written[bucket][string(k)], t.before[recordKey{bucket, string(k)}] = value, t.copy.get(bucket, string(k))
	return nil
}

func (t *etcdTx) set(bucket string, k, value []byte) error {
	if bytes.Equal(t.value(bucket, k), value) { // a mark, mostly
		return nil
	}
	return t.write(bucket, k, bytes.Clone(value))
}

func (t *etcdTx) remove(bucket string, k []byte) error { return t.write(bucket, k, nil) }

func (t *etcdTx) sequence(bucket string) uint64 {
	t.fix(sequenceBucket, []byte(bucket))
	n, _ := strconv.ParseUint(string(t.value(sequenceBucket, []byte(bucket))), 10, 64)
	return n
}

func (t *etcdTx) setSequence(bucket string, n uint64) error {
	return t.write(sequenceBucket, []byte(bucket), strconv.AppendUint(nil, n, 10))
}

func (t *etcdTx) descend(bucket string, below []byte) iter.Seq2[[]byte, []byte] {
	var keys []string
	for _, all := range []iter.Seq[string]{maps.Keys(t.copy.buckets[bucket]), maps.Keys(t.written[bucket])} {
		for k := range all {
			if below == nil || k < string(below) {
				keys = append(keys, k)
			}
		}
	}
	slices.Sort(keys)
	return func(yield func(k, value []byte) bool) {
		for _, k := range slices.Backward(slices.Compact(keys)) {
			if value := t.value(bucket, []byte(k)); value != nil && !yield([]byte(k), value) {
				return
			}
		}
	}
}
