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
	good    [][sha256.Size]byte // digests of the contents that the value was read from
	problem string              // what was logged last, "" while all is well
}

// Open reads the first value. parse gets the contents of the files, in their
// order.
func Open[T any](log *slog.Logger, parse func(contents [][]byte) (T, error), files ...string) (*Value[T], error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	v := &Value[T]{files: files, parse: parse, log: log, now: time.Now}
	v.looked = v.now()
	return v, v.read()
}

// Get returns the value, read again if the files changed. It looks at them at most
// once a second.
func (v *Value[T]) Get() T {
	if v.mu.TryLock() {
		if now := v.now(); now.Sub(v.looked) >= Interval {
			switch err := v.read(); {
			case err == nil:
				v.problem = ""
			case err.Error() != v.problem:
				v.problem = err.Error()
				v.log.Error("changed file refused, what was read before stays in force", "file", v.names(), "error", err)
			}
			v.looked = now
		}
		v.mu.Unlock()
	}
	return *v.current.Load()
}

func (v *Value[T]) names() string { return strings.Join(v.files, ", ") }

// read reads the files, and parses them if they are not those of the value. What was refused
// may be good by now: a certificate may have become valid.
func (v *Value[T]) read() error {
	contents, digests := make([][]byte, len(v.files)), make([][sha256.Size]byte, len(v.files))
	for i, file := range v.files {
		text, err := input.File(file, maxBytes)
		if err != nil {
			return err
		}
		contents[i], digests[i] = text, sha256.Sum256(text)
	}
	if slices.Equal(digests, v.good) {
		return nil
	}
	value, err := v.parse(contents)
	if err != nil {
		return err
	}
	if v.current.Swap(&value) != nil {
		v.log.Info("file read again", "file", v.names())
	}
	v.good = digests
	return nil
}
