package policy

import (
	"sort"
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/automaton"
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

const (
	// MaxDepth is how deep lists and objects may nest in a policy.
	MaxDepth = 32
	// MaxRules is how many rules a policy may have.
	MaxRules = 10_000
	// MaxProblems bounds what is said of a document that is wrong everywhere.
	MaxProblems = 1_000
	// maxFields is how many fields an object may have.
	maxFields = 32
)

// Read makes the policy of a file. It reports every problem, not only the
// first; with any problem the policy is nil.
func Read(doc *Node) (*Policy, []Problem) { return (&reader{}).read(doc) }

// ReadPushed is Read for a policy that comes from the control plane, which may
// carry its revision.
func ReadPushed(doc *Node) (*Policy, []Problem) { return (&reader{pushed: true}).read(doc) }

// reader collects what is wrong while the tables are walked.
type reader struct {
	pushed      bool
	keyPart     func(*reader, value, *KeyPart) // for first_of: Go allows no table that leads back to itself
	rule        ruleState                      // of the rule being read
	rules       []ruleAt                       // each rule's place
	expressions automaton.Set                  // of the whole policy
	problems    []Problem
	dropped     int
}

// ruleState is what a rule's later fields need to know of its earlier ones.
type ruleState struct {
	*Rule
	algorithm limit.Algorithm // what its limits default to
	anyKey    bool            // the key could not be read, so nothing can be held against it
	limits    bool            // the limits are sound
	givesBody bool            // the response has a body of its own
}

// holds is Rule.Holds, also where the limits are not sound.
func (s *ruleState) holds() bool { return s.Settle != nil || s.algorithm == limit.Concurrency }

// ruleAt is where a rule stands and whether it can be compared with others.
type ruleAt struct {
	value
	sound bool
}

func (r *reader) read(doc *Node) (*Policy, []Problem) {
	r.keyPart = readKeyPart
	v := value{node: doc, shape: required(objectOf(policyObject.Name))}
	p := &Policy{}
	if r.versionKnown(v) && readObject(r, v, policyObject, p) {
		r.setQuota(p)
		r.checkRules(p)
	}
	sort.SliceStable(r.problems, func(i, j int) bool {
		a, b := &r.problems[i], &r.problems[j]
		return a.Line < b.Line || a.Line == b.Line && a.Column < b.Column
	})
	if r.dropped > 0 {
		r.problems = append(r.problems, Problem{Code: MoreProblems, Args: []string{itoa(int64(r.dropped))}})
	}
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return p, nil
}

// count is how many problems there are so far.
func (r *reader) count() int { return len(r.problems) + r.dropped }

func (r *reader) fail(v value, code Code, args ...string) {
	r.add(Problem{Code: code, Line: v.node.Line, Column: v.node.Column, Node: v.node, Want: v.shape, Args: args}, v.at)
}

// failName reports what is wrong with the name of a field of v.
func (r *reader) failName(v value, f *Field, code Code, args ...string) {
	r.add(Problem{Code: code, Line: f.Line, Column: f.Column, Want: v.shape, Args: args}, v.at.field(f.Name))
}

func (r *reader) add(p Problem, at place) {
	if len(r.problems) == MaxProblems {
		r.dropped++
		return
	}
	p.Path = at.String()
	r.problems = append(r.problems, p)
}

// readObject reads the fields of v by their table. It reports whether v is an
// object at all.
func readObject[T any](r *reader, v value, o *object[T], out *T) bool {
	return r.object(v, o.Fields, func(i int, child value) { o.read[i](r, child, out) })
}

// readSound is readObject that reports whether there was no problem.
func readSound[T any](r *reader, v value, o *object[T], out *T) bool {
	before := r.count()
	return readObject(r, v, o, out) && r.count() == before
}

func (r *reader) object(v value, known []FieldSchema, read func(i int, child value)) bool {
	if v.node.Kind != Object {
		r.fail(v, WrongValue)
		return false
	}
	var appeared [maxFields]int
	first := appeared[:len(known)] // index+1 of a field's first appearance
	for i := range v.node.Fields {
		f := &v.node.Fields[i]
		at := indexOf(known, f.Name)
		switch {
		case at < 0:
			r.failName(v, f, UnknownField, f.Name)
		case first[at] > 0:
			r.duplicate(v, f, &v.node.Fields[first[at]-1])
		default:
			first[at] = i + 1
		}
	}
	around := ""
	if len(v.node.Fields) > 0 {
		around = v.at.String()
	}
	for i := range known {
		child := value{shape: known[i].Shape, node: known[i].Default} // a default is valid, so it needs no path
		switch {
		case first[i] > 0:
			child.node = v.node.Fields[first[i]-1].Value
			child.at = place{is: isField, around: around, name: known[i].Name}
		case child.shape.Required:
			r.fail(value{node: v.node, at: v.at.field(known[i].Name), shape: child.shape}, MissingField)
			continue
		case child.node == nil:
			continue
		}
		read(i, child)
	}
	return true
}

func indexOf(known []FieldSchema, name string) int {
	for i := range known {
		if known[i].Name == name {
			return i
		}
	}
	return -1
}

func (r *reader) duplicate(v value, f, first *Field) {
	if first.Line > 0 {
		r.failName(v, f, DuplicateField, itoa(int64(first.Line)))
	} else {
		r.failName(v, f, DuplicateField)
	}
}

// versionKnown holds back the other problems of a document in another version:
// its fields mean what that version says.
func (r *reader) versionKnown(v value) bool {
	for _, f := range v.node.Fields {
		if f.Name != "version" || f.Value.Kind != Number {
			continue
		}
		if n, ok := integerOf(f.Value.Text); !ok || n != Version {
			r.fail(value{node: f.Value, at: v.at.field(f.Name)}, UnknownVersion)
			return false
		}
	}
	return true
}

// refuse reports each of the fields that the object has.
func (r *reader) refuse(v value, code Code, names ...string) {
	for _, name := range names {
		if v.has(name) {
			r.fail(v.field(name), code)
		}
	}
}

// value is a value of the document and the shape expected there.
type value struct {
	node  *Node
	at    place
	shape Shape
}

// item is the i-th item of a list.
func (v value) item(i int, s Shape) value {
	return value{node: v.node.Items[i], at: v.at.item(i), shape: s}
}

// has reports whether the object names the field.
func (v value) has(name string) bool { return v.node.Member(name) != nil }

// hasOf is how many of the fields the object names.
func (v value) hasOf(names ...string) (n int) {
	for _, name := range names {
		if v.has(name) {
			n++
		}
	}
	return n
}

// field is the place of a field, or of its object where the field is absent.
func (v value) field(name string) value {
	at := value{node: v.node, at: v.at.field(name)}
	if n := v.node.Member(name); n != nil {
		at.node = n
	}
	return at
}

// inObject is the place of a field, or of the value itself where that is no object.
func (v value) inObject(name string) value {
	if v.node.Kind != Object {
		return v
	}
	return v.field(name)
}

// place is where a value stands. Its text is put together where a problem needs it.
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
		return Join(p.around, p.name)
	case isItem:
		return p.around + "[" + itoa(int64(p.index)) + "]"
	default:
		return ""
	}
}

// Join is the path of a field: a.b, or a["b c"] where the name is no short word.
func Join(path, name string) string {
	plain := name != "" && Clip(name) == name
	for i := 0; i < len(name) && plain; i++ {
		c := name[i]
		plain = c == '_' || c == '-' || isDigit(c) || isLetter(c)
	}
	switch {
	case !plain:
		return path + "[" + strconv.Quote(Clip(name)) + "]"
	case path == "":
		return name
	}
	return path + "." + name
}

func isDigit(c byte) bool  { return c >= '0' && c <= '9' }
func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
