package accesslog

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// text is a format of lines of text: literal text and values in turn.
type text struct {
	before  []byte // the first value
	pieces  []piece
	escapes bool // values are escaped as by nginx and Apache

	left, right []int // where the values begin and end, in turn
}

// piece is a value and the literal text behind it.
type piece struct {
	name    string // as the format names it
	targets []target
	after   []byte
}

// errAmbiguous is of a line with separators inside its values.
var errAmbiguous = errors.New("it can be read in two ways: a value has the format's separators in it")

// compileText compiles a format of Envoy, with %OPERATORS%, or of nginx, with
// $variables.
func compileText(format string, names map[string]string) (*text, error) {
	format = strings.TrimSuffix(strings.TrimSuffix(format, "\n"), `\n`)
	parse := cutOperator
	t := &text{}
	if !strings.Contains(format, "%") && strings.Contains(format, "$") {
		parse, t.escapes = cutVariable, true
	}
	for rest := format; rest != ""; {
		literal, name, after, err := parse(rest)
		if err != nil {
			return nil, err
		}
		if len(t.pieces) == 0 {
			t.before = append(t.before, literal...)
		} else {
			last := &t.pieces[len(t.pieces)-1]
			last.after = append(last.after, literal...)
		}
		rest = after
		if name == "" {
			continue
		}
		if n := len(t.pieces); n > 0 && len(t.pieces[n-1].after) == 0 {
			return nil, fmt.Errorf("nothing separates %s from %s", t.pieces[n-1].name, name)
		}
		p := piece{name: name}
		if t.escapes {
			p.targets = variable(name)
		} else if p.targets, err = operator(name); err != nil {
			return nil, err
		}
		t.pieces = append(t.pieces, p)
	}
	if len(t.pieces) == 0 {
		return nil, errors.New("it has neither %OPERATORS% of Envoy nor $variables of nginx")
	}
	t.left, t.right = make([]int, 2*len(t.pieces)), make([]int, 2*len(t.pieces))
	if err := t.rename(names); err != nil {
		return t, err
	}
	t.dropEnds()
	return t, nil
}

// dropEnds has nobody read when requests end and how long they took, where the format
// says when they began: a line may be ambiguous there.
func (t *text) dropEnds() {
	begins := func(t target) bool { return t.kind == kindTime }
	if !slices.ContainsFunc(t.pieces, func(p piece) bool { return slices.ContainsFunc(p.targets, begins) }) {
		return
	}
	for i := range t.pieces {
		t.pieces[i].targets = slices.DeleteFunc(t.pieces[i].targets, func(t target) bool {
			return t.kind == kindEnd || t.kind == kindDuration
		})
	}
}

// rename adds what the caller says of names.
func (t *text) rename(names map[string]string) error {
	for field, name := range names {
		hit := false
		for i := range t.pieces {
			if sameName(t.pieces[i].name, name) {
				t.pieces[i].targets = append(t.pieces[i].targets, targetOf(field))
				hit = true
			}
		}
		if !hit {
			return fmt.Errorf("--map %s=%s: the format has no %s", field, name, name)
		}
		for i := range t.pieces {
			if !sameName(t.pieces[i].name, name) {
				t.pieces[i].drop(field)
			}
		}
	}
	return nil
}

// drop makes the piece be for anything but the field.
func (p *piece) drop(field string) {
	kept := p.targets[:0]
	for _, t := range p.targets {
		if t.field != field && (field != FieldTime || t.kind != kindTime && t.kind != kindEnd) {
			kept = append(kept, t)
		}
	}
	p.targets = kept
}

// sameName compares a format's name for a value with a person's.
func sameName(have, said string) bool {
	said = strings.Trim(strings.TrimPrefix(said, "$"), "%")
	if strings.EqualFold(have, said) {
		return true
	}
	inner, ok := strings.CutPrefix(have, "REQ(")
	return ok && strings.EqualFold(strings.TrimSuffix(inner, ")"), said)
}

func (t *text) provides() (fields []string) {
	for i := range t.pieces {
		for j := range t.pieces[i].targets {
			fields = append(fields, t.pieces[i].targets[j].provides()...)
		}
	}
	return fields
}

// read reads a line.
func (t *text) read(line []byte, f *found, wanted map[string]bool) error {
	if !t.fromLeft(line) || !t.fromRight(line) {
		return errForm
	}
	for i := range t.pieces {
		targets := t.pieces[i].targets
		for j := range targets {
			if !matters(&targets[j], wanted) {
				continue
			}
			if t.left[2*i] != t.right[2*i] || t.left[2*i+1] != t.right[2*i+1] {
				return errAmbiguous
			}
			value := line[t.left[2*i]:t.left[2*i+1]]
			if t.escapes && bytes.IndexByte(value, '\\') >= 0 {
				value = unescape(value)
			}
			if !f.put(&targets[j], value) {
				return fmt.Errorf("%s is %q", t.pieces[i].name, clip(value))
			}
		}
	}
	return nil
}

// matters reports whether anybody wants what the target is for.
func matters(t *target, wanted map[string]bool) bool {
	switch t.kind {
	case kindNone:
		return false
	case kindTime, kindEnd, kindDuration, kindStatus:
		return true
	case kindLine, kindMethod, kindPath: // say whether there was a request
		return true
	default:
		return wanted[t.field]
	}
}

// fromLeft finds values that end as early as they can.
func (t *text) fromLeft(line []byte) bool {
	if !bytes.HasPrefix(line, t.before) {
		return false
	}
	at := len(t.before)
	for i := range t.pieces {
		t.left[2*i] = at
		after := t.pieces[i].after
		n := len(line) - at
		if i < len(t.pieces)-1 || len(after) > 0 {
			n = bytes.Index(line[at:], after)
		}
		if i == len(t.pieces)-1 {
			if n = len(line) - at - len(after); n < 0 || !bytes.HasSuffix(line, after) {
				return false
			}
		}
		if n < 0 {
			return false
		}
		t.left[2*i+1] = at + n
		at += n + len(after)
	}
	return true
}

// fromRight finds values that begin as late as they can.
func (t *text) fromRight(line []byte) bool {
	last := t.pieces[len(t.pieces)-1].after
	if !bytes.HasSuffix(line, last) {
		return false
	}
	end := len(line) - len(last)
	for i := len(t.pieces) - 1; i >= 0; i-- {
		t.right[2*i+1] = end
		if i == 0 {
			t.right[0] = len(t.before)
			return end >= len(t.before)
		}
		separator := t.pieces[i-1].after
		n := bytes.LastIndex(line[:end], separator)
		if n < 0 {
			return false
		}
		t.right[2*i] = n + len(separator)
		end = n
	}
	return true
}

// unescape undoes \xHH, \", \\ and the letters of C.
func unescape(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c != '\\' || i+1 == len(text) {
			out = append(out, c)
			continue
		}
		i++
		switch c = text[i]; c {
		case 'x':
			if i+2 < len(text) && hex(text[i+1]) < 16 && hex(text[i+2]) < 16 {
				out = append(out, hex(text[i+1])<<4|hex(text[i+2]))
				i += 2
				continue
			}
			out = append(out, '\\', 'x')
		case 'n':
			out = append(out, '\n')
		case 't':
			out = append(out, '\t')
		case 'r':
			out = append(out, '\r')
		default:
			out = append(out, c)
		}
	}
	return out
}

func hex(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10
	}
	return 255
}
