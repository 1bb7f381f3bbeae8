package accesslog

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// target is what a value of a line is for.
type target struct {
	kind  kind
	field string // the field's name; of kindTime, what is said of it
	time  func([]byte) (ns int64, ok bool)
	unit  float64 // of kindDuration, in ns
	bare  bool    // of kindPath: it lacks the query
	most  int     // bytes, at which the format cuts the value off; 0 = it does not
}

type kind uint8

const (
	kindNone kind = iota
	kindTime
	kindEnd // a time, of the request's end
	kindDuration
	kindMethod
	kindHost
	kindPath
	kindLine // method, path and protocol
	kindClient
	kindStatus
	kindRoute
	kindHeader
	kindValue
)

// targetOf returns what a field's value is for.
func targetOf(field string) target {
	kinds := map[string]kind{
		FieldMethod: kindMethod, FieldHost: kindHost, FieldPath: kindPath, FieldClientIP: kindClient,
		FieldStatus: kindStatus, FieldRoute: kindRoute,
	}
	switch {
	case field == FieldTime:
		return target{kind: kindTime, field: field, time: anyTime}
	case kinds[field] != kindNone:
		return target{kind: kinds[field], field: field}
	case strings.HasPrefix(field, headerPrefix):
		return target{kind: kindHeader, field: field}
	}
	return target{kind: kindValue, field: field}
}

// provides lists the fields that a target gives.
func (t *target) provides() []string {
	switch t.kind {
	case kindNone, kindDuration:
		return nil
	case kindLine:
		return []string{FieldMethod, FieldPath, FieldQuery}
	case kindPath:
		if !t.bare {
			return []string{FieldPath, FieldQuery}
		}
	default: // one field
	}
	return []string{t.field}
}

// found collects what a line says, before it is copied.
type found struct {
	values   []foundValue
	ns       int64
	hasTime  bool
	atEnd    bool
	duration int64
	status   int
	asks     bool // the log has methods or paths
	http     bool // the line has one
	noHTTP   bool // the line is of a connection that brought no request
}

type foundValue struct {
	target *target
	text   []byte
}

func (f *found) reset() { *f = found{values: f.values[:0]} }

// put takes a value. It reports whether it is one of its kind.
func (f *found) put(t *target, text []byte) bool {
	switch t.kind {
	case kindNone:
		return true
	case kindTime, kindEnd:
		ns, ok := t.time(text)
		if t.kind == kindTime || !f.hasTime || f.atEnd { // a start is surer than an end
			f.ns, f.hasTime, f.atEnd = ns, ok, t.kind == kindEnd
		}
		return ok
	case kindDuration:
		n, err := strconv.ParseFloat(string(text), 64)
		if err != nil || n < 0 || n*t.unit > 1e15 {
			return isMissing(text)
		}
		f.duration = int64(n * t.unit)
		return true
	case kindStatus:
		if isMissing(text) {
			return true
		}
		n, err := strconv.Atoi(string(text))
		f.status = n
		return err == nil && n >= 0 && n <= 999
	case kindLine:
		return f.putLine(text)
	default: // a text
		asks := t.kind == kindMethod || t.kind == kindPath
		f.asks = f.asks || asks
		if !isMissing(text) {
			f.http = f.http || asks
			f.values = append(f.values, foundValue{t, text})
		}
		return true
	}
}

func isMissing(text []byte) bool { return len(text) == 0 || len(text) == 1 && text[0] == '-' }

var (
	methodTarget = target{kind: kindMethod, field: FieldMethod}
	pathTarget   = target{kind: kindPath, field: FieldPath}
)

// putLine takes a request line. What was no HTTP has no such line.
func (f *found) putLine(text []byte) bool {
	method, path, ok := cutLine(text)
	if !ok {
		f.noHTTP = true
		return true
	}
	f.values = append(f.values, foundValue{&methodTarget, method}, foundValue{&pathTarget, path})
	return true
}

// cutLine cuts "GET /path HTTP/1.1".
func cutLine(text []byte) (method, path []byte, ok bool) {
	method, rest, ok := bytes.Cut(text, []byte(" "))
	end := bytes.LastIndexByte(rest, ' ')
	if !ok || end < 0 || !bytes.HasPrefix(rest[end+1:], []byte("HTTP/")) {
		return nil, nil, false
	}
	return method, rest[:end], true
}

// request copies what is wanted out of the line.
func (f *found) request(wanted map[string]bool) (*Request, error) {
	if !f.hasTime {
		return nil, errNoTime
	}
	if f.noHTTP || f.asks && !f.http {
		return nil, errNoHTTP
	}
	r := &Request{Ns: f.ns, Status: f.status}
	if f.atEnd {
		r.Ns -= f.duration
	}
	size, err := f.choose(r, wanted)
	if err != nil {
		return nil, err
	}
	var all strings.Builder
	all.Grow(size)
	for i := range f.values {
		if v := &f.values[i]; v.text != nil {
			start := all.Len()
			all.Write(v.text)
			if text := all.String()[start:]; !r.set(v.target, text) {
				return nil, fmt.Errorf("%s is %q", v.target.field, clip([]byte(text)))
			}
		}
	}
	switch {
	case wanted[FieldMethod] && r.Method == "", wanted[FieldPath] && r.Path == "", wanted[FieldHost] && r.Host == "":
		return nil, errNoHTTP
	case wanted[FieldClientIP] && r.ClientIP == "":
		return nil, errNoAddress
	}
	return r, nil
}

// choose drops the values that nobody wants, makes room for the others in the
// request, and returns how many bytes they have.
func (f *found) choose(r *Request, wanted map[string]bool) (size int, err error) {
	headers, others := 0, 0
	for i := range f.values {
		v := &f.values[i]
		if !wanted[v.target.field] {
			v.text = nil
			continue
		}
		if most := v.target.most; most > 0 && len(v.text) >= most {
			return 0, fmt.Errorf("%s is %q, and the format cuts it off at %d bytes", v.target.field, clip(v.text), most)
		}
		if v.target.kind == kindClient {
			if v.text = address(v.text); v.text == nil {
				return 0, errNoAddress
			}
		}
		size += len(v.text)
		switch v.target.kind {
		case kindHeader:
			headers++
		case kindValue:
			others++
		default: // has a field of its own
		}
	}
	if headers > 0 {
		r.Headers = make([][2]string, 0, headers)
	}
	if others > 0 {
		r.Values = make([][2]string, 0, others)
	}
	return size, nil
}

func (r *Request) set(t *target, text string) bool {
	switch t.kind {
	case kindMethod:
		r.Method = text
		return isToken(text)
	case kindHost:
		r.Host = text
	case kindPath:
		if t.bare && r.Path != "" {
			break
		}
		r.Path = text
		return isPath(text)
	case kindClient:
		r.ClientIP = text
		return text != ""
	case kindRoute:
		r.Route = text
	case kindHeader:
		r.Headers = append(r.Headers, [2]string{t.field[len(headerPrefix):], text})
	default:
		r.Values = append(r.Values, [2]string{t.field, text})
	}
	return true
}

// isToken reports whether a text is a method: letters, digits and a few signs.
func isToken(text string) bool {
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c >= 0x7F || strings.IndexByte("\"(),/:;<=>?@[\\]{}", c) >= 0 {
			return false
		}
	}
	return text != ""
}

// isPath reports whether a text is what stands in a request line, such as /a?b=c, *
// or http://host/.
func isPath(text string) bool {
	for i := range len(text) {
		if text[i] <= ' ' || text[i] == 0x7F {
			return false
		}
	}
	return text != ""
}
