package policy

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Kind is the kind of a Node.
type Kind uint8

// The kinds that JSON has.
const (
	Null Kind = iota
	Bool
	Number
	String
	List
	Object
)

// Node is a parsed document before anyone has asked what it means: the common
// form of YAML in a file and of JSON in a plugin configuration. All its text is UTF-8, and
// nothing nests deeper than MaxDepth.
type Node struct {
	Kind   Kind
	Text   string  // of a Bool ("true", "false"), Number (as written) or String
	Items  []*Node // of a List
	Fields []Field // of an Object, in order of appearance, duplicates kept

	Line, Column int // from 1; 0 if the source has no positions
}

// Field is one member of an Object; Line and Column are its name's.
type Field struct {
	Name         string
	Value        *Node
	Line, Column int
}

// Member returns the value of an object's field, nil if there is none.
func (n *Node) Member(name string) *Node {
	for i := range n.Fields {
		if n.Fields[i].Name == name {
			return n.Fields[i].Value
		}
	}
	return nil
}

// Place is a value of a document, or the place of a field that an object lacks.
type Place struct {
	*Node
	lacks string // the way from the object to the field
}

// Field is the place of an object's field.
func (p Place) Field(name string) Place {
	if n := p.Member(name); n != nil && p.lacks == "" {
		return Place{Node: n}
	}
	return Place{p.Node, p.lacks + step(name)}
}

// Item is the place of a list's item.
func (p Place) Item(i int) Place { return Place{Node: p.Items[i]} }

// Paths are the paths of places in the document, as in "rules[2].limits[0].per".
func (n *Node) Paths(of []Place) []string {
	paths := make(map[*Node]string, len(of))
	for _, p := range of {
		paths[p.Node] = ""
	}
	n.find("", paths)
	list := make([]string, len(of))
	for i, p := range of {
		list[i] = strings.TrimPrefix(paths[p.Node]+p.lacks, ".")
	}
	return list
}

// find notes the ways to the nodes that are asked for.
func (n *Node) find(way string, paths map[*Node]string) {
	if _, isWanted := paths[n]; isWanted {
		paths[n] = way
	}
	for i, item := range n.Items {
		item.find(way+"["+itoa(int64(i))+"]", paths)
	}
	for i := range n.Fields {
		n.Fields[i].Value.find(way+step(n.Fields[i].Name), paths)
	}
}

// step is the way to a field: .a, or ["b c"] where the name is not a short word.
func step(name string) string {
	plain := name != "" && Clip(name) == name
	for i := 0; i < len(name) && plain; i++ {
		c := name[i]
		plain = c == '_' || c == '-' || isDigit(c) || isLetter(c)
	}
	if plain {
		return "." + name
	}
	return "[" + strconv.Quote(Clip(name)) + "]"
}

// ParseJSON reads one JSON document of RFC 8259, strictly. It is stricter than
// the RFC asks in that text must be UTF-8 without byte order mark, surrogates
// must come in pairs, nothing nests deeper than MaxDepth, and the whole is at
// most MaxBytes. Duplicate names and the text of numbers are kept for Read.
//
// The nodes have no positions: the JSON of a plugin's configuration was made
// by a program, on one line. An error is a *Problem and has one.
func ParseJSON[T string | []byte](data T) (*Node, error) {
	if len(data) > MaxBytes {
		return nil, &Problem{Code: TooLarge, Args: []string{itoa(int64(len(data)))}}
	}
	j := &jsonText{text: string(data)}
	if j.space(); j.rest() == "" {
		return nil, &Problem{Code: EmptyDocument}
	}
	n := j.value(0)
	if n != nil {
		if j.space(); j.rest() != "" {
			n = nil
		}
	}
	if n == nil {
		line := 1 + strings.Count(j.text[:j.at], "\n")
		start := strings.LastIndexByte(j.text[:j.at], '\n') + 1
		code := InvalidJSON
		if j.tooDeep {
			code = TooDeep
		}
		return nil, &Problem{Code: code, Line: line, Column: 1 + utf8.RuneCountInString(j.text[start:j.at])}
	}
	return n, nil
}

