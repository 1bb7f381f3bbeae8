package accesslog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
)

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
		sample = f.runtime.takeAll(sample)
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
		p := f.format.place(field)
		if p == nil {
			return lacking(f.name, field, namesOf(f.format.columns))
		}
		reading.Fields[p.field] = p.name
	}
	if took := f.format.place(FieldTook); took != nil && f.format.place(FieldTime).isEnd {
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

// checkBalancer rejects a log whose addresses are those of a load balancer, if the log has the
// clients' beside them, and --map does not say which are meant.
func (o *Options) checkBalancer(f *file, sample []string) error {
	if !slices.Contains(o.Fields, FieldClientIP) || o.Map[FieldClientIP] != "" {
		return nil
	}
	forwarded := HeaderField("x-forwarded-for")
	both := Options{Fields: []string{FieldClientIP, forwarded}}
	peers := *f.format
	err := peers.choosePlaces(&both)
	if err != nil || peers.place(forwarded) == nil {
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
		return behindBalancer(f.name, peers.place(FieldClientIP).name, example[0], example[1])
	}
	return nil
}
