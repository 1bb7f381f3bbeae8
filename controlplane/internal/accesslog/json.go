package accesslog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// object is a format of lines that are JSON objects.
type object struct {
	targets map[string][]*ranked // by name in lower case; names inside others are joined by dots
	best    map[string]int       // of a line: the rank of the name that a field was read from
	seen    map[string]bool      // fields that some line has had
	renamed map[string]bool      // fields that the caller knows the names of
}

// ranked is a target, and how many other names of the field come first.
type ranked struct {
	target
	rank int
}

// jsonNames are the names under which JSON logs commonly have a field, the surest
// first.
var jsonNames = map[string][]string{
	FieldMethod: {"method", "request_method", ":method", "req_method", "requestmethod"},
	FieldHost:   {"authority", ":authority", "host", "http_host", "request_authority", "requesthost"},
	FieldPath:   {"path", "x-envoy-origin-path", "x-envoy-original-path", "request_uri", ":path", "requestpath"},
	FieldClientIP: {
		"downstream_remote_address", "downstream_remote_address_without_port", "remote_addr", "client_ip", "clienthost",
	},
	FieldStatus: {"response_code", "status", "responsecode", "status_code"},
	FieldRoute:  {"route_name"},
}

var jsonTimes = []struct {
	name string
	kind kind
}{
	{"start_time", kindTime}, {"startutc", kindTime}, {"msec", kindEnd}, {"time_iso8601", kindEnd}, {"time_local", kindEnd},
	{"timestamp", kindTime}, {"@timestamp", kindTime}, {"time", kindTime}, {"ts", kindTime},
}

// newObject makes a format of the names that are usual for the fields, and of those
// that the caller knows.
func newObject(fields []string, names map[string]string) *object {
	o := emptyObject()
	for i, t := range jsonTimes {
		o.add(t.name, target{kind: t.kind, field: FieldTime, time: anyTime}, i)
	}
	o.add("request_time", target{kind: kindDuration, unit: float64(time.Second)}, 0)
	o.add("request", target{kind: kindLine}, 0)
	for _, field := range append([]string{FieldStatus, FieldMethod, FieldPath}, fields...) {
		usual := jsonNames[field]
		if header, ok := strings.CutPrefix(field, headerPrefix); ok {
			under := strings.ReplaceAll(header, "-", "_")
			usual = []string{"headers." + header, header, under, "http_" + under, "request_header_" + under, "req_header_" + under}
		}
		for i, name := range usual {
			if _, taken := o.targets[name]; !taken {
				o.add(name, targetOf(field), i)
			}
		}
	}
	// As the log that sluice render has Envoy write.
	o.add("path_without_query", target{kind: kindPath, field: FieldPath, bare: true}, len(jsonNames[FieldPath]))
	for field, name := range names {
		o.rename(field, name)
	}
	return o
}

func emptyObject() *object {
	return &object{targets: map[string][]*ranked{}, best: map[string]int{}, seen: map[string]bool{}, renamed: map[string]bool{}}
}

func (o *object) add(name string, t target, rank int) {
	o.targets[name] = append(o.targets[name], &ranked{t, rank})
}

// rename has a field read from the name alone that the caller says.
func (o *object) rename(field, name string) {
	for other, targets := range o.targets {
		o.targets[other] = slices.DeleteFunc(targets, func(t *ranked) bool { return t.field == field })
	}
	o.add(strings.ToLower(name), targetOf(field), 0)
	o.renamed[field] = true
}

// compileObject compiles the JSON of Envoy's json_format.
func compileObject(format *policy.Node, names map[string]string) (*object, error) {
	o := emptyObject()
	if err := o.compile("", format); err != nil {
		return nil, err
	}
	for field, name := range names {
		if _, ok := o.targets[strings.ToLower(name)]; !ok {
			return nil, fmt.Errorf("--map %s=%s: the format has no %s", field, name, name)
		}
		o.rename(field, name)
	}
	return o, nil
}

