// Package input reads what a person gives a command: files and standard input.
//
// Its invariant: no read takes more memory than its caller allows, and no read waits for
// ever: files must be regular, and all other reads end with the context. The package must
// never import another package of this module.
package input

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrInterrupted is returned by reads whose context has ended.
var ErrInterrupted = errors.New("interrupted")

// Irregular is the error of a file that is not regular.
type Irregular struct {
	Name string
	Mode fs.FileMode
}

func (i *Irregular) Error() string {
	kind := "something else"
	switch {
	case i.Mode.IsDir():
		kind = "a directory"
	case i.Mode&fs.ModeNamedPipe != 0:
		kind = "a pipe"
	case i.Mode&fs.ModeDevice != 0:
		kind = "a device"
	case i.Mode&fs.ModeSocket != 0:
		kind = "a socket"
	}
	return i.Name + " is " + kind + ", not a regular file"
}

// File reads a regular file of at most maxBytes.
func File(name string, maxBytes int64) ([]byte, error) {
	return read(os.OpenFile, name, maxBytes)
}

// FileIn reads a regular file in a folder or below it. Neither .. nor a symbolic
// link leads out.
func FileIn(root *os.Root, name string, maxBytes int64) ([]byte, error) {
	return read(root.OpenFile, name, maxBytes)
}

func read(open func(string, int, fs.FileMode) (*os.File, error), name string, maxBytes int64) ([]byte, error) {
	// Without O_NONBLOCK, opening a pipe waits for its writer.
	f, err := open(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat() // of the open file: the name may stand for another by now
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, &Irregular{Name: name, Mode: info.Mode()}
	case info.Size() > maxBytes:
		return nil, fmt.Errorf("%s is %d bytes, the most is %d", name, info.Size(), maxBytes)
	}
	return bounded(f, name, maxBytes)
}

// bounded also bounds files that grow, and those of /proc, whose size is 0.
func bounded(r io.Reader, name string, maxBytes int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxBytes+1))
	if err == nil && int64(len(text)) > maxBytes {
		return nil, fmt.Errorf("%s is more than %d bytes, the most there may be", name, maxBytes)
	}
	return text, err
}

// All reads at most maxBytes from a reader that may be a terminal or a pipe. The
// name is for messages.
func All(ctx context.Context, r io.Reader, name string, maxBytes int64) ([]byte, error) {
	return bounded(Until(ctx, r), name, maxBytes)
}

// Open opens a file or a pipe for reading with Until. It waits for the writer of a
// pipe.
func Open(ctx context.Context, name string) (*os.File, error) {
	type opened struct {
		file *os.File
		err  error
	}
	done := make(chan opened, 1)
	go func() {
		f, err := os.Open(name)
		done <- opened{f, err}
	}()
	select {
	case o := <-done:
		return o.file, o.err
	case <-ctx.Done():
		return nil, ErrInterrupted
	}
}

// Until returns what reads from r until ctx ends. It reads ahead, and leaves a read under way
// behind when ctx ends, so the command has to end then, too.
func Until(ctx context.Context, r io.Reader) io.Reader {
	from, to := io.Pipe()
	if context.AfterFunc(ctx, func() { _ = to.CloseWithError(ErrInterrupted) }); ctx.Err() != nil {
		_ = to.CloseWithError(ErrInterrupted) // at once
	}
	go func() {
		_, err := io.Copy(to, r)
		_ = to.CloseWithError(err)
	}()
	return from
}
