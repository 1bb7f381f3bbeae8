// Package accesslog reads the access logs of Envoy, nginx, Caddy, load balancers and
// programs that write like them. It returns their requests in the order of time, with
// the paths that Envoy routes by.
//
// Its invariant: a line is read as exactly one request, or it is counted as left out. A
// client can write the separators of a format into a header; such a line fits no format
// (text.go says why). A file that is damaged or cut off ends with an error. Memory is
// bounded, whatever a log holds. The package must never import a policy's rules or the
// filter.
//
// The way of a line: lines.go takes it out of the file, and out of what a container's
// runtime wrote around it. text.go or object.go cut it into values. fields.go puts each value
// into its field of the request, values.go reads the value's text, and log.go merges the
// requests of all files. Before that, Open looks into each file: formats.go finds out which
// format the file has, and names.go which of the format's values are which fields.
package accesslog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// Request is one line of a log. Texts that the line lacks are empty.
type Request struct {
	Ns       int64 // when it began; if the log says only when it ended, then that
	TookNs   int64 // until its end; 0 = unknown, like the numbers of bytes
	Status   int   // 0 = unknown
	Received int64 // bytes of the request's body
	Sent     int64 // bytes of the answer's body
	Method   string
	Host     string
	Path     string // as Envoy routes it, with its query
	ClientIP string // without port
	Route    string
	Headers  [][2]string // a header that the line has twice is here twice

	Claims     []Claim     // of its JWTs: those that were asked for
	Properties [][2]string // attributes that were asked for, by path; points join its segments
}

// Claim is one claim of a JWT.
type Claim struct {
	Path []string // the provider, then the segments of the claim's own path
	Text string
}

// Options say what to read.
type Options struct {
	Names  []string          // files, and - for In
	In     io.Reader         // standard input
	Format string            // the name of a format, or the format itself; empty = find out
	Map    map[string]string // by field, the name that the log has for it
	Fields []string          // fields that each log must have, beside the time
	Wanted []string          // fields that are read if the log has them

	Sort time.Duration // by how much time lines may be out of order
}

// How many lines and bytes at the begin of a file show its format.
const (
	sampleLines = 1000
	sampleBytes = 256 << 10
)

// Open looks into all files: which formats they have, whether they have what is needed, and
// when they begin.
func Open(ctx context.Context, o Options) (*Log, error) {
	l := &Log{ctx: ctx, options: o, sorter: sorter{spanNs: int64(o.Sort)}}
	if err := checkTwice(o.Names); err != nil {
		return nil, err
	}
	for _, name := range o.Names {
		if err := l.add(name); err != nil {
			l.Close()
			return nil, err
		}
	}
	slices.SortStableFunc(l.files, older)
	return l, nil
}

// checkTwice rejects a file that is named twice, also by a link.
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

func older(a, b *file) int { return cmp.Compare(a.orderNs, b.orderNs) }

// add reads the begin of a file. It closes a file that can be opened again when its time has come.
func (l *Log) add(name string) error {
	in, err := openLines(l.ctx, name, l.options.In)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("read a log: %w", err)
	} else if err != nil {
		return err
	}
	f := &file{name: in.name, lines: in}
	l.files = append(l.files, f) // for Close
	sample, err := in.sample()
	if in.again {
		in.Close()
		f.lines = nil
	}
	if err != nil {
		return err
	}
	f.runtime = containerOf(sample)
	if f.runtime != nil {
		sample = f.runtime.unwrapAll(sample)
	}
	f.format, err = l.options.formatOf(f.name, sample)
	if err != nil {
		return err
	}
	l.places = append(l.places, f.format.places...)
	l.names = append(l.names, namesOf(f.format.columns)...)
	if err := l.addReading(f); err != nil {
		return err
	}
	if err := f.begin(sample); err != nil {
		return err
	}
	return l.options.checkBalancer(f, sample)
}

// addReading notes where the file has the fields that each log must have. A file without one
// is an error.
func (l *Log) addReading(f *file) error {
	reading := Reading{Log: f.name, Format: f.format.name, Fields: map[string]string{}}
	if f.runtime != nil {
		reading.Format += " in " + f.runtime.name
	}
	for _, field := range append([]string{FieldTime}, l.options.Fields...) {
		p := f.format.places.of(field)
		if p == nil {
			return lacking(f.name, field, namesOf(f.format.columns))
		}
		reading.Fields[p.field] = p.name
	}
	if took := f.format.places.of(FieldTook); took != nil && f.format.places.of(FieldTime).isEnd {
		reading.Fields[FieldTime] += " - " + took.name
	}
	if l.options.Format == "" {
		l.Readings = append(l.Readings, reading)
	}
	return nil
}

// begin finds out when the file begins. That no line can be read is an error.
func (f *file) begin(sample []string) error {
	var first, why string
	for _, line := range sample {
		r := &Request{}
		err := f.format.read(line, f.format.places, r)
		if err == nil && r.Ns != 0 {
			f.orderNs = r.Ns
			return nil
		}
		if err != nil && why == "" {
			first, why = line, err.Error()
		}
	}
	if why == "" {
		return unreadable(f.name, nil, "")
	}
	return unreadable(f.name, []string{first}, why)
}

// checkBalancer rejects a log that has a load balancer's addresses for its clients, if the log has the
// clients' beside them, and --map does not say which are meant.
func (o *Options) checkBalancer(f *file, sample []string) error {
	if !slices.Contains(o.Fields, FieldClientIP) || o.Map[FieldClientIP] != "" {
		return nil
	}
	forwarded := HeaderField("x-forwarded-for")
	both := Options{Fields: []string{FieldClientIP, forwarded}}
	peers := *f.format
	var err error
	peers.places, err = peers.placesFor(&both)
	if err != nil || peers.places.of(forwarded) == nil {
		return err
	}
	var example [2]string
	all, behind := 0, 0
	for _, line := range sample {
		r, err := peers.request(line)
		if err != nil || r.ClientIP == "" {
			continue
		}
		all++
		if len(r.Headers) > 0 && !isPublic(r.ClientIP) && isPublic(address(r.Headers[0][1])) {
			example = [2]string{r.ClientIP, r.Headers[0][1]}
			behind++
		}
	}
	if behind > 0 && 2*behind >= all {
		return behindBalancer(f.name, peers.places.of(FieldClientIP).name, example[0], example[1])
	}
	return nil
}
