package front

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/ratelimitconfig"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const (
	// lookEvery is how often the files are read to see whether they changed.
	lookEvery = 500 * time.Millisecond
	// settleFor is how long changed files must stay as they are: they may be half written, or some of
	// them exchanged and others not yet.
	settleFor = 100 * time.Millisecond

	maxFileBytes  = policy.MaxBytes
	maxTotalBytes = 16 << 20
	maxEntries    = 2_000 // of a directory and all below it
	maxSaid       = 5     // problems of one log line, and of one answer to an xDS server
)

// FileOptions say which files are the configuration.
type FileOptions struct {
	// Paths are files and directories. Of a directory all files count, also those of directories
	// inside it, whatever their names are. Links to files are followed, links to directories are not.
	// A directory without files is a configuration without domains; a path that does not exist is an
	// error.
	Paths []string
	// Prefix leaves out the files of a directory whose path inside it, with dots in the place of
	// slashes, begins with something else.
	Prefix string
	// IgnoreDotFiles leaves out files and directories of a directory whose names begin with a dot. A
	// ConfigMap's directory has its files there a second time.
	IgnoreDotFiles bool
	Merge          bool // several files may be of one domain
	// StartAnyway lets WatchFiles go on if the first configuration is bad: calls end with an error
	// until there is a good one.
	StartAnyway bool
}

// WatchFiles puts the configuration of the files in force, and each change of it until ctx ends. A
// change is in force within a second. If it is bad, what is in force stays, and the log says why.
func (s *Service) WatchFiles(ctx context.Context, o FileOptions) error {
	first := o.read()
	err := s.takeFiles(first, o.Merge)
	if err != nil && !o.StartAnyway {
		return err
	}
	s.logTaken(err)
	go s.followFiles(ctx, o, first.digest)
	return nil
}

// followFiles takes files that differ from those with the digest, once two looks have seen the same.
func (s *Service) followFiles(ctx context.Context, o FileOptions, taken digest) {
	seen := taken
	for wait := lookEvery; sleep(ctx, wait); {
		wait = lookEvery
		now := o.read()
		switch now.digest {
		case taken: // nothing has changed, or it has changed back
			seen = taken
		case seen: // the change stays as it was at the last look
			taken = seen
			s.logTaken(s.takeFiles(now, o.Merge))
		default: // a change that may be half written
			seen = now.digest
			wait = settleFor
		}
	}
}

// takeFiles puts the configuration of the files in force.
func (s *Service) takeFiles(f files, merge bool) error {
	configs, err := f.parse()
	if err != nil {
		s.CountRejected()
		return err
	}
	return s.Use(configs, merge)
}

// logTaken says what became of a configuration.
func (s *Service) logTaken(err error) {
	switch n := s.Domains(); {
	case err != nil:
		s.o.Log.Error("rate limit configuration rejected, what is in force stays", "error", someOf(err))
	case n == 0:
		s.o.Log.Warn("the rate limit configuration has no domain: no call is limited")
	default:
		s.o.Log.Info("rate limit configuration in force", "domains", n)
	}
}

// someOf is the error with its first problems.
func someOf(err error) error {
	var problems policyfile.Errors
	if !errors.As(err, &problems) || len(problems) <= maxSaid {
		return err
	}
	return fmt.Errorf("%w\nand %d more problems", problems[:maxSaid], len(problems)-maxSaid)
}

// sleep reports false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// files is what the files of a configuration hold at one time, or why they cannot be read.
type files struct {
	files  []file
	err    error
	digest digest // of all of that
}

type file struct {
	name string
	text []byte
}

type digest [sha256.Size]byte

// read reads all files.
func (o *FileOptions) read() files {
	var f files
	f.files, f.err = o.readAll()
	sum := sha256.New()
	add := func(text []byte) {
		_, _ = sum.Write(binary.AppendUvarint(nil, uint64(len(text))))
		_, _ = sum.Write(text)
	}
	for i := range f.files {
		add([]byte(f.files[i].name))
		add(f.files[i].text)
	}
	if f.err != nil {
		add([]byte(f.err.Error()))
	}
	f.digest = digest(sum.Sum(nil))
	return f
}

func (o *FileOptions) readAll() (all []file, err error) {
	total := 0
	for _, path := range o.Paths {
		names, err := o.list(path)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			text, err := input.File(name, maxFileBytes)
			if err != nil {
				return nil, err
			}
			total += len(text)
			if total > maxTotalBytes {
				return nil, fmt.Errorf("the files of the rate limit configuration are more than %d bytes, the most there "+
					"may be", maxTotalBytes)
			}
			all = append(all, file{name, text})
		}
	}
	return all, nil
}

// list is the path, or the files of the directory that it is.
func (o *FileOptions) list(path string) (names []string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	root := filepath.Clean(path) + string(filepath.Separator) // with it a link is followed
	entries := 0
	err = filepath.WalkDir(root, func(name string, e fs.DirEntry, err error) error {
		entries++
		switch {
		case err != nil:
			return err
		case name == root:
			return nil
		case entries > maxEntries:
			return fmt.Errorf("%s has more than %d files and directories, the most there may be", path, maxEntries)
		case o.IgnoreDotFiles && strings.HasPrefix(e.Name(), "."):
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		case e.IsDir(), !o.hasPrefix(path, name):
			return nil
		case e.Type()&fs.ModeSymlink != 0:
			info, err := os.Stat(name)
			if err != nil || info.IsDir() {
				return err
			}
		}
		names = append(names, name)
		return nil
	})
	return names, err
}

// hasPrefix reports whether a file of a directory counts.
func (o *FileOptions) hasPrefix(directory, name string) bool {
	inside, err := filepath.Rel(directory, name)
	return err == nil && strings.HasPrefix(strings.ReplaceAll(inside, string(filepath.Separator), "."), o.Prefix)
}

// parse reads the configurations. An error says all that is wrong with them.
func (f *files) parse() (configs []*ratelimitconfig.Config, err error) {
	if f.err != nil {
		return nil, f.err
	}
	var problems policyfile.Errors
	for i := range f.files {
		c, err := f.files[i].parse()
		var more policyfile.Errors
		switch {
		case errors.As(err, &more):
			problems = append(problems, more...)
		case err != nil:
			return nil, err
		}
		configs = append(configs, c)
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return configs, nil
}

func (f *file) parse() (*ratelimitconfig.Config, error) {
	document, err := policyfile.Parse(f.name, f.text)
	if err != nil {
		return nil, err
	}
	return ratelimitconfig.Read(f.name, document)
}
