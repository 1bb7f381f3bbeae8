package store

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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

// position is how far a database has come. It never goes back, except that Restore
// sets back the transaction.
type position struct {
	Transaction uint64 // of bbolt
	Revision    uint64 // the highest number that was given
	Entry       uint64 // the highest id of an audit entry
}

func positionOf(tx *bbolt.Tx) position {
	return position{
		Transaction: uint64(tx.ID()),
		Revision:    tx.Bucket(revisionsBucket).Sequence(),
		Entry:       tx.Bucket(auditBucket).Sequence(),
	}
}

// behind says whether the database lacks an acknowledged change.
func (p position) behind(acknowledged position) bool {
	return p.Transaction < acknowledged.Transaction || p.Revision < acknowledged.Revision || p.Entry < acknowledged.Entry
}

// last is the open file.
type last struct {
	f *os.File

	mu    sync.Mutex
	turn  uint64 // of the newest record, 0 if there is none
	known position
}

// openLast opens the file, or makes an empty one if flag has os.O_CREATE.
func openLast(dir string, flag int) (*last, error) {
	name := filepath.Join(dir, LastName)
	if err := checkRegular(name); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, flag, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open record of acknowledged changes: %w", err)
	}
	l := &last{f: f}
	for slot := range int64(2) {
		text := make([]byte, slotBytes)
		if n, err := f.ReadAt(text, slot*slotBytes); n == 0 || err != nil && !errors.Is(err, io.EOF) {
			continue // missing or unreadable: the other one counts
		}
		if turn, p, ok := parseRecord(string(text)); ok && turn > l.turn {
			l.turn, l.known = turn, p
		}
	}
	return l, nil
}

// advance makes a committed position durable, unless a later one is there already.
func (l *last) advance(p position) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.turn > 0 && p.Transaction <= l.known.Transaction {
		return nil
	}
	return l.write(p)
}

// set is advance that may go back. The caller has the file to itself.
func (l *last) set(p position) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.write(p)
}

func (l *last) write(p position) error {
	turn := l.turn + 1
	if _, err := l.f.WriteAt(fmt.Appendf(nil, "%-*s", slotBytes, record(turn, p)), int64(turn%2)*slotBytes); err != nil {
		return fmt.Errorf("record acknowledged change: %w", err)
	}
	if err := l.f.Sync(); err != nil {
		return fmt.Errorf("record acknowledged change: %w", err)
	}
	l.turn, l.known = turn, p
	return nil
}

const recordText = "record %d: transaction %d, revision %d, audit entry %d"

func record(turn uint64, p position) string {
	text := fmt.Sprintf(recordText, turn, p.Transaction, p.Revision, p.Entry)
	return fmt.Sprintf("%s, sha256 %x\n", text, sha256.Sum256([]byte(text)))
}

func parseRecord(text string) (turn uint64, p position, ok bool) {
	if _, err := fmt.Sscanf(text, recordText, &turn, &p.Transaction, &p.Revision, &p.Entry); err != nil {
		return 0, p, false
	}
	want := record(turn, p)
	return turn, p, len(text) >= len(want) && text[:len(want)] == want
}
