package store

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/btree"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Keys on etcd are the store's prefix, a bucket and a key of records; numbers have twenty
// digits. Values are those of records, but for texts:
//
//	yaml, json  the byte 0, then the text by gzip; or the byte 1, then "name 1": the text by gzip is
//	            the chunk of that name. The 1 behind the name and the 0 in the chunk's key are fixed
//	chunk       name/bucket/number/0 → bytes. It is written under a lease before the transaction
//	            that names it. The transaction takes the lease away; if it fails, the chunk ends
//	            with the lease
//	sequence    bucket → the highest number that was given in it
//	replica     control plane/part → what it tells of its proxies, under its lease
//	leader      the election of the control plane that steps rollouts
const (
	chunkBucket    = "chunk"
	sequenceBucket = "sequence"
	replicaBucket  = "replica"
	leaderBucket   = "leader"
)

// maxInlines bounds the texts of a transaction that need no chunk: etcd takes requests up to
// 1.5 MiB, and so any chunk.
const maxInlines = 256 << 10

func isText(bucket string) bool { return bucket == yamlBucket || bucket == jsonBucket }

// isNumbered says whether a bucket's keys are numbers.
func isNumbered(bucket string) bool {
	return bucket == auditBucket || slices.Contains(revisionBuckets, bucket)
}

func (e *etcdCopy) key(at recordKey) string {
	if isNumbered(at.bucket) {
		return fmt.Sprintf("%s%s/%020d", e.root, at.bucket, binary.BigEndian.Uint64([]byte(at.k)))
	}
	return e.root + at.bucket + "/" + at.k
}

// split is the reverse of key.
func (e *etcdCopy) split(name []byte) (at recordKey) {
	at.bucket, at.k, _ = strings.Cut(string(name[len(e.root):]), "/")
	if n, err := strconv.ParseUint(at.k, 10, 64); isNumbered(at.bucket) && err == nil {
		at.k = string(key(n))
	}
	return at
}

// item is a value on etcd.
type item struct {
	recordKey
	value []byte
	mod   int64 // etcd's revision that wrote it, 0: there is none
}

// mirror is a copy of all that is on etcd, in order. A copy of it takes no time.
type mirror = btree.BTreeG[item]

func newMirror() *mirror {
	before := func(a, b item) bool { return cmp.Or(cmp.Compare(a.bucket, b.bucket), cmp.Compare(a.k, b.k)) < 0 }
	return btree.NewBTreeGOptions(before, btree.Options{NoLocks: true})
}

// etcdTx is a transaction under way. It reads and writes a copy of its own; etcd learns of it
// when it is stored.
type etcdTx struct {
	etcd    *etcdCopy
	copy    *mirror
	read    map[recordKey]int64 // the revisions, which must not change before it is stored
	written map[recordKey]bool
	zip     *gzip.Writer
	inline  int           // bytes of texts
	leader  *clientv3.Cmp // must hold when it is stored, nil: nothing must; see etcdCopy.leader
}

// newTx begins a transaction on what the copy has now.
func (e *etcdCopy) newTx() *etcdTx {
	e.mu.Lock()
	defer e.mu.Unlock()
	return &etcdTx{
		etcd:    e,
		copy:    e.copy.Copy(),
		read:    map[recordKey]int64{},
		written: map[recordKey]bool{},
		zip:     gzip.NewWriter(nil),
	}
}

func (t *etcdTx) value(bucket string, k []byte) []byte {
	at := recordKey{bucket, string(k)}
	found, _ := t.copy.Get(item{recordKey: at})
	if !t.written[at] {
		t.read[at] = found.mod
	}
	return t.content(found)
}

// content is a value as it was before it was compressed. A text that is not whole is empty,
// which none with a seal is.
func (t *etcdTx) content(i item) []byte {
	if !isText(i.bucket) || i.value == nil {
		return i.value
	}
	packed := i.value[1:]
	if at, isOne := chunkOf(i); isOne {
		chunk, _ := t.copy.Get(item{recordKey: at})
		packed = chunk.value
	}
	if unpacked, err := gzip.NewReader(bytes.NewReader(packed)); err == nil {
		if text, err := io.ReadAll(unpacked); err == nil {
			return text
		}
	}
	return []byte{}
}

// chunkOf returns where the chunk of a text is, if it has one.
func chunkOf(i item) (at recordKey, isOne bool) {
	if !isText(i.bucket) || len(i.value) == 0 || i.value[0] == 0 {
		return at, false
	}
	name, _, _ := strings.Cut(string(i.value[1:]), " ")
	return recordKey{chunkBucket, fmt.Sprintf("%s/%s/%d/0", name, i.bucket, binary.BigEndian.Uint64([]byte(i.k)))}, true
}

func (t *etcdTx) set(bucket string, k, value []byte) error {
	at := recordKey{bucket, string(k)}
	if isText(bucket) {
		value = t.pack(at, value)
	}
	if old, _ := t.copy.Get(item{recordKey: at}); old.value == nil || !bytes.Equal(old.value, value) { // a mark, mostly
		t.put(item{recordKey: at, value: value})
	}
	return nil
}

func (t *etcdTx) put(i item) {
	t.copy.Set(i)
	t.written[i.recordKey] = true
}

// pack compresses a text, and returns what is put in its place.
func (t *etcdTx) pack(at recordKey, text []byte) []byte {
	packed := bytes.NewBuffer([]byte{0})
	t.zip.Reset(packed)
	_, _ = t.zip.Write(text) // a buffer takes all
	_ = t.zip.Close()
	if t.inline+packed.Len() <= maxInlines {
		t.inline += packed.Len()
		return packed.Bytes()
	}
	name := fmt.Appendf([]byte{1}, "%s 1", rand.Text())
	chunk, _ := chunkOf(item{recordKey: at, value: name})
	t.put(item{recordKey: chunk, value: packed.Bytes()[1:]})
	return name
}

func (t *etcdTx) remove(bucket string, k []byte) error {
	if old, found := t.copy.Delete(item{recordKey: recordKey{bucket, string(k)}}); found {
		t.written[old.recordKey] = true
		if chunk, isOne := chunkOf(old); isOne {
			return t.remove(chunk.bucket, []byte(chunk.k))
		}
	}
	return nil
}

func (t *etcdTx) sequence(bucket string) uint64 {
	n, _ := strconv.ParseUint(string(t.value(sequenceBucket, []byte(bucket))), 10, 64)
	return n
}

func (t *etcdTx) setSequence(bucket string, n uint64) error {
	return t.set(sequenceBucket, []byte(bucket), strconv.AppendUint(nil, n, 10))
}

func (t *etcdTx) descend(bucket string, below []byte) iter.Seq2[[]byte, []byte] {
	from := recordKey{bucket, string(below)}
	if below == nil {
		from.bucket += "\x00" // behind all of this one
	}
	return func(yield func(k, value []byte) bool) {
		t.copy.Descend(item{recordKey: from}, func(i item) bool {
			switch {
			case i.recordKey == from: // not below it
				return true
			case i.bucket != bucket: // this one has no more
				return false
			}
			return yield([]byte(i.k), t.content(i))
		})
	}
}
