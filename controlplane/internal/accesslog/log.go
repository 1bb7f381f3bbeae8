package accesslog

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
)

// Log is the requests of some files in the order of time.
type Log struct {
	Stats

	ctx     context.Context
	options Options
	files   []*file  // that have more requests, in the order of their next requests
	places  places   // of all files
	names   []string // of all values that the formats of the files know
	sorter  sorter
}

// Stats count the lines of all files.
type Stats struct {
	Lines    int64    `json:"lines"`
	Requests int64    `json:"requests"`
	Unknown  int64    `json:"unknown"`    // lines that do not fit the format
	Example  *Example `json:"example"`    // the first unknown line
	NoHTTP   int64    `json:"no_request"` // of connections that brought no request
	Refused  int64    `json:"refused"`    // with a path that Envoy answers 400
	BadPath  string   `json:"bad_path"`   // the first such path
	Unended  int64    `json:"unended"`    // last lines without an end, left out
	Late     int64    `json:"late"`       // out of order by more than they may be
	FirstNs  int64    `json:"first_ns"`   // of the requests
	LastNs   int64    `json:"last_ns"`
	GrainNs  int64    `json:"grain_ns"` // of the log's clock; of several, of the coarsest

	Readings []Reading `json:"readings,omitempty"` // what was found out
	Empty    []string  `json:"empty,omitempty"`    // fields that were asked for, and that no line had
	NoStatus bool      `json:"no_status"`          // no line says how the request was answered
}

// Reading is the format that a log was found to have, and where it has the fields that were
// asked for.
type Reading struct {
	Log    string            `json:"log"`
	Format string            `json:"format"`
	Fields map[string]string `json:"fields"`
}

// Example is an unknown line.
type Example struct {
	Log    string `json:"log"`
	Number int64  `json:"line"`
	Text   string `json:"text"`
	Why    string `json:"why"`
}

// Time returns an instant of the statistics.
func Time(ns int64) time.Time { return time.Unix(0, ns).UTC() }

// file is a log that is read.
type file struct {
	name    string
	lines   *lines     // nil: not open yet
	runtime *container // that wrote the file; nil = the server did
	format  *format
	number  int64    // of the line that was read last
	next    *Request // nil: not read yet
	orderNs int64    // when next was; while it is not read, about when it was: the time of an early line
	bytes   int      // about what next takes
	grain   int64
}

const (
	interruptLines = 1 << 12 // a reader looks so often whether it is interrupted
	requestBytes   = 200     // about what a request takes, beside its texts

	// A log is given up early if more lines than these, and more than this share of all lines so far,
	// are unknown or out of order.
	hopelessLines = 10_000
	hopelessShare = 0.5
)

// Close closes the files.
func (l *Log) Close() {
	for _, f := range l.files {
		f.lines.Close()
	}
}

// Next returns the next request, io.EOF behind the last.
func (l *Log) Next() (*Request, error) {
	for {
		if r := l.sorter.pop(len(l.files) == 0); r != nil {
			l.count(r)
			if l.Late > hopelessLines {
				return r, l.CheckOrder(hopelessShare)
			}
			return r, nil
		}
		if len(l.files) == 0 {
			return nil, l.end()
		}
		if err := l.advance(l.files[0]); err != nil {
			return nil, err
		}
		slices.SortStableFunc(l.files, older)
	}
}

// advance gives the sorter the next request of a file, and reads the one behind it.
func (l *Log) advance(f *file) (err error) {
	switch {
	case f.next != nil:
		l.sorter.push(f.next, f.bytes)
		f.next = nil
	case f.lines == nil: // its time has come
		f.lines, err = openLines(l.ctx, f.name, nil)
		if err != nil {
			return err
		}
	}
	for f.next == nil {
		if f.number%interruptLines == 0 && l.ctx.Err() != nil {
			return input.ErrInterrupted
		}
		line, reason, err := f.line()
		switch {
		case errors.Is(err, io.EOF):
			l.finish(f)
			return nil
		case err != nil:
			return err
		}
		if err := l.addLine(f, line, reason); err != nil {
			return err
		}
	}
	return nil
}

// line reads the next line of the file, without what a container's runtime wrote around it. A reason
// says why the line is left out; an err ends the file.
func (f *file) line() (line string, reason, err error) {
	line, reason, err = f.lines.next()
	f.number++
	if reason == nil && err == nil && f.runtime != nil {
		line, reason = f.runtime.unwrap(line)
	}
	return line, reason, err
}

// finish drops a file that has no more requests.
func (l *Log) finish(f *file) {
	f.lines.Close()
	if f.runtime != nil {
		l.Unended += int64(len(f.runtime.begun))
	}
	l.GrainNs = max(l.GrainNs, f.grain)
	l.files = slices.DeleteFunc(l.files, func(o *file) bool { return o == f })
}

