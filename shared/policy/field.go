package policy

import "strings"

// field is one row of an object's table: all there is to know about a field of
// the policy file. Reading, the words of an error and the written reference
// come from the same row, so they cannot drift apart.
type field[T any] struct {
	name     string
	shape    shape
	def      string // as a person would write it; read like the document when the field is absent
	required bool
	doc      string
	read     func(r *reader, v value, out *T)
}

// form is what a value looks like in the document.
type form uint8

const (
	formText form = 1 + iota
	formName
	formWord
	formInteger
	formBool
	formDuration
	formList
	formObject
	formPatterns // an object from header names to patterns
	formChoice   // one of several forms, told in shape.other
)

// shape is the type of a field.
type shape struct {
	form     form
	words    []string // of a word
	min, max int64    // of an integer
	of       string   // the object's name, or that of a list's items
	other    string   // of a choice: what it may be, in words
}

func word(words ...string) shape      { return shape{form: formWord, words: words} }
func boolean() shape                  { return shape{form: formBool} }
func integer(low, high int64) shape   { return shape{form: formInteger, min: low, max: high} }
func listOf(item string) shape        { return shape{form: formList, of: item} }
func objectOf(name string) shape      { return shape{form: formObject, of: name} }
func choice(of, inWords string) shape { return shape{form: formChoice, of: of, other: inWords} }
func (s shape) isOneWord() bool       { return s.form == formWord && len(s.words) == 1 }
func (s shape) accepts(w string) bool { return indexOf(s.words, w) >= 0 }

// advice says what to do with a value that is not of the shape, behind a colon;
// "" where there is nothing to say.
func (s shape) advice(n *Node) string {
	if n.Kind == String && s.readsUnquoted(n.Text) {
		return ": remove the quotes"
	}
	scalar := n.Kind == Number || n.Kind == Bool
	switch s.form {
	case formText, formName:
		if scalar {
			return ": put it in quotes"
		}
	case formInteger:
		if text, percent := strings.CutSuffix(n.Text, "%"); percent && s.readsUnquoted(text) {
			return ": write " + text
		}
	case formBool:
		switch strings.ToLower(n.Text) {
		case "yes", "y", "on":
			return ": write true"
		case "no", "n", "off":
			return ": write false"
		}
	case formDuration:
		if near := durationMeant(n.Text); n.Kind == Number && near != "" {
			return ": did you mean " + quote(near) + "?"
		}
	case formList:
		return s.adviceOnList(n)
	default: // objects and choices
	}
	return ""
}

func (s shape) adviceOnList(n *Node) string {
	switch {
	case n.Kind == Object:
		return `: make it an item, with "- " before it`
	case s.of == "key" && strings.Contains(n.Text, "-"): // a header, by its looks
		return ": write one such as [{header: " + n.Text + "}]"
	case n.Kind == Number, n.Kind == Bool, n.Kind == String:
		return ": put it in brackets, [" + describe(n) + "]"
	}
	return ""
}

// readsUnquoted reports whether text would be of the shape without its quotes.
func (s shape) readsUnquoted(text string) bool {
	if s.form == formBool {
		return text == "true" || text == "false"
	}
	_, fault := integerOf(text)
	return (s.form == formInteger || s.form == formChoice && s.of == "cost") && fault == nil
}

// defaultNode returns what the document would have for a default. Nobody may
// change it.
func (r *reader) defaultNode(def string) *Node {
	n := r.defaults[def]
	if n == nil {
		if r.defaults == nil {
			r.defaults = map[string]*Node{}
		}
		n = defaultNode(def)
		r.defaults[def] = n
	}
	return n
}

func defaultNode(def string) *Node {
	switch {
	case isNumber(def):
		return &Node{Kind: Number, Text: def}
	case def == "true", def == "false":
		return &Node{Kind: Bool, Text: def}
	}
	return &Node{Kind: String, Text: def}
}

// String says what a value of the shape is, after "must be".
func (s shape) String() string {
	switch s.form {
	case formText, formName:
		return "text"
	case formWord:
		if s.isOneWord() {
			return quote(s.words[0])
		}
		return "one of " + join(s.words)
	case formInteger:
		if s.min == s.max {
			return itoa(s.min)
		}
		return "a whole number from " + itoa(s.min) + " to " + itoa(s.max)
	case formBool:
		return "true or false"
	case formDuration:
		return `a duration such as "10s", "1h30m" or "7d"`
	case formList:
		return "a list"
	case formObject:
		return "an object"
	case formPatterns:
		return "an object from header names to patterns"
	default:
		return s.other
	}
}

// value is a value of the document and the shape expected there.
type value struct {
	node     *Node
	at       place
	shape    shape
	required bool // the object must have it
}

// place is where a value stands. Its text is put together where a message needs it.
type place struct {
	is     kindOfPlace
	around string // the text of the place of the object or list that it is in
	name   string // of a field
	index  int    // of an item
}

type kindOfPlace uint8

const (
	isDocument kindOfPlace = iota
	isField
	isItem
)

// field is the place of the object's field, item that of the list's item.
func (p place) field(name string) place { return place{is: isField, around: p.String(), name: name} }
func (p place) item(i int) place        { return place{is: isItem, around: p.String(), index: i} }

func (p place) String() string {
	switch p.is {
	case isField:
		return member(p.around, p.name)
	case isItem:
		return p.around + "[" + itoa(int64(p.index)) + "]"
	default:
		return ""
	}
}

// item is the i-th item of a list.
func (v value) item(i int, s shape) value {
	return value{node: v.node.Items[i], at: v.at.item(i), shape: s}
}