func (o *object) compile(prefix string, n *policy.Node) error {
	for _, f := range n.Fields {
		name := strings.ToLower(prefix + f.Name)
		if f.Value.Kind == policy.Object {
			if err := o.compile(name+".", f.Value); err != nil {
				return err
			}
			continue
		}
		o.targets[name] = nil
		literal, command, rest, err := cutOperator(f.Value.Text)
		if err != nil {
			return err
		}
		if literal != "" || rest != "" || command == "" {
			continue // no single value
		}
		targets, err := operator(command)
		if err != nil {
			return err
		}
		for _, t := range targets {
			rank := 0
			if t.bare || t.kind == kindEnd {
				rank = 1
			}
			o.add(name, t, rank)
			o.see(&t)
		}
	}
	return nil
}

// see notes what a name gives.
func (o *object) see(t *target) {
	for _, field := range t.provides() {
		o.seen[field] = true
	}
}

func (o *object) provides() (fields []string) {
	for field := range o.seen {
		fields = append(fields, field)
	}
	return fields
}

// read reads a line.
func (o *object) read(line []byte, f *found, wanted map[string]bool) error {
	n, err := policy.ParseJSON(line)
	if err != nil || n.Kind != policy.Object {
		return errors.New("it is no JSON object")
	}
	clear(o.best)
	err = o.fields("", n, f, wanted)
	f.asks = o.seen[FieldMethod] || o.seen[FieldPath]
	return err
}

func (o *object) fields(prefix string, n *policy.Node, f *found, wanted map[string]bool) error {
	for i := range n.Fields {
		name, value := n.Fields[i].Name, n.Fields[i].Value
		if prefix != "" {
			name = prefix + name
		}
		if value.Kind == policy.Object {
			if err := o.fields(name+".", value, f, wanted); err != nil {
				return err
			}
			continue
		}
		targets, ok := o.targets[name]
		if !ok {
			targets = o.targets[strings.ToLower(name)]
		}
		for _, t := range targets {
			if err := o.take(t, name, value, f, wanted); err != nil {
				return err
			}
		}
	}
	return nil
}

// lineParts are what "GET /path HTTP/1.1" gives where no name of its own has it, as
// $request in a JSON log of nginx.
var lineParts = [2]*ranked{{methodTarget, 100}, {pathTarget, 100}}

// take takes a value, and a request line in its parts. Under the line's name another
// program may have anything: that says nothing of the request.
func (o *object) take(t *ranked, name string, value *policy.Node, f *found, wanted map[string]bool) error {
	if t.kind != kindLine {
		return o.value(t, name, value, f, wanted)
	}
	method, path, ok := cutLine([]byte(value.Text))
	if !ok {
		return nil
	}
	for i, part := range [2][]byte{method, path} {
		if o.renamed[lineParts[i].field] {
			continue
		}
		node := &policy.Node{Kind: policy.String, Text: string(part)}
		if err := o.value(lineParts[i], name, node, f, wanted); err != nil {
			return err
		}
	}
	return nil
}

// value takes a value unless the field has a surer one.
func (o *object) value(t *ranked, name string, value *policy.Node, f *found, wanted map[string]bool) error {
	if !matters(&t.target, wanted) {
		return nil
	}
	o.see(&t.target)
	if value.Kind == policy.Null || isMissing([]byte(value.Text)) {
		return nil
	}
	if t.kind != kindDuration {
		if best, ok := o.best[t.field]; ok && best == t.rank {
			return errors.New(name + " stands in it twice")
		} else if ok && best < t.rank {
			return nil
		} else if ok {
			f.forget(t.field)
		}
		o.best[t.field] = t.rank
	}
	if value.Kind == policy.List {
		return errors.New(name + " is a list")
	}
	if !f.put(&t.target, []byte(value.Text)) {
		return errors.New(name + " is " + clip([]byte(value.Text)))
	}
	return nil
}

// forget drops what was found of a field.
func (f *found) forget(field string) {
	f.hasTime = f.hasTime && field != FieldTime
	kept := f.values[:0]
	for _, v := range f.values {
		if v.target.field != field {
			kept = append(kept, v)
		}
	}
	f.values = kept
}
