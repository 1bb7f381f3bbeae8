package policy

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sluice-ratelimit/sluice/shared/automaton"
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

const (
	// MaxDepth is how deep lists and objects may nest in a policy.
	MaxDepth = 32
	// MaxRules is how many rules a policy may have.
	MaxRules = 10_000
	// maxProblems bounds the answer to a document that is wrong everywhere.
	maxProblems = 1_000
	// maxRows is how many fields a table may have.
	maxRows = 32
)

// Read makes the policy of a file. It reports every problem, not only the
// first; with any error the policy is nil. Warnings leave it usable.
func Read(doc *Node) (policy *Policy, errs, warnings []Problem) {
	return read(doc, false)
}

// ReadPushed is Read for a policy that comes from the control plane, which may
// carry its revision.
func ReadPushed(doc *Node) (policy *Policy, errs, warnings []Problem) {
	return read(doc, true)
}

func read(doc *Node, pushed bool) (*Policy, []Problem, []Problem) {
	r := &reader{pushed: pushed, keyPart: readKeyPart, homes: homes()}
	v := value{node: doc, shape: objectOf("policy")}
	p := &Policy{}
	if doc == nil {
		v.node = &Node{}
	}
	if r.readable(v.node) && r.versionKnown(v) {
		if v.node.Kind != Object {
			r.fail(v, "a policy must be an object with the fields version, domain, headers, rules and manage, not "+describe(v.node))
		} else {
			readObject(r, v, policyFields, p)
			r.checkRules(v, p)
		}
	}
	for _, list := range [][]Problem{r.errs, r.warnings} {
		slices.SortStableFunc(list, func(a, b Problem) int {
			if a.Line != b.Line {
				return a.Line - b.Line
			}
			return a.Column - b.Column
		})
	}
	if r.dropped > 0 {
		r.errs = append(r.errs, Problem{Message: "and " + itoa(int64(r.dropped)) + " more problems"})
	}
	if len(r.errs) > 0 {
		return nil, r.errs, r.warnings
	}
	return p, nil, r.warnings
}

// reader collects what is wrong while the tables are walked.
type reader struct {
	pushed      bool
	homes       []home
	defaults    map[string]*Node               // of fields, by their text: few, and asked for in every rule
	names       map[any][]string               // of the fields of each table, by its first row
	keyPart     func(*reader, value, *KeyPart) // for first_of: Go allows no table that leads back to itself
	rule        ruleState                      // of the rule being read
	rules       []ruleAt                       // each rule's place
	expressions automaton.Set                  // of the whole policy
	compared    int                            // patterns of overrides, with others
	errs        []Problem
	warnings    []Problem
	dropped     int
}

// ruleState is what a rule's later fields need to know of its earlier ones.
type ruleState struct {
	*Rule
	algorithm limit.Algorithm // what its limits default to
	anyKey    bool            // the key could not be read, so nothing can be held against it
	limits    bool            // the limits are sound
}

// ruleAt is where a rule stands and whether it can be compared with others.
type ruleAt struct {
	value
	sound bool
}

func (r *reader) fail(v value, message string) { r.failAt(v.node.Line, v.node.Column, v.at, message) }

func (r *reader) failAt(line, column int, at place, message string) {
	if len(r.errs) == maxProblems {
		r.dropped++
		return
	}
	r.errs = append(r.errs, Problem{Line: line, Column: column, Path: at.String(), Message: message})
}

func (r *reader) warn(v value, message string) {
	if len(r.warnings) < maxProblems {
		r.warnings = append(r.warnings, Problem{Line: v.node.Line, Column: v.node.Column, Path: v.at.String(), Message: message})
	}
}

// mismatch reports that a value is not of its shape.
func (r *reader) mismatch(v value) {
	if v.node.Kind == Null {
		message := "is empty: give " + v.shape.String()
		switch {
		case v.required:
		case v.at.is == isItem:
			message += ", or remove the item"
		default:
			message += ", or remove the field"
		}
		r.fail(v, message)
		return
	}
	r.fail(v, "must be "+v.shape.String()+", not "+describe(v.node)+v.shape.advice(v.node))
}

// readObject reads the fields of v by their table. It reports whether v is an
// object at all.
func readObject[T any](r *reader, v value, fields []field[T], out *T) bool {
	return r.object(v, namesOf(r, fields), func(i int) (value, string) {
		return value{shape: fields[i].shape, required: fields[i].required}, fields[i].def
	}, func(i int, child value) { fields[i].read(r, child, out) })
}

// object is readObject for every type: known are the names of the fields, row
// says of the i-th what it must be and its default, read reads it.
func (r *reader) object(v value, known []string, row func(i int) (child value, def string), read func(i int, child value)) bool {
	if v.node.Kind != Object {
		r.mismatch(v)
		return false
	}
	var appeared [maxRows]int
	first := appeared[:len(known)] // index+1 of a field's first appearance
	meant := make([]string, 0, 4)  // fields that unknown ones stand for
	for i := range v.node.Fields {
		f := &v.node.Fields[i]
		at := indexOf(known, f.Name)
		if at < 0 {
			meant = append(meant, r.unknownField(v, f, known))
			continue
		}
		if first[at] > 0 {
			r.duplicateField(v, f, &v.node.Fields[first[at]-1])
			continue
		}
		first[at] = i + 1
	}
	around := ""
	if len(v.node.Fields) > 0 {
		around = v.at.String()
	}
	for i, name := range known {
		child, def := row(i)
		switch {
		case first[i] > 0:
			child.node = v.node.Fields[first[i]-1].Value
			child.at = place{is: isField, around: around, name: name}
		case child.required && indexOf(meant, name) >= 0:
			continue
		case child.required:
			r.failAt(v.node.Line, v.node.Column, v.at.field(name), "is missing: it must be "+child.shape.String())
			continue
		case def != "":
			child.node = r.defaultNode(def) // valid, so it needs no path
		default:
			continue
		}
		read(i, child)
	}
	return true
}