// jsonText is a document and how far it has been read. If a method fails, it
// stays at what is wrong.
type jsonText struct {
	text    string
	at      int
	tooDeep bool

	members []Field // of the lists and objects around here so far, the innermost one's last
	scratch []byte

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

// value reads a value inside so many lists and objects; it returns nil if there is none.
func (j *jsonText) value(depth int) *Node {
	rest := j.rest()
	c := byte(0) // of the end
	if rest != "" {
		c = rest[0]
	}
	switch {
	case (c == '{' || c == '[') && depth == MaxDepth:
		j.tooDeep = true
		return nil
	case c == '{':
		return j.inside(j.node(Object, ""), '}', depth+1)
	case c == '[':
		return j.inside(j.node(List, ""), ']', depth+1)
	case c == '"':
		if s, ok := j.string(); ok {
			return j.node(String, s)
		}
		return nil
	}
	if n := numberLen(rest); n > 0 {
		j.at += n
		return j.node(Number, rest[:n])
	}
	for _, word := range [...]string{"true", "false", "null"} {
		if strings.HasPrefix(rest, word) {
			j.at += len(word)
			if word == "null" {
				return j.node(Null, "")
			}
			return j.node(Bool, word)
		}
	}
	return nil
}

// inside reads what a list or an object has up to its end.
func (j *jsonText) inside(n *Node, end byte, depth int) *Node {
	j.at++
	if j.space(); j.take(end) {
		return n
	}
	begin := len(j.members)
	for {
		var m Field
		j.space()
		if n.Kind == Object && !j.name(&m) {
			return nil
		}
		j.space()
		m.Value = j.value(depth)
		if m.Value == nil {
			return nil
		}
		j.members = append(j.members, m)
		if j.space(); j.take(end) {
			break
		}
		if !j.take(',') {
			return nil
		}
	}
	if n.Kind == Object {
		n.Fields = j.objects.take(len(j.members) - begin)
		copy(n.Fields, j.members[begin:])
	} else {
		n.Items = j.lists.take(len(j.members) - begin)
		for i := range n.Items {
			n.Items[i] = j.members[begin+i].Value
		}
	}
	j.members = j.members[:begin]
	return n
}

// name reads a field's name and the colon after it.
func (j *jsonText) name(of *Field) (ok bool) {
	if !strings.HasPrefix(j.rest(), `"`) {
		return false
	}
	of.Name, ok = j.string()
	if !ok {
		return false
	}
	j.space()
	return j.take(':')
}

// string reads the string that begins here. It is a copy: TinyGo's collector takes as long
// for a pointer into an object as it lies deep in it, and policies are large.
func (j *jsonText) string() (s string, ok bool) {
	j.at++
	start := j.at
	text := j.scratch[:0] // what came before start, where an escape parts the two
	for j.at < len(j.text) {
		c := j.text[j.at]
		switch {
		case c == '"':
			text = append(text, j.text[start:j.at]...)
			j.at++
			j.scratch = text
			return string(text), true
		case c < ' ':
			return "", false
		case c == '\\':
			text = append(text, j.text[start:j.at]...)
			r, size := unescape(j.rest())
			if size == 0 {
				return "", false
			}
			text = utf8.AppendRune(text, r)
			j.at += size
			start = j.at
		case c < utf8.RuneSelf:
			j.at++
		default:
			r, size := utf8.DecodeRuneInString(j.rest())
			if r == utf8.RuneError && size == 1 {
				return "", false
			}
			j.at += size
		}
	}
	return "", false
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
	whole := utf16.DecodeRune(r, low)
	if whole == utf8.RuneError {
		return 0, 0
	}
	return whole, 12
}

// escapedUnit decodes \uXXXX at the start of s.
func escapedUnit(s string) (rune, bool) {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	r := rune(0)
	for i := 2; i < 6; i++ {
		if !isHex(s[i]) {
			return 0, false
		}
		r = r<<4 | rune(hexValue(s[i]))
	}
	return r, true
}

// slab hands out pieces of larger allocations: a policy has a hundred thousand
// small parts, and every worker allocates each of them.
type slab[T any] struct {
	free []T
	size int // of the last allocation
}

// take returns n zero values.
func (s *slab[T]) take(n int) []T {
	const minSize, maxSize = 8, 256
	if n > len(s.free) {
		s.size = min(max(2*s.size, minSize), maxSize)
		s.free = make([]T, max(n, s.size))
	}
	taken := s.free[:n:n]
	s.free = s.free[n:]
	return taken
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
