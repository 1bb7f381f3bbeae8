package accesslog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
)

// Log is the requests of some files in the order of time.
type Log struct {
	Stats

	ctx     context.Context
	options Options
	sources []*source // in the order of their next lines
	places  []*place  // of all files
	names   []string  // of all files' samples, where formats name their fields
	sorter  sorter
}

// source is one file.
type source struct {
	name   string
	lines  *lines     // nil: not open yet
	inside *container // whose runtime wrote the file; nil = the server did
	format *format
	number int64
	ns     int64    // of the next line
	next   *Request // nil: none is read yet
	bytes  int      // about what next takes
	grain  int64
}

// How many lines and bytes at the begin of a file show its format.
const (
	sampleLines = 1000
	sampleBytes = 256 << 10
)

// Open looks into all files: what their formats are, whether they have what is
// needed, and when they begin.
func Open(ctx context.Context, o Options) (*Log, error) {
	l := &Log{ctx: ctx, options: o, sorter: sorter{spanNs: int64(o.Sort)}}
	if err := checkTwice(o.Names); err != nil {
		return nil, err
	}
	for _, name := range o.Names {
		if err := l.look(name); err != nil {
			l.Close()
			return nil, err
		}
	}
	slices.SortStableFunc(l.sources, older)
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

func older(a, b *source) int { return cmp.Compare(a.ns, b.ns) }

// look reads the begin of a file.
func (l *Log) look(name string) error {
	in, err := openLines(l.ctx, name, l.options.In)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("read a log: %w", err)
	} else if err != nil {
		return err
	}
	s := &source{name: in.name, lines: in}
	l.sources = append(l.sources, s) // for Close
	sample, err := in.sample()
	if err == nil {
		err = l.recognize(s, sample)
	}
	if in.again { // to be opened again when its time has come
		in.Close()
		s.lines = nil
	}
	return err
}

// recognize finds the format of a file, and refuses one that lacks a field.
func (l *Log) recognize(s *source, sample []string) (err error) {
	reading := Reading{s.name, "", map[string]string{}}
	s.inside = containerOf(sample)
	if s.inside != nil {
		sample = s.inside.takeAll(sample)
	}
	if s.format, reading.Format, err = l.options.recognize(s.name, sample); err != nil {
		return err
	}
	if s.inside != nil {
		reading.Format += " in " + s.inside.name
	}
	has := s.format
	l.places = append(l.places, has.places...)
	l.names = append(l.names, has.names...)
	for _, field := range append([]string{FieldTime}, l.options.Fields...) {
		p := find(has.places, field)
		if p == nil {
			return lacking(s.name, field, has.names)
		}
		reading.Fields[p.field] = p.name
	}
	if took := find(has.places, FieldTook); took != nil && find(has.places, FieldTime).end {
		reading.Fields[FieldTime] += " - " + took.name
	}
	if l.options.Format == "" {
		l.Readings = append(l.Readings, reading)
	}
	first, why := "", ""
	for _, line := range sample {
		d := &Request{}
		err := s.format.read(line, d)
		if err == nil && d.Ns != 0 {
			s.ns = d.Ns
			return l.options.checkBalancer(s.name, sample)
		}
		if err != nil && why == "" {
			first, why = clip(line), err.Error()
		}
	}
	return unknownFormat(s.name, first, why)
}

// find returns where a format has a field.
func find(places []*place, field string) *place {
	for _, p := range places {
		if p.field == field || field == FieldQuery && p.field == FieldPath && !p.bare {
			return p
		}
	}
	return nil
}

// checkBalancer refuses to take the address of a load balancer for the client's, where
// the log has both and nobody has said which one is meant.
func (o *Options) checkBalancer(log string, sample []string) error {
	if !slices.Contains(o.Fields, FieldClientIP) || o.Map[FieldClientIP] != "" {
		return nil
	}
	both := Options{Format: o.Format, Fields: []string{FieldClientIP, HeaderField("x-forwarded-for")}}
	f, _, err := both.recognize(log, sample)
	if err != nil {
		return err
	}
	var example [2]string
	behind := 0
	all := count(sample, func(line string) bool {
		d := &Request{}
		if f.read(line, d) != nil || d.ClientIP == "" {
			return false
		}
		if len(d.Headers) > 0 && isPrivateText(d.ClientIP) && !isPrivateText(address(d.Headers[0][1])) {
			example = [2]string{d.ClientIP, d.Headers[0][1]}
			behind++
		}
		return true
	})
	if behind > 0 && 2*behind >= all {
		return behindBalancer(log, find(f.places, FieldClientIP).name, example[0], example[1])
	}
	return nil
}

