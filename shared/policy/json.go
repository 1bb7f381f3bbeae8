package policy

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// ParseJSON reads one JSON document of RFC 8259, strictly. It is stricter than
// the RFC asks in that text must be UTF-8 without byte order mark, surrogates
// must come in pairs, nothing nests deeper than MaxDepth, and the whole is at
// most MaxBytes. Duplicate names and the text of numbers are kept for Read.
//
// The nodes have no positions: the JSON of a plugin's configuration was made
// by a program, on one line. An error has one.
func ParseJSON(data []byte) (*Node, error) {
	if len(data) > MaxBytes {
		return nil, Errors{TooLarge(len(data))}
	}
	j := &jsonText{text: string(data)}
	if j.space(); j.rest() == "" {
		return nil, Errors{{Message: "the policy is empty"}}
	}
	if strings.HasPrefix(j.text, "\uFEFF") {
		return nil, j.fail("a byte order mark is no part of JSON")
	}
	n, err := j.value(0)
	if err != nil {
		return nil, err
	}
	if j.space(); j.rest() != "" {
		return nil, j.fail("unexpected " + j.word() + " after the document")
	}
	return n, nil
}

// TooLarge is the problem of a policy of so many bytes.
func TooLarge(bytes int) Problem {
	return Problem{Message: "the policy is " + itoa(int64(bytes)) + " bytes, the most is " + itoa(MaxBytes)}
}

// jsonText is a document and how far it has been read.
type jsonText struct {
	text string
	at   int

	// What the lists and objects around here have so far, the innermost one's last.
	items  []*Node
	fields []Field

	nodes   slab[Node]
	lists   slab[*Node]
	objects slab[Field]
}

func (j *jsonText) node(kind Kind, text string) *Node {
	n := &j.nodes.take(1)[0]
	n.Kind, n.Text = kind, text
	return n
}

func (j *jsonText) rest() string { return j.text[j.at:] }

func (j *jsonText) space() {
	for j.at < len(j.text) {
		switch j.text[j.at] {
		case ' ', '\t', '\r', '\n':
			j.at++
		default:
			return
		}
	}
}

// take goes over c if it comes next.
func (j *jsonText) take(c byte) bool {
	if j.at == len(j.text) || j.text[j.at] != c {
		return false
	}
	j.at++
	return true
}

// word is what comes next, for a message.
func (j *jsonText) word() string {
	rest := j.rest()
	if rest == "" {
		return "end"
	}
	end := strings.IndexAny(rest, " \t\r\n,:[]{}\"")
	switch {
	case end < 0:
		end = len(rest)
	case end == 0:
		end = 1
	}
	return quote(rest[:end])
}

func (j *jsonText) fail(message string) error {
	line := 1 + strings.Count(j.text[:j.at], "\n")
	start := strings.LastIndexByte(j.text[:j.at], '\n') + 1
	return Errors{{Line: line, Column: 1 + utf8.RuneCountInString(j.text[start:j.at]), Message: "invalid JSON: " + message}}
}

// value reads a value inside so many lists and objects.
func (j *jsonText) value(depth int) (*Node, error) {
	rest := j.rest()
	c := byte(0) // of the end
	if rest != "" {
		c = rest[0]
	}
	switch {
	case c == '{' || c == '[':
		if depth == MaxDepth {
			return nil, j.fail("lists and objects nest more than " + itoa(MaxDepth) + " deep")
		}
		if c == '{' {
			return j.readObject(depth + 1)
		}
		return j.readList(depth + 1)
	case c == '"':
		s, err := j.string()
		return j.node(String, s), err
	case c == '-' || isDigit(c):
		return j.number()
	}
	for _, word := range [...]string{"true", "false", "null"} {
		if !strings.HasPrefix(rest, word) {
			continue
		}
		j.at += len(word)
		if word == "null" {
			return j.node(Null, ""), nil
		}
		return j.node(Bool, word), nil
	}
	return nil, j.fail("unexpected " + j.word() + " where a value belongs")
}

func (j *jsonText) readList(depth int) (*Node, error) {
	n := j.node(List, "")
	j.at++
	if j.space(); j.take(']') {
		return n, nil
	}
	begin := len(j.items)
	for {
		j.space()
		item, err := j.value(depth)
		if err != nil {
			return nil, err
		}
		j.items = append(j.items, item)
		j.space()
		switch {
		case j.take(']'):
			n.Items = j.lists.copied(j.items[begin:])
			j.items = j.items[:begin]
			return n, nil
		case !j.take(','):
			return nil, j.fail(`unexpected ` + j.word() + ` in a list: "," or "]" belongs here`)
		}
	}
}

func (j *jsonText) readObject(depth int) (*Node, error) {
	n := j.node(Object, "")
	j.at++
	if j.space(); j.take('}') {
		return n, nil
	}
	begin := len(j.fields)
	for {
		j.space()
		if !strings.HasPrefix(j.rest(), `"`) {
			return nil, j.fail("unexpected " + j.word() + " where a field's name in double quotes belongs")
		}
		name, err := j.string()
		if err != nil {
			return nil, err
		}
		if j.space(); !j.take(':') {
			return nil, j.fail("unexpected " + j.word() + ` behind a field's name: ":" belongs here`)
		}
		j.space()
		v, err := j.value(depth)
		if err != nil {
			return nil, err
		}
		j.fields = append(j.fields, Field{Name: name, Value: v})
		j.space()
		switch {
		case j.take('}'):
			n.Fields = j.objects.copied(j.fields[begin:])
			j.fields = j.fields[:begin]
			return n, nil
		case !j.take(','):
			return nil, j.fail(`unexpected ` + j.word() + ` in an object: "," or "}" belongs here`)
		}
	}
}

