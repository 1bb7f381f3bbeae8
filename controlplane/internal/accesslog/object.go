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
	fields
	byName map[string][]*place // in lower case; names inside others are joined by dots
	lines  int
}

// newObject makes a format of the names that the begin of a log has, as far as they are
// usual for a field or the caller knows them.
func (o *Options) newObject(sample []string) (*object, error) {
	f := &object{}
	has := map[string][2]string{} // names as they are spelled, with a value
	for _, line := range sample {
		n, err := policy.ParseJSON([]byte(line))
		if err != nil {
			continue
		}
		_ = f.walk("", n, func(name string, value *policy.Node) error {
			lower := strings.ToLower(name)
			have, known := has[lower]
			if !known {
				f.names = append(f.names, name)
			}
			if _, isLine := cutLine(value.Text, ""); have[1] == "" || isLine {
				has[lower] = [2]string{name, value.Text}
			}
			return nil
		})
	}
	var places []place
	add := func(name string, m meaning) bool {
		have, ok := has[name]
		_, isLine := cutLine(have[1], "")
		known := slices.ContainsFunc(places, func(p place) bool { return p.field == m.field })
		if !ok || known || m.line && !isLine {
			return false
		}
		places = append(places, place{name: have[0], meaning: m})
		return true
	}
	for i := range names {
		for _, name := range names[i].names {
			if add(name, names[i].meaning) && names[i].took != "" {
				add(names[i].took, meaning{field: FieldTook, unit: names[i].unit})
			}
		}
	}
	if _, ofEnvoy := has["bytes_received"]; ofEnvoy { // nginx counts headers in what it calls bytes_sent
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
	return f, f.end(o, places, false)
}

// compileObject compiles the JSON of Envoy's json_format.
func (o *Options) compileObject(format string) (*object, error) {
	n, err := policy.ParseJSON([]byte(format))
	if err != nil {
		return nil, fmt.Errorf("--format is no JSON: %w", err)
	}
	var places []place
	f := &object{}
	err = f.walk("", n, func(name string, value *policy.Node) error {
		f.names = append(f.names, name)
		literal, command, rest, err := cutValue(value.Text, operatorValue, "%")
		if err != nil || literal != "" || rest != "" || command == "" {
			return err // or no single value
		}
		meanings, err := operatorMeanings(command)
		for _, m := range meanings {
			places = append(places, place{name: name, meaning: m})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return f, f.end(o, places, true)
}

// end makes the format of its places. It may have other names than these unless it is
// whole.
func (f *object) end(o *Options, places []place, whole bool) (err error) {
	f.places, err = o.choose(places, func(said string) (*place, error) {
		for _, name := range f.names {
			if strings.EqualFold(name, said) {
				said, whole = name, false
			}
		}
		if whole {
			return nil, fmt.Errorf("the format has no %s, but %s", said, list(f.names))
		}
		return &place{name: said}, nil
	})
	f.byName = map[string][]*place{}
	for _, p := range f.places {
		name := strings.ToLower(p.name)
		f.byName[name] = append(f.byName[name], p)
	}
	return err
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

// read reads a line.
func (f *object) read(line string, d *Request) error {
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