// unknownField reports f and answers the field it seems to stand for, if any.
func (r *reader) unknownField(v value, f *Field, known []string) string {
	if len(r.errs) == maxProblems {
		r.dropped++ // to find what it stands for would take longer than all other reading
		return ""
	}
	message, near := "unknown field", nearest(f.Name, known)
	if near == "" {
		if place := r.misplaced(f.Name); place != "" {
			known, message = nil, message+": "+place
		} else {
			near = likely(f.Name, known)
		}
	}
	switch {
	case isNotBuilt(v.shape.of, f.Name):
		message = "is not built yet: remove it"
		near = ""
	case near != "":
		message += ": did you mean " + quote(near) + "?"
	case message != "unknown field":
	case v.at.is == isDocument && foreign(f.Name) != "":
		message += ": " + foreign(f.Name)
	case len(known) > 0:
		message += ": the fields here are " + join(known)
	default:
		message += ": there is none here"
	}
	r.failAt(f.Line, f.Column, v.at.field(f.Name), message)
	return near
}

func (r *reader) duplicateField(v value, f, first *Field) {
	message := "appears twice"
	if first.Line > 0 {
		message += ", first in line " + itoa(int64(first.Line))
	}
	r.failAt(f.Line, f.Column, v.at.field(f.Name), message+": keep one")
}

// versionKnown holds back the other problems of a document in another version:
// its fields mean what that version says.
func (r *reader) versionKnown(v value) bool {
	for _, f := range v.node.Fields {
		if f.Name != "version" || f.Value.Kind != Number {
			continue
		}
		if n, fault := integerOf(f.Value.Text); fault != nil || n != Version {
			r.fail(value{node: f.Value, at: v.at.field(f.Name)},
				clip(f.Value.Text)+" is not known to this build, which reads version "+itoa(Version))
			return false
		}
	}
	return true
}

// readable checks what no table asks: that all text is UTF-8 and nesting ends.
func (r *reader) readable(n *Node) bool {
	if sound(n, MaxDepth) {
		return true
	}
	r.unsound(value{node: n}, MaxDepth)
	return false
}

func sound(n *Node, depth int) bool {
	if depth < 0 || !utf8.ValidString(n.Text) {
		return false
	}
	for _, item := range n.Items {
		if !sound(item, depth-1) {
			return false
		}
	}
	for i := range n.Fields {
		if !utf8.ValidString(n.Fields[i].Name) || !sound(n.Fields[i].Value, depth-1) {
			return false
		}
	}
	return true
}

// unsound is sound with paths, which are too dear to build for every document.
func (r *reader) unsound(v value, depth int) {
	if depth < 0 {
		r.fail(v, "is nested more than "+itoa(MaxDepth)+" deep")
		return
	}
	if !utf8.ValidString(v.node.Text) {
		r.fail(v, "is not UTF-8: "+quote(v.node.Text))
	}
	for i := range v.node.Items {
		r.unsound(v.item(i, shape{}), depth-1)
	}
	for i := range v.node.Fields {
		f := &v.node.Fields[i]
		at := v.at.field(f.Name)
		if !utf8.ValidString(f.Name) {
			r.failAt(f.Line, f.Column, at, "field name is not UTF-8")
		}
		r.unsound(value{node: f.Value, at: at}, depth-1)
	}
}

// member is the path of a field: a.b, or a["b c"] where the name is no short word.
func member(path, name string) string {
	plain := name != "" && clip(name) == name
	for i := 0; i < len(name) && plain; i++ {
		c := name[i]
		plain = c == '_' || c == '-' || isDigit(c) || isLetter(c)
	}
	switch {
	case !plain:
		return path + "[" + quote(name) + "]"
	case path == "":
		return name
	}
	return path + "." + name
}

// namesOf is names, which it makes once.
func namesOf[T any](r *reader, fields []field[T]) []string {
	if len(fields) == 0 {
		return nil
	}
	list, made := r.names[&fields[0]]
	if !made {
		if r.names == nil {
			r.names = map[any][]string{}
		}
		list = names(fields)
		r.names[&fields[0]] = list
	}
	return list
}

func names[T any](fields []field[T]) []string {
	list := make([]string, len(fields))
	for i := range fields {
		list[i] = fields[i].name
	}
	return list
}

// describe says what a value is, after "not".
func describe(n *Node) string {
	switch n.Kind {
	case Bool:
		return n.Text
	case Number:
		return clip(n.Text)
	case String:
		return quote(n.Text)
	case List:
		return "a list"
	case Object:
		return "an object"
	default:
		return "nothing"
	}
}

// quote is s in quotes, cut where it is too long for a message.
func quote(s string) string { return strconv.Quote(clip(s)) }

func clip(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > most-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

func join(list []string) string        { return strings.Join(list, ", ") }
func itoa(n int64) string              { return strconv.FormatInt(n, 10) }
func isDigit(c byte) bool              { return c >= '0' && c <= '9' }
func isLetter(c byte) bool             { return c|0x20 >= 'a' && c|0x20 <= 'z' }
func indexOf(l []string, s string) int { return slices.Index(l, s) }
