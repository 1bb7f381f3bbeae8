package accesslog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
)

// Log is the requests of some files in the order of time.
type Log struct {
	Stats

	ctx     context.Context
	options Options
	wanted  map[string]bool
	sources []*source // not open yet, in the order of their first lines
	open    []*source // a heap: the one with the oldest line first
	objects []*object // the formats of JSON logs
	sorter  sorter
	last    int64
	read    atomic.Int64
	size    int64
	found   found
}

// source is one file.
type source struct {
	name    string
	lines   *lines
	pending []sampled // the first lines, of what cannot be read twice
	ended   error     // what follows them, nil = more lines
	format  format
	number  int64
	next    *Request
	grain   resolution
}

// sampled is a line that was read to find the format out. Of a line that is too long
// it is the begin.
type sampled struct {
	text []byte
	err  error // errLong, errUnended
}

// How many lines and bytes at the begin of a file show its format.
const (
	sampleLines = 1000
	sampleBytes = 1 << 20
)

// Open looks into all files: what their formats are, whether they have what is
// needed, and when they begin.
func Open(ctx context.Context, o Options) (*Log, error) {
	l := &Log{ctx: ctx, options: o, wanted: map[string]bool{}, sorter: sorter{spanNs: int64(o.Sort)}}
	for _, field := range o.Fields {
		l.wanted[field] = true
	}
	if err := checkTwice(o.Names); err != nil {
		return nil, err
	}
	for _, name := range o.Names {
		size, ok := Again(name)
		if !ok {
			l.size = -1
			break
		}
		l.size += size
	}
	for _, name := range o.Names {
		s, err := l.look(name)
		if err != nil {
			l.Close()
			return nil, err
		}
		l.sources = append(l.sources, s)
	}
	slices.SortStableFunc(l.sources, func(a, b *source) int { return compare(a.next.Ns, b.next.Ns) })
	return l, nil
}

// checkTwice refuses a file that is named twice, also by a link.
func checkTwice(names []string) error {
	infos := make([]os.FileInfo, len(names))
	for i, name := range names {
		infos[i], _ = os.Stat(name) // openLines says what is wrong with it
		for j := range i {
			switch {
			case names[j] == name:
				return fmt.Errorf("%s is given twice: its requests would count twice", name)
			case name != "-" && names[j] != "-" && os.SameFile(infos[j], infos[i]):
				return fmt.Errorf("%s and %s are the same file: its requests would count twice", names[j], name)
			}
		}
	}
	return nil
}

func compare(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// look reads the begin of a file.
func (l *Log) look(name string) (*source, error) {
	_, again := Again(name)
	read := &l.read
	if again {
		read = new(atomic.Int64)
	}
	in, err := openLines(l.ctx, name, l.options.In, read)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
			err = fmt.Errorf("read a log: %w", err)
		}
		return nil, err
	}
	s := &source{name: in.name, lines: in}
	for size := 0; len(s.pending) < sampleLines && size < sampleBytes && s.ended == nil; {
		line, err := in.next()
		if err == nil || errors.Is(err, errUnended) || errors.Is(err, errLong) {
			s.pending = append(s.pending, sampled{bytes.Clone(line), err})
			size += len(line)
		} else {
			s.ended = err
		}
	}
	if s.ended != nil && !errors.Is(s.ended, io.EOF) {
		in.Close()
		return nil, s.ended
	}
	if err := l.recognize(s); err != nil {
		in.Close()
		return nil, err
	}
	if again { // to be opened again when its time has come
		in.Close()
		s.lines, s.pending, s.ended = nil, nil, nil
	}
	s.number = 0
	return s, nil
}

// Again reports whether a name is a file that can be read more than once, and its size.
func Again(name string) (size int64, ok bool) {
	info, err := os.Stat(name)
	if name == "-" || err != nil || !info.Mode().IsRegular() {
		return 0, false
	}
	return info.Size(), true
}

// recognize finds the format of a file, and refuses one that lacks a field.
func (l *Log) recognize(s *source) (err error) {
	if l.options.Format != "" {
		s.format, err = l.options.newFormat(l.options.Format)
	} else {
		s.format, err = l.options.guess(s.name, s.pending, l.wanted)
	}
	if err != nil {
		return err
	}
	for _, line := range s.pending {
		l.found.reset()
		if s.format.read(line.text, &l.found, l.wanted) == nil && l.found.hasTime && s.next == nil {
			s.next = &Request{Ns: l.found.ns}
		}
	}
	has := s.format.provides()
	for field := range l.options.Map {
		mapped := targetOf(field)
		has = append(has, mapped.provides()...)
	}
	o, isObject := s.format.(*object)
	if isObject {
		l.objects = append(l.objects, o)
	}
	for _, field := range append([]string{FieldTime}, l.options.Fields...) {
		if !slices.Contains(has, field) {
			return &LackingError{Log: s.name, Field: field, JSON: isObject}
		}
	}
	if s.next == nil {
		return &UnknownFormat{Name: s.name, Line: firstLine(s.pending)}
	}
	return nil
}