// Close closes the files.
func (l *Log) Close() {
	for _, s := range l.sources {
		s.lines.Close()
	}
}

// Next returns the next request, io.EOF behind the last.
func (l *Log) Next() (*Request, error) {
	for {
		if r := l.sorter.pop(len(l.sources) == 0); r != nil {
			l.settle(r)
			if l.Late > hopelessLines {
				return r, l.CheckOrder(0.5)
			}
			return r, nil
		}
		if len(l.sources) == 0 {
			return nil, l.end()
		}
		s := l.sources[0]
		switch {
		case s.next != nil:
			l.sorter.push(s.next, s.bytes)
		case s.lines == nil: // its time has come
			var err error
			if s.lines, err = openLines(l.ctx, s.name, nil); err != nil {
				return nil, err
			}
		}
		if err := l.advance(s); err != nil {
			return nil, err
		}
		slices.SortStableFunc(l.sources, older)
	}
}

// end refuses logs of which no line had a field that --map names, and notes other
// fields that none had.
func (l *Log) end() error {
	had := slices.DeleteFunc(slices.Clone(l.places), func(p *place) bool { return !p.had })
	for _, said := range slices.Sorted(maps.Keys(l.options.Map)) {
		field := mapped(said).field
		if find(l.places, field) != nil && find(had, field) == nil {
			return nothingMapped(said, l.options.Map[said], l.names)
		}
	}
	l.NoStatus = find(had, FieldStatus) == nil
	for _, field := range l.options.Fields {
		if find(had, field) == nil {
			l.Empty = append(l.Empty, field)
		}
	}
	return io.EOF
}

// Has reports whether a line so far has had the field.
func (l *Log) Has(field string) bool {
	return slices.ContainsFunc(l.places, func(p *place) bool { return p.had && p.field == field })
}

// settle counts a request that goes out. One that is late gets the time of the one
// before it, and ends when it did.
func (l *Log) settle(r *Request) {
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

// advance reads the next request of a file, and drops a file that has none.
func (l *Log) advance(s *source) error {
	for s.next = nil; s.next == nil; {
		line, err := s.lines.next()
		s.number++
		if s.number%interruptLines == 0 && l.ctx.Err() != nil {
			return input.ErrInterrupted
		}
		if s.inside != nil && err == nil {
			line, err = s.inside.take(line)
		}
		switch {
		case errors.Is(err, errGoesOn):
		case errors.Is(err, io.EOF):
			s.lines.Close()
			if s.inside != nil {
				l.Unended += int64(len(s.inside.begun))
			}
			l.GrainNs = max(l.GrainNs, s.grain)
			l.sources = slices.DeleteFunc(l.sources, func(o *source) bool { return o == s })
			return nil
		case errors.Is(err, errUnended):
			l.Unended++
		case err != nil && !errors.Is(err, errLong) && !errors.Is(err, errNoContainer):
			return err
		case strings.TrimSpace(line) != "":
			if err := l.parse(s, line, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// parse counts a line, and takes its request if it has one.
func (l *Log) parse(s *source, line string, err error) error {
	l.Lines++
	d := &Request{}
	if err == nil {
		err = s.format.read(line, d)
	}
	if err == nil {
		err = d.end(s.format.places)
	}
	switch {
	case err == nil:
		s.next, s.ns, s.bytes = d, d.Ns, fixedBytes+len(line)
		logged := d.Ns
		if find(s.format.places, FieldTime).end {
			logged += d.TookNs
		}
		s.grain = coarsest(s.grain, logged)
	case errors.Is(err, errComment):
		l.Lines--
	case errors.Is(err, errNoHTTP):
		l.NoHTTP++
	case errors.Is(err, errRefused):
		if l.Refused++; l.Refused == 1 {
			l.BadPath = clip(d.Path)
		}
	default:
		if l.Unknown++; l.Example == nil {
			l.Example = &Example{Log: s.name, Number: s.number, Text: clip(line), Why: err.Error()}
		}
		if l.Unknown > hopelessLines {
			return l.CheckUnknown(0.5)
		}
	}
	return nil
}

const (
	interruptLines = 1 << 12
	hopelessLines  = 10_000
	fixedBytes     = 200 // of a request, beside its texts
)
