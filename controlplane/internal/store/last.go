package store

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"go.etcd.io/bbolt"
)

// LastName is the name of a second file in the data directory: it says how far
// the database had come when a change was last acknowledged. bbolt keeps two
// meta pages. When the newer one is ruined, bbolt silently opens the database as
// it was one transaction before; this file reveals it.
const LastName = "sluice.last"

// slotBytes is the room of one record. Two are written in turn, so that a write
// that is cut off leaves the one before. Nothing grows or moves, so a full disk
// does not matter.
const slotBytes = 4096

// position is how far a database has come: bbolt's transaction, the highest revision's number
// that was given, and the highest id of an audit entry. None goes back, except that Restore
// sets back the transaction.
type position struct{ transaction, revision, entry uint64 }

func (p position) String() string {
	return fmt.Sprintf("transaction %d, revision %d, audit entry %d", p.transaction, p.revision, p.entry)
}

// highest has the highest of each number.
func (p position) highest(q position) position {
	return position{max(p.transaction, q.transaction), max(p.revision, q.revision), max(p.entry, q.entry)}
}

func positionOf(tx *bbolt.Tx) position {
	r := boltRecords(tx)
	return position{uint64(tx.ID()), r.sequence(revisionsBucket), r.sequence(auditBucket)}
}

func (d *database) position() (p position) {
	_ = d.read(func(tx *bbolt.Tx) error { p = positionOf(tx); return nil })
	return p
}

// last is the open file.
type last struct {
	f *os.File

	mu    sync.Mutex
	turn  uint64 // of the newest record, 0 if there is none
	known position
}

// openLast opens the file, or makes an empty one where it may.
func openLast(name string, readOnly bool) (l *last, err error) {
	l, flag := &last{}, os.O_RDWR|os.O_CREATE
	if readOnly {
		flag = os.O_RDONLY
	}
	if err := checkRegular(name); err != nil {
		return l, err
	}
	l.f, err = os.OpenFile(name, flag, 0o600)
	if err != nil {
		return l, fmt.Errorf("open record of acknowledged changes: %w", err)
	}
	for slot := range int64(2) {
		text := make([]byte, slotBytes)
		_, _ = l.f.ReadAt(text, slot*slotBytes) // where one cannot be read, the other counts
		var turn uint64
		var p position
		_, _ = fmt.Sscanf(string(text), "record %d: transaction %d, revision %d, audit entry %d",
			&turn, &p.transaction, &p.revision, &p.entry)
		if turn > l.turn && strings.HasPrefix(string(text), record(turn, p)) {
			l.turn, l.known = turn, p
		}
	}
	return l, nil
}

func record(turn uint64, p position) string {
	text := fmt.Sprintf("record %d: %v", turn, p)
	return fmt.Sprintf("%s, sha256 %x\n", text, sha256.Sum256([]byte(text)))
}

// check compares a database with the record.
func (l *last) check(has position) error {
	isUsed := has.revision > 0 || has.entry > 0
	if l.turn == 0 && isUsed {
		return damage("%s is not beside it or not whole, so nothing says whether all that was acknowledged is here",
			LastName)
	}
	if has != has.highest(l.known) {
		return damage("it lacks what was acknowledged: it ends with %v, and %v was acknowledged", has, l.known)
	}
	return nil
}

// advance makes a committed position durable, unless a later one is there already.
func (l *last) advance(p position) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	p = p.highest(l.known)
	if p == l.known {
		return nil
	}
	turn := l.turn + 1
	_, err := l.f.WriteAt(fmt.Appendf(nil, "%-*s", slotBytes, record(turn, p)), int64(turn%2)*slotBytes)
	err = errors.Join(err, l.f.Sync())
	if err != nil {
		return fmt.Errorf("record acknowledged change: %w", err)
	}
	l.turn, l.known = turn, p
	return nil
}
