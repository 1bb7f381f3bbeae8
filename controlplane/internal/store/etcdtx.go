package store

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Keys on etcd are the store's prefix, a bucket and a key of records; numbers have twenty
// digits. Values are those of records, but for texts:
//
//	yaml, json  a byte, then the text by gzip (0), or the name of its chunks and how many there are (1)
//	chunk       name/bucket/number/part → bytes. They are written before the transaction that
//	            names them, under a lease that it takes away: those of one that failed end with it
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
	maxChunk   = 512 << 10 // etcd takes requests up to 1.5 MiB
	maxInline  = 4 << 10   // of one text
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

// split is the reverse of key.
func (e *Etcd) split(name []byte) (bucket, k string) {
	bucket, k, _ = strings.Cut(string(name[len(e.root):]), "/")
	if n, err := strconv.ParseUint(k, 10, 64); isNumbered(bucket) && err == nil {
		k = string(key(n))
	}
	return bucket, k
}

// mirror is a copy of all that is on etcd.
type mirror struct {
	shelves  map[string]*shelf
	revision int64 // of etcd's, as of which it is
}

// shelf is a bucket.
type shelf struct {
	keys  []string // ascending
	items map[string]item
}

type item struct {
	value []byte
	mod   int64 // etcd's revision that wrote it, 0: there is none
}

func (m mirror) get(bucket, k string) item {
	if s := m.shelves[bucket]; s != nil {
		return s.items[k]
	}
	return item{}
}

func (m mirror) put(bucket, k string, i item) {
	s := m.shelves[bucket]
	if s == nil {
		s = &shelf{items: map[string]item{}}
		m.shelves[bucket] = s
	}
	if at, found := slices.BinarySearch(s.keys, k); !found {
		s.keys = slices.Insert(s.keys, at, k)
	}
	s.items[k] = i
}

func (m mirror) remove(bucket, k string) {
	if s := m.shelves[bucket]; s != nil {
		if at, found := slices.BinarySearch(s.keys, k); found {
			s.keys = slices.Delete(s.keys, at, at+1)
			delete(s.items, k)
		}
	}
}

// etcdTx is a transaction under way. It reads the copy, whose lock the caller holds.
type etcdTx struct {
	*Etcd
	written map[string]map[string][]byte // by bucket and key, nil: removed
	fixed   map[recordKey]item           // what must not change, as the change read it
	before  map[recordKey]item           // what was where the change writes: the copy goes on
	leader  *clientv3.Cmp                // holds as long as the change may be made, nil: for ever
}

// recordKey is a bucket and a key.
type recordKey struct{ bucket, k string }

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
	if chunks, parts := chunksOf(bucket, string(k), value); parts > 0 {
		packed = nil
		for i := range parts {
			packed = append(packed, t.copy.get(chunkBucket, fmt.Sprint(chunks, i)).value...)
		}
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

// chunksOf returns what the names of a text's chunks begin with, and how many it has.
func chunksOf(bucket, k string, value []byte) (names string, parts int) {
	if isText(bucket) && len(value) > 0 && value[0] == 1 {
		_, _ = fmt.Sscan(string(value[1:]), &names, &parts)
		names = fmt.Sprintf("%s/%s/%d/", names, bucket, binary.BigEndian.Uint64([]byte(k)))
	}
	return names, parts
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
	var old, own []string
	if s := t.copy.shelves[bucket]; s != nil {
		old = s.keys
	}
	for k := range t.written[bucket] {
		if _, found := slices.BinarySearch(old, k); !found {
			own = append(own, k)
		}
	}
	slices.Sort(own)
	if below != nil {
		at, _ := slices.BinarySearch(old, string(below))
		mine, _ := slices.BinarySearch(own, string(below))
		old, own = old[:at], own[:mine]
	}
	return func(yield func(k, value []byte) bool) {
		for i, j := len(old)-1, len(own)-1; i >= 0 || j >= 0; {
			k := ""
			if j < 0 || i >= 0 && old[i] > own[j] {
				k, i = old[i], i-1
			} else {
				k, j = own[j], j-1
			}
			if value := t.value(bucket, []byte(k)); value != nil && !yield([]byte(k), value) {
				return
			}
		}
	}
}