// addLine takes the request of a line, or counts the line as left out: for the reason that is given, or
// because it does not fit the format.
func (l *Log) addLine(f *file, line string, reason error) error {
	r := &Request{}
	if reason == nil {
		r, reason = f.format.request(line)
	}
	if reason != nil {
		return l.leaveOut(f, line, r, reason)
	}
	l.Lines++
	f.setNext(r, line)
	return nil
}

// leaveOut counts a line that is left out, unless it is none: blank, a comment, or a part of a later
// line. The request has what was read before the reason came up. Too many unknown lines are an error.
func (l *Log) leaveOut(f *file, line string, r *Request, reason error) error {
	isBlank := strings.TrimSpace(line) == ""
	switch {
	case errors.Is(reason, errUnended):
		l.Unended++
		return nil
	case isBlank, errors.Is(reason, errGoesOn), errors.Is(reason, errComment):
		return nil
	}
	l.Lines++
	switch {
	case errors.Is(reason, errNoHTTP):
		l.NoHTTP++
	case errors.Is(reason, errBadPath):
		l.Refused++
		if l.Refused == 1 {
			l.BadPath = clip(r.Path)
		}
	default:
		l.Unknown++
		if l.Example == nil {
			l.Example = &Example{Log: f.name, Number: f.number, Text: clip(line), Why: reason.Error()}
		}
		if l.Unknown > hopelessLines {
			return l.CheckUnknown(hopelessShare)
		}
	}
	return nil
}

// setNext makes a request the next of the file.
func (f *file) setNext(r *Request, line string) {
	f.next = r
	f.orderNs = r.Ns
	f.bytes = requestBytes + len(line)
	logged := r.Ns
	if f.format.places.of(FieldTime).isEnd {
		logged += r.TookNs
	}
	f.grain = coarsest(f.grain, logged)
}

// count counts a request that goes out. One that is late gets the time of the request before
// it, and keeps the time of its end.
func (l *Log) count(r *Request) {
	if r.Ns < l.LastNs {
		l.Late++
		r.TookNs = max(r.TookNs-(l.LastNs-r.Ns), 0)
		r.Ns = l.LastNs
	}
	if l.Requests == 0 {
		l.FirstNs = r.Ns
	}
	l.Requests++
	l.LastNs = r.Ns
}

// end returns an error for a field of --map that no line had, and notes other fields that no
// line had. Else it returns io.EOF.
func (l *Log) end() error {
	had := slices.DeleteFunc(slices.Clone(l.places), func(p *place) bool { return !p.had })
	for _, said := range slices.Sorted(maps.Keys(l.options.Map)) {
		field, _ := mappedField(said)
		if l.places.of(field) != nil && had.of(field) == nil {
			return nothingMapped(said, l.options.Map[said], l.names)
		}
	}
	l.NoStatus = had.of(FieldStatus) == nil
	for _, field := range l.options.Fields {
		if had.of(field) == nil {
			l.Empty = append(l.Empty, field)
		}
	}
	return io.EOF
}

// Has reports whether a line so far has had the field.
func (l *Log) Has(field string) bool {
	return slices.ContainsFunc(l.places, func(p *place) bool { return p.had && p.field == field })
}

// sorter puts requests into the order of time. It finds the place of a request that comes late by at
// most a span.
type sorter struct {
	spanNs int64
	queue  []queued // in the order of time, and of lines at equal times
	bytes  int      // about what it takes
}

type queued struct {
	request *Request
	bytes   int
}

// What a sorter holds is bounded. Beyond that the oldest goes on early.
const (
	maxSorting      = 1 << 18
	maxSortingBytes = 128 << 20
)

// push takes a request. Most come nearly in order, so their place is looked for from the end.
func (s *sorter) push(r *Request, bytes int) {
	at := len(s.queue)
	for at > 0 && s.queue[at-1].request.Ns > r.Ns {
		at--
	}
	s.queue = slices.Insert(s.queue, at, queued{r, bytes})
	s.bytes += bytes
}

// pop returns the oldest request if no older one can come, or if all are in.
func (s *sorter) pop(isAll bool) *Request {
	if len(s.queue) == 0 {
		return nil
	}
	oldest, newest := s.queue[0], s.queue[len(s.queue)-1]
	isFull := len(s.queue) > maxSorting || s.bytes >= maxSortingBytes
	if !isAll && !isFull && oldest.request.Ns > newest.request.Ns-s.spanNs {
		return nil
	}
	s.queue[0] = queued{}
	s.queue = s.queue[1:]
	s.bytes -= oldest.bytes
	return oldest.request
}
