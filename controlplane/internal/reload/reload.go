// Package reload keeps a value that is read from files, and reads it again when
// the files change.
//
// Its invariant: Get always returns a value that parsed. Files that are missing,
// unreadable or bad change nothing; the log says so once. The package gives
// contents no meaning and never logs them.
package reload

import (
	"crypto/sha256"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
)

const (
	// Interval is the shortest time between two looks at the files.
	Interval = time.Second
	// maxBytes bounds one file.
	maxBytes = 4 << 20
)

// Value is read from files. Make one with Open; it is safe for concurrent use.
type Value[T any] struct {
	files []string
	parse func(contents [][]byte) (T, error)
	log   *slog.Logger
	now   func() time.Time

	current atomic.Pointer[T]
	mu      sync.Mutex // held by the one caller that looks at the files
	looked  time.Time
	state   []stamp
	good    [sha256.Size]byte // digest of the contents that the value was read from
	problem string            // what was logged last, "" while all is well
}

// stamp tells one version of a file from another without reading it.
type stamp struct {
	modified time.Time
	size     int64
	info     os.FileInfo // the inode, for os.SameFile
}

func (s stamp) same(other stamp) bool {
	return s.modified.Equal(other.modified) && s.size == other.size && os.SameFile(s.info, other.info)
}

// Open reads the first value. parse gets the contents of the files, in their
// order.
func Open[T any](log *slog.Logger, parse func(contents [][]byte) (T, error), files ...string) (*Value[T], error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	v := &Value[T]{files: files, parse: parse, log: log, now: time.Now}
	state, err := v.stat()
	if err != nil {
		return nil, err
	}
	contents, err := v.read()
	if err != nil {
		return nil, err
	}
	value, err := parse(contents)
	if err != nil {
		return nil, err
	}
	v.current.Store(&value)
	v.looked, v.state, v.good = v.now(), state, sum(contents)
	return v, nil
}

// Get returns the value, read again if the files changed. It looks at them at most
// once a second.
func (v *Value[T]) Get() T {
	if v.mu.TryLock() {
		if now := v.now(); now.Sub(v.looked) >= Interval {
			v.look()
			v.looked = now
		}
		v.mu.Unlock()
	}
	return *v.current.Load()
}

// look reads the value again if the files changed. The caller holds mu.
func (v *Value[T]) look() {
	state, err := v.stat()
	if err != nil {
		v.keep(err)
		return
	}
	// A file that was written just before it was read may be written again without
	// a new modification time.
	recent := func(s stamp) bool { return v.looked.Sub(s.modified) < Interval }
	if v.problem == "" && slices.EqualFunc(state, v.state, stamp.same) && !slices.ContainsFunc(state, recent) {
		return
	}
	contents, err := v.read()
	if err != nil {
		v.keep(err)
		return
	}
	v.state = state
	digest := sum(contents)
	if digest == v.good {
		v.problem = ""
		return
	}
	// What was refused may be good by now: a certificate may have become valid.
	value, err := v.parse(contents)
	if err != nil {
		v.keep(err)
		return
	}
	v.current.Store(&value)
	v.good, v.problem = digest, ""
	v.log.Info("file read again", "file", v.names())
}

// keep logs once why the value stays.
func (v *Value[T]) keep(err error) {
	if v.problem == err.Error() {
		return
	}
	v.problem = err.Error()
	v.log.Error("changed file refused, what was read before stays in force", "file", v.names(), "error", err)
}

func (v *Value[T]) names() string { return strings.Join(v.files, ", ") }

func (v *Value[T]) stat() ([]stamp, error) {
	state := make([]stamp, 0, len(v.files))
	for _, file := range v.files {
		info, err := os.Stat(file)
		if err != nil {
			return nil, err
		}
		state = append(state, stamp{info.ModTime(), info.Size(), info})
	}
	return state, nil
}

func (v *Value[T]) read() ([][]byte, error) {
	contents := make([][]byte, 0, len(v.files))
	for _, file := range v.files {
		text, err := input.File(file, maxBytes)
		if err != nil {
			return nil, err
		}
		contents = append(contents, text)
	}
	return contents, nil
}

// sum is one digest of all contents, each with its length.
func sum(contents [][]byte) (digest [sha256.Size]byte) {
	h := sha256.New()
	for _, text := range contents {
		one := sha256.Sum256(text)
		h.Write(one[:])
	}
	h.Sum(digest[:0])
	return digest
}
