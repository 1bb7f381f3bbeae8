package accesslog

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// object is a format of lines that are JSON objects.
type object struct {
	format
	byName map[string][]*place // in lower case; names inside others are joined by dots
	lines  int
}

// newObject makes a format of the names that the begin of a log has, as far as they are
// usual for a field or the caller knows them.
func (o *Options) newObject(sample []string) (*format, error) {
	f := &object{}
	var all []place
	spelled, isLine := map[string]string{}, map[string]bool{} // by name in lower case
	for _, line := range sample {
		n, err := policy.ParseJSON([]byte(line))
		if err != nil {
			continue
		}
		_ = f.walk("", n, func(name string, value *policy.Node) error {
			lower := strings.ToLower(name)
			if _, known := spelled[lower]; !known {
				spelled[lower] = name
				all = append(all, place{name: name})
			}
			if _, ok := cutLine(value.Text, ""); ok {
				isLine[lower] = true
			}
			return nil
		})
	}
	add := func(name string, m meaning) bool {
		as, has := spelled[name]
		known := slices.ContainsFunc(all, func(p place) bool { return p.field == m.field })
		if !has || known || m.line && !isLine[name] {
			return false
		}
		all = append(all, place{name: as, meaning: m})
		return true
	}
	for i := range names {
		for _, name := range names[i].names {
			if add(name, names[i].meaning) && names[i].took != "" {
				add(names[i].took, meaning{field: FieldTook, unit: names[i].unit})
			}
		}
	}
	if _, ofEnvoy := spelled["bytes_received"]; ofEnvoy { // nginx counts headers in what it calls bytes_sent
		add("bytes_received", meaning{field: FieldReceived})
		add("bytes_sent", meaning{field: FieldSent})
	}
	for _, field := range o.Fields {
		if header, ok := strings.CutPrefix(field, headerPrefix); ok {
			for _, name := range headerNames(header) {
				add(name, meaningOf(field))
			}
		}
	}
	return f.end(o, all, true)
}

// compileObject compiles the JSON of Envoy's json_format.
func (o *Options) compileObject(format string) (*format, error) {
	n, err := policy.ParseJSON([]byte(format))
	if err != nil {
		return nil, errors.New("--format begins as a JSON object, and is none")
	}
	var all []place
	f := &object{}
	err = f.walk("", n, func(name string, value *policy.Node) error {
		all = append(all, place{name: name})
		literal, command, rest, err := cutValue(value.Text, operatorValue, "%")
		if err != nil || literal != "" || rest != "" || command == "" {
			return err // or no single value
		}
		meanings, err := operatorMeanings(command)
		for _, m := range meanings {
			all = append(all, place{name: name, meaning: m})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return f.end(o, all, false)
}

// end makes the format of its places. One that is open may have other names than these.
func (f *object) end(o *Options, all []place, open bool) (*format, error) {
	err := o.choose(&f.format, all, open)
	f.byName, f.read = map[string][]*place{}, f.readLine
	for _, p := range f.places {
		name := strings.ToLower(p.name)
		f.byName[name] = append(f.byName[name], p)
	}
	return &f.format, err
}

// walk calls a function with each value that is no object, and with objects that are
// asked for.
func (f *object) walk(prefix string, n *policy.Node, each func(string, *policy.Node) error) error {
	for _, field := range n.Fields {
		name := prefix + field.Name
		if field.Value.Kind == policy.Object && f.byName[strings.ToLower(name)] == nil {
			if err := f.walk(name+".", field.Value, each); err != nil {
				return err
			}
		} else if err := each(name, field.Value); err != nil {
			return err
		}
	}
	return nil
}

// readLine reads a line.
func (f *object) readLine(line string, d *Request) error {
	n, err := policy.ParseJSON([]byte(line))
	if err != nil || n.Kind != policy.Object {
		return errors.New("it is no JSON object")
	}
	f.lines++
	return f.walk("", n, func(name string, value *policy.Node) error {
		for _, p := range f.byName[strings.ToLower(name)] {
			if p.read == f.lines {
				return fmt.Errorf("%s stands in it twice", name)
			}
			p.read = f.lines
			if err := f.take(p, value, d); err != nil {
				return err
			}
		}
		return nil
	})
}

// take takes a value, and of a header each value of a list.
func (f *object) take(p *place, value *policy.Node, d *Request) error {
	switch value.Kind {
	case policy.Null:
		return nil
	case policy.Object:
		return fmt.Errorf("%s is an object: say --map with the name inside it, as %s.NAME", p.name, p.name)
	case policy.List:
		if len(value.Items) > 1 && !strings.HasPrefix(p.field, headerPrefix) {
			return fmt.Errorf("%s is a list of %d", p.name, len(value.Items))
		}
		for _, item := range value.Items {
			if err := f.take(p, item, d); err != nil {
				return err
			}
		}
		return nil
	default:
		return d.put(p, value.Text)
	}
}