// number keeps a number's text: -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
func (j *jsonText) number() (*Node, error) {
	start := j.at
	j.take('-')
	if j.take('0') {
		if rest := j.rest(); rest != "" && isDigit(rest[0]) {
			j.at--
			return nil, j.fail("a number does not begin with 0")
		}
	} else if !j.digits() {
		return nil, j.fail("a number lacks its digits")
	}
	if j.take('.') && !j.digits() {
		return nil, j.fail(`a number lacks the digits behind its "."`)
	}
	if j.take('e') || j.take('E') {
		if !j.take('+') {
			j.take('-')
		}
		if !j.digits() {
			return nil, j.fail("a number lacks the digits of its exponent")
		}
	}
	return j.node(Number, j.text[start:j.at]), nil
}

func (j *jsonText) digits() (some bool) {
	for j.at < len(j.text) && isDigit(j.text[j.at]) {
		j.at++
		some = true
	}
	return some
}

// string reads the string that begins here.
func (j *jsonText) string() (string, error) {
	j.at++
	start := j.at
	var text []byte // what came before start, where an escape parts the two
	for j.at < len(j.text) {
		c := j.text[j.at]
		switch {
		case c == '"':
			part := j.text[start:j.at]
			j.at++
			if text == nil {
				return part, nil
			}
			return string(append(text, part...)), nil
		case c < ' ':
			return "", j.fail("a control character in a string must be escaped")
		case c == '\\':
			text = append(text, j.text[start:j.at]...)
			r, size := unescape(j.rest())
			if size == 0 {
				return "", j.fail(escapeFault(j.rest()))
			}
			text = utf8.AppendRune(text, r)
			j.at += size
			start = j.at
		case c < utf8.RuneSelf:
			j.at++
		default:
			r, size := utf8.DecodeRuneInString(j.rest())
			if r == utf8.RuneError && size == 1 {
				return "", j.fail("text that is not UTF-8")
			}
			j.at += size
		}
	}
	return "", j.fail("a string without closing quote")
}

// unescape decodes the escape at the start of s, which takes size bytes; 0: it
// is none.
func unescape(s string) (r rune, size int) {
	if len(s) < 2 {
		return 0, 0
	}
	if s[1] != 'u' {
		at := strings.IndexByte(`"\/bfnrt`, s[1])
		if at < 0 {
			return 0, 0
		}
		return rune("\"\\/\b\f\n\r\t"[at]), 2
	}
	r, ok := escapedUnit(s)
	if !ok {
		return 0, 0
	}
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	low, ok := escapedUnit(s[6:])
	if !ok {
		return 0, 0
	}
	if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
		return 0, 0
	}
	return r, 12
}

func escapeFault(s string) string {
	if _, ok := escapedUnit(s); ok {
		return `a \u escape that is half of a surrogate pair`
	}
	if strings.HasPrefix(s, `\u`) {
		return `a \u escape needs four hexadecimal digits`
	}
	_, size := utf8.DecodeRuneInString(s[1:])
	return "unknown escape " + quote(s[:1+size]) + ` in a string: a backslash is written "\\"`
}

// escapedUnit decodes \uXXXX at the start of s.
func escapedUnit(s string) (rune, bool) {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	r := rune(0)
	for i := 2; i < 6; i++ {
		switch c := s[i]; {
		case isDigit(c):
			r = r<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// AppendJSON writes n as compact JSON that ParseJSON reads back as the same
// tree. Equal trees give equal bytes.
func AppendJSON(dst []byte, n *Node) []byte {
	switch n.Kind {
	case Bool, Number:
		return append(dst, n.Text...)
	case String:
		return AppendString(dst, n.Text)
	case List:
		dst = append(dst, '[')
		for i, item := range n.Items {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = AppendJSON(dst, item)
		}
		return append(dst, ']')
	case Object:
		dst = append(dst, '{')
		for i := range n.Fields {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = AppendString(dst, n.Fields[i].Name)
			dst = append(dst, ':')
			dst = AppendJSON(dst, n.Fields[i].Value)
		}
		return append(dst, '}')
	default:
		return append(dst, "null"...)
	}
}

// AppendString appends s as a JSON string. It escapes what JSON demands and
// U+2028 and U+2029, which some readers take for line ends. Bytes that are not
// UTF-8 become U+FFFD.
func AppendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', byte(c))
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c == '\t':
			dst = append(dst, '\\', 't')
		case c < ' ' || c == 0x7f || c == 0x2028 || c == 0x2029:
			dst = append(dst, '\\', 'u', hex[c>>12&15], hex[c>>8&15], hex[c>>4&15], hex[c&15])
		default:
			dst = utf8.AppendRune(dst, c)
		}
	}
	return append(dst, '"')
}
