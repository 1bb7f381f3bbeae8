package store

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
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

// position is how far a database has come. It never goes back, except that Restore
// sets back the transaction.
type position struct {
	Transaction uint64 // of bbolt
	Revision    uint64 // the highest number that was given
	Entry       uint64 // the highest id of an audit entry
}

const positionText = "transaction %d, revision %d, audit entry %d"

func (p position) String() string {
	return fmt.Sprintf(positionText, p.Transaction, p.Revision, p.Entry)
}

// behind says whether a database lacks an acknowledged change.
func (p position) behind(acknowledged position) bool {
	return p.Transaction < acknowledged.Transaction || p.Revision < acknowledged.Revision || p.Entry < acknowledged.Entry
}

func (r records) position() position {
	return position{uint64(r.tx.ID()), r.bucket(revisionsBucket).Sequence(), r.bucket(auditBucket).Sequence()}
}

func (d *database) position() (p position) {
	_ = d.view(func(r records) error { p = r.position(); return nil })
	return p
}

// last is the open file.
type last struct {
	f *os.File

	mu    sync.Mutex
	turn  uint64 // of the newest record, 0 if there is none
	known position
}

// openLast opens the file, or makes an empty one.
func openLast(dir string) (l *last, err error) {
	l, name := &last{}, filepath.Join(dir, LastName)
	if err := checkRegular(name); err != nil {
		return l, err
	}
	if l.f, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return l, fmt.Errorf("open record of acknowledged changes: %w", err)
	}
	for slot := range int64(2) {
		text := make([]byte, slotBytes)
		_, _ = l.f.ReadAt(text, slot*slotBytes) // where one cannot be read, the other counts
		var turn uint64
		var p position
		_, _ = fmt.Sscanf(string(text), "record %d: "+positionText, &turn, &p.Transaction, &p.Revision, &p.Entry)
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

// catchUp compares a database with the record, and brings the record up to it: a
// change that was durable but never acknowledged counts from now on.
func (l *last) catchUp(has position) error {
	switch {
	case l.turn == 0 && (has.Revision > 0 || has.Entry > 0):
		return damage("%s is not beside it or not whole, so nothing says whether all that was acknowledged is here", LastName)
	case has.behind(l.known):
		return damage("it lacks what was acknowledged: it ends with %v, and %v was acknowledged", has, l.known)
	}
	return l.advance(has)
}

// advance makes a committed position durable, unless a later one is there already.
func (l *last) advance(p position) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.Transaction <= l.known.Transaction {
		return nil
	}
	return l.set(p)
}

// set is advance that may go back. The caller has the file to itself.
func (l *last) set(p position) error {
	turn := l.turn + 1
	_, err := l.f.WriteAt(fmt.Appendf(nil, "%-*s", slotBytes, record(turn, p)), int64(turn%2)*slotBytes)
	if err = errors.Join(err, l.f.Sync()); err != nil {
		return fmt.Errorf("record acknowledged change: %w", err)
	}
	l.turn, l.known = turn, p
	return nil
}
