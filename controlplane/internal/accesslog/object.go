package accesslog

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

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
func (o *Options) newObject(log string, sample []string) (*format, error) {
	f := &object{}
	var all []place
	spelled, isLine := map[string]string{}, map[string]bool{} // by name in lower case
	isRead := false
	for _, line := range sample {
		n, err := parseObject(line)
		if err != nil {
			continue
		}
		isRead = true
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
	if !isRead {
		return nil, unknownFormat(log, clip(strings.Join(sample[:min(len(sample), 1)], "")), errNoObject.Error())
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
	n, err := parseObject(line)
	if err != nil {
		return err
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

var errNoObject = errors.New("it is no JSON object")

// parseObject reads the object of a line, also of one that nginx has written without escape=json.
func parseObject(line string) (*policy.Node, error) {
	n, err := policy.ParseJSON(line)
	if err != nil && strings.HasPrefix(line, "{") {
		n, err = policy.ParseJSON(mend(line))
	}
	if err != nil || n.Kind != policy.Object {
		return nil, errNoObject
	}
	return n, nil
}

// mend makes JSON of what nginx' log_format writes without escape=json: in strings \x22 for a quotation
// mark, and bytes as they came; without quotation marks also -, nothing, an address, or several numbers,
// which become a text or null. Clients cannot end a string or begin a name: their quotation marks are
// escaped.
func mend(line string) (mended []byte) {
	for at := 0; at < len(line); {
		c := line[at]
		isEnd := strings.IndexByte(",}]", c) >= 0
		switch {
		case c == '"':
			n := quoted(line[at+1:])
			if n < 0 {
				return nil
			}
			mended = policy.AppendString(mended, asUTF8(unescape(line[at+1:at+1+n])))
			at += n + 2
		case isEnd && bytes.HasSuffix(mended, []byte(":")):
			mended = append(mended, "null"...)
		case isEnd || strings.IndexByte("{[:", c) >= 0:
			mended = append(mended, c)
			at++
		case c == ' ' || c == '\t':
			at++
		default:
			n := bareLen(line[at:])
			bare := strings.TrimRight(line[at:at+n], " \t")
			if _, err := policy.ParseJSON(bare); err == nil {
				mended = append(mended, bare...)
			} else {
				mended = policy.AppendString(mended, asUTF8(unescape(bare)))
			}
			at += n
		}
	}
	return mended
}

// bareLen is the length of the value without quotation marks that text begins with: it goes to the end
// of what it is in, or to the comma before the next name.
func bareLen(text string) int {
	for i := range len(text) {
		switch text[i] {
		case '}', ']':
			return i
		case ',':
			if strings.HasPrefix(strings.TrimLeft(text[i+1:], " \t"), `"`) {
				return i
			}
		}
	}
	return len(text)
}

// asUTF8 takes bytes that are no UTF-8 for Latin-1.
func asUTF8(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	var out strings.Builder
	for text != "" {
		r, size := utf8.DecodeRuneInString(text)
		if r == utf8.RuneError && size == 1 {
			r = rune(text[0])
		}
		out.WriteRune(r)
		text = text[size:]
	}
	return out.String()
}