// Close closes the files.
func (l *Log) Close() {
	for _, s := range append(l.open, l.sources...) {
		if s.lines != nil {
			s.lines.Close()
		}
	}
}

// Progress says how many bytes of how many are read; -1: nobody knows.
func (l *Log) Progress() (read, size int64) { return l.read.Load(), l.size }

// Next returns the next request, io.EOF behind the last.
func (l *Log) Next() (*Request, error) {
	for {
		if r := l.sorter.pop(len(l.open) == 0 && len(l.sources) == 0); r != nil {
			l.settle(r)
			if l.Late > hopelessLines && l.Late > l.Requests/2 {
				return nil, &Disorder{l.Stats}
			}
			return r, nil
		}
		s, err := l.oldest()
		if err != nil {
			return nil, err
		}
		if s == nil && len(l.sorter.heap) > 0 {
			continue
		}
		if s == nil {
			return nil, l.end()
		}
		l.sorter.push(s.next)
		if err := l.advance(s); err != nil {
			return nil, err
		}
	}
}

// end refuses JSON logs of which no line had a field that --map names: the name is
// another. Other fields the begin of each log has shown.
func (l *Log) end() error {
	for field := range l.options.Map {
		seen := false
		for _, o := range l.objects {
			seen = seen || o.seen[field]
		}
		if len(l.objects) > 0 && l.wanted[field] && !seen {
			return &LackingError{Field: field, JSON: true}
		}
	}
	return io.EOF
}

// settle counts a request that goes out. One that is late gets the time of the one
// before it.
func (l *Log) settle(r *Request) {
	if r.Ns < l.last {
		l.Late++
		r.Ns = l.last
	}
	l.last = r.Ns
	if l.Requests == 0 {
		l.FirstNs = r.Ns
	}
	l.Requests++
	l.LastNs = r.Ns
}

// oldest returns the open file with the oldest line, after those were opened that
// begin before it; nil: all files are read.
func (l *Log) oldest() (*source, error) {
	for len(l.sources) > 0 && (len(l.open) == 0 || l.sources[0].next.Ns <= l.open[0].next.Ns) {
		s := l.sources[0]
		l.sources = l.sources[1:]
		if s.lines == nil {
			var err error
			if s.lines, err = openLines(l.ctx, s.name, nil, &l.read); err != nil {
				return nil, err
			}
		}
		l.open = append(l.open, s)
		if err := l.advance(s); err != nil {
			return nil, err
		}
	}
	if len(l.open) == 0 {
		return nil, nil
	}
	return l.open[0], nil
}

// advance reads the next request of an open file.
func (l *Log) advance(s *source) error {
	for {
		line, err := s.read()
		switch {
		case errors.Is(err, io.EOF):
			s.lines.Close()
			l.GrainNs = max(l.GrainNs, s.grain.grain)
			l.open = slices.DeleteFunc(l.open, func(o *source) bool { return o == s })
			return nil
		case errors.Is(err, errUnended):
			l.Unended++
			continue
		case err != nil && !errors.Is(err, errLong):
			return err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if s.next, err = l.parse(s, line, err); err != nil {
			return err
		}
		if s.next != nil {
			slices.SortStableFunc(l.open, func(a, b *source) int { return compare(a.next.Ns, b.next.Ns) })
			return nil
		}
	}
}

func (s *source) read() ([]byte, error) {
	s.number++
	if len(s.pending) > 0 {
		line := s.pending[0]
		s.pending = s.pending[1:]
		return line.text, line.err
	}
	if s.ended != nil {
		return nil, s.ended
	}
	return s.lines.next()
}

// parse counts a line, and returns its request; nil: it has none.
func (l *Log) parse(s *source, line []byte, err error) (*Request, error) {
	if l.Lines++; l.Lines%interruptLines == 0 && l.ctx.Err() != nil {
		return nil, input.ErrInterrupted
	}
	l.found.reset()
	if err == nil {
		err = s.format.read(line, &l.found, l.wanted)
	}
	var r *Request
	if err == nil {
		r, err = l.found.request(l.wanted)
	}
	switch {
	case err == nil:
		s.grain.add(l.found.ns)
		return r, nil
	case errors.Is(err, errNoHTTP):
		l.NoHTTP++
		return nil, nil
	}
	l.Unknown++
	if l.Example == nil {
		l.Example = &Example{Log: s.name, Number: s.number, Text: clip(line), Why: err.Error()}
	}
	if l.Unknown > hopelessLines && l.Unknown > l.Lines/2 {
		return nil, &UnknownLines{l.Stats}
	}
	return nil, nil
}

const (
	interruptLines = 1 << 12
	hopelessLines  = 10_000
)
