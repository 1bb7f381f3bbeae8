package accesslog

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// text is a format of lines of text: literal text and values in turn.
type text struct {
	before  string // the first value
	pieces  []piece
	escapes bool // values are escaped as by nginx and Apache: none has a raw quotation mark
	format

	fields []string // of a log that names them, in lines that are comments like all that begin with #
	others bool     // the last such line names others

	left, right []int // where the values begin and end, in turn
}

// piece is a value and the literal text behind it.
type piece struct {
	name     string // as the format names it
	meanings []meaning
	after    string
	width    int // of a value that may have the text behind it inside, as a time has spaces
}

// compileText compiles a format of Envoy, with %OPERATORS%, or of nginx, with
// $variables.
func (o *Options) compileText(format string) (*format, error) {
	t := &text{}
	if err := t.cut(strings.TrimSuffix(strings.TrimSuffix(format, "\n"), `\n`)); err != nil {
		return nil, err
	}
	return t.end(o)
}

// end makes the format of its pieces.
func (t *text) end(o *Options) (*format, error) {
	t.left, t.right, t.read = make([]int, 2*len(t.pieces)), make([]int, 2*len(t.pieces)), t.readLine
	var all []place
	for i, p := range t.pieces {
		for _, m := range append([]meaning{{}}, p.meanings...) {
			all = append(all, place{name: p.name, meaning: m, piece: i})
		}
	}
	return &t.format, o.choose(&t.format, all, false)
}

// cut cuts the format into its pieces.
func (t *text) cut(format string) error {
	values, sign := operatorValue, "%"
	if !strings.Contains(format, "%") && strings.Contains(format, "$") {
		values, sign, t.escapes = variableValue, "$", true
	}
	for rest := format; rest != ""; {
		literal, name, after, err := cutValue(rest, values, sign)
		if err != nil {
			return err
		}
		n := len(t.pieces)
		if n == 0 {
			t.before += literal
		} else {
			t.pieces[n-1].after += literal
		}
		if rest = after; name == "" {
			continue
		}
		p := piece{name: name}
		if !t.escapes {
			if p.meanings, err = operatorMeanings(name); err != nil {
				return err
			}
			if len(p.meanings) > 0 {
				p.width = len(p.meanings[0].layout)
			}
		} else if p.meanings = meaningsOf(strings.ToLower(name)); name == "time_local" {
			p.width = len(localLayout)
		}
		if n == 0 || t.pieces[n-1].after != "" {
			t.pieces = append(t.pieces, p)
			continue
		}
		last := &t.pieces[n-1]
		if len(last.meanings)+len(p.meanings) > 0 {
			return fmt.Errorf("nothing separates %s from %s", last.name, name)
		}
		last.name += name // nobody asks for either
	}
	if len(t.pieces) == 0 {
		return errors.New("it has neither %OPERATORS% of Envoy nor $variables of nginx")
	}
	return nil
}

// readLine reads a line.
func (t *text) readLine(line string, d *Request) error {
	if t.fields != nil && strings.HasPrefix(line, "#") {
		if names, ok := strings.CutPrefix(line, fieldsLine); ok {
			t.others = !slices.Equal(t.fields, strings.Fields(names))
		}
		return errComment
	}
	if t.others {
		return errors.New("the #Fields before it are other ones than the first")
	}
	if err := t.fromLeft(line); err != nil {
		return err
	}
	t.fromRight(line)
	for _, p := range t.places {
		i := p.piece
		value := line[t.left[2*i]:t.left[2*i+1]]
		if t.left[2*i] != t.right[2*i] || t.left[2*i+1] != t.right[2*i+1] {
			return fmt.Errorf("it can be read in two ways: %s is %q from the left and %q from the right, because a value has the "+
				"format's separators in it or the format lacks a value", p.name, clip(value), clip(line[t.right[2*i]:t.right[2*i+1]]))
		}
		if t.escapes {
			value = unescape(value)
		}
		if err := d.put(p, value); err != nil {
			return err
		}
	}
	return nil
}

// fromLeft finds values that end as early as they can.
func (t *text) fromLeft(line string) error {
	at, ok := len(t.before), strings.HasPrefix(line, t.before)
	for i := range t.pieces {
		p := &t.pieces[i]
		if !ok {
			return fmt.Errorf("it does not have the format's form before %s", p.name)
		}
		rest := line[at:]
		n := strings.Index(rest, p.after)
		switch {
		case p.width > 0:
			n = p.width
		case t.escapes && strings.HasPrefix(p.after, `"`):
			n = quoted(rest)
		case p.after == "" || i == len(t.pieces)-1:
			n = len(rest) - len(p.after)
		}
		if ok = n >= 0 && n <= len(rest) && strings.HasPrefix(rest[n:], p.after); ok {
			t.left[2*i], t.left[2*i+1] = at, at+n
			at += n + len(p.after)
		}
	}
	if !ok || at != len(line) {
		return fmt.Errorf("it does not have the format's form behind %s", t.pieces[len(t.pieces)-1].name)
	}
	return nil
}

// quoted returns the place of the first quotation mark that is not escaped, -1 = none.
func quoted(text string) int {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			return i
		case '\\':
			i++
		}
	}
	return -1
}

// fromRight finds values that begin as late as they can. The line is one that fromLeft
// has read.
func (t *text) fromRight(line string) {
	end := len(line) - len(t.pieces[len(t.pieces)-1].after)
	for i := len(t.pieces) - 1; i >= 0; i-- {
		begin := len(t.before)
		switch {
		case t.pieces[i].width > 0:
			begin = max(end-t.pieces[i].width, begin)
		case i > 0:
			separator := t.pieces[i-1].after
			begin = max(strings.LastIndex(line[:end], separator)+len(separator), begin)
		}
		t.right[2*i], t.right[2*i+1] = begin, end
		if i > 0 {
			end = max(begin-len(t.pieces[i-1].after), 0)
		}
	}
}

// unescape undoes \xHH, \", \\ and the letters of C. What is none of them stays.
func unescape(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var out strings.Builder
	for text != "" {
		c, whole, tail, err := strconv.UnquoteChar(text, '"')
		switch {
		case err != nil:
			tail = text[1:]
			out.WriteByte(text[0])
		case whole:
			out.WriteString(text[:len(text)-len(tail)])
		default:
			out.WriteByte(byte(c))
		}
		text = tail
	}
	return out.String()
}
