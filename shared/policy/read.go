package policy

import (
	"sort"

	"github.com/sluice-ratelimit/sluice/shared/automaton"
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

const (
	// MaxDepth is how deep lists and objects may nest in a policy.
	MaxDepth = 32
	// MaxRules is how many rules a policy may have.
	MaxRules = 10_000
	// MaxProblems is how many problems are reported of a document that is wrong everywhere.
	MaxProblems = 1_000
	// maxFields is how many fields an object may have.
	maxFields = 32
)

var document = required(objectOf("policy"))

// Read makes the policy of a file. It reports every problem, not only the
// first; with any problem the policy is nil.
func Read(doc *Node) (*Policy, []Problem) { return (&reader{}).read(doc) }

// ReadPushed is Read for a policy that comes from the control plane, which may
// carry its revision.
func ReadPushed(doc *Node) (*Policy, []Problem) { return (&reader{pushed: true}).read(doc) }

// reader collects problems while the tables are read.
type reader struct {
	pushed      bool
	keyPart     func(*reader, value, *KeyPart) // is readKeyPart: Go allows no table that leads back to itself
	rule        ruleState                      // of the rule being read
	rules       []ruleAt                       // each rule's place
	expressions automaton.Set                  // of the whole policy
	problems    []Problem
	dropped     int
}

// ruleState is what a rule's later fields need to know of its earlier ones. A table is read in its
// order. TestARulesFieldsAreReadInOrder checks that ruleObject has them so:
//
//	field      written by   read by
//	Rule       readRule     overrides: key and limits, as far as they are read
//	algorithm  algorithm    limits: their default
//	anyKey     key          overrides
//	limits     limits       overrides
//	givesBody  response     missing_key
//
// At the end, the checks of the whole rule in readRule read all of it.
type ruleState struct {
	*Rule
	algorithm limit.Algorithm // what its limits default to, 0 if it could not be read
	anyKey    bool            // the key could not be read, so overrides are not checked against it
	limits    bool            // the limits are sound
	givesBody bool            // the response has a body of its own
}

// holds is Rule.Holds, also if the limits are not sound.
func (s *ruleState) holds() bool { return s.Settle != nil || s.algorithm == limit.Concurrency }

// ruleAt is where a rule stands and whether it can be compared with others.
type ruleAt struct {
	value
	sound bool
}

func (r *reader) read(doc *Node) (*Policy, []Problem) {
	r.keyPart = readKeyPart
	v := value{Place{Node: doc}, &document}
	p := &Policy{}
	if r.versionKnown(v) && readObject(r, v, policyObject, p) {
		r.setQuota(p)
		r.fitsUsage(v, p)
		r.checkRules(p)
	}
	if problems := r.found(doc); len(problems) > 0 {
		return nil, problems
	}
	p.Expressions, p.ExpressionBytes = r.expressions.Size()
	return p, nil
}

// found are the problems of a document in its order.
func (r *reader) found(doc *Node) []Problem {
	if len(r.problems) == 0 {
		return nil
	}
	var places []Place
	for i := range r.problems {
		places = append(places, r.problems[i].at, r.problems[i].first)
	}
	paths := doc.Paths(places)
	for i := range r.problems {
		r.problems[i].Path = paths[2*i]
		r.problems[i].First = paths[2*i+1]
	}
	sort.SliceStable(r.problems, func(i, j int) bool {
		a, b := &r.problems[i], &r.problems[j]
		return a.Line < b.Line || a.Line == b.Line && a.Column < b.Column
	})
	if r.dropped > 0 {
		r.problems = append(r.problems, Problem{Code: MoreProblems, Args: []string{itoa(int64(r.dropped))}})
	}
	return r.problems
}

// count is how many problems there are so far.
func (r *reader) count() int { return len(r.problems) + r.dropped }

func (r *reader) fail(v value, code Code, args ...string) { r.failTwice(v, code, value{}, args...) }

// failTwice reports a value that is like another one before it.
func (r *reader) failTwice(v value, code Code, first value, args ...string) {
	p := problemAt(v, code)
	p.Args = args
	p.first = first.Place
	r.add(p, v.shape)
}

func problemAt(v value, code Code) Problem {
	return Problem{Code: code, Line: v.Line, Column: v.Column, Node: v.Node, at: v.Place}
}

// failName reports a problem with the name of a field of v.
func (r *reader) failName(v value, f *Field, code Code, args ...string) {
	r.add(Problem{Code: code, Line: f.Line, Column: f.Column, Args: args, at: Place{v.Node, step(f.Name)}}, v.shape)
}

func (r *reader) add(p Problem, want *Shape) {
	if want != nil {
		p.Want = *want
	}
	if len(r.problems) == MaxProblems {
		r.dropped++
	} else {
		r.problems = append(r.problems, p)
	}
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
	if v.Kind != Object {
		r.fail(v, WrongValue)
		return false
	}
	var appeared [maxFields]int
	first := appeared[:len(known)] // index+1 of a field's first appearance
	for i := range v.Fields {
		f := &v.Fields[i]
		at := indexOf(known, f.Name)
		switch {
		case at < 0:
			r.failName(v, f, UnknownField, f.Name)
		case first[at] > 0:
			r.duplicate(v, f, &v.Fields[first[at]-1])
		default:
			first[at] = i + 1
		}
	}
	for i := range known {
		child := value{Place{Node: known[i].Default}, &known[i].Shape}
		switch {
		case first[i] > 0:
			child.Node = v.Fields[first[i]-1].Value
		case child.shape.Required:
			r.fail(value{v.Field(known[i].Name), child.shape}, MissingField)
			continue
		case child.Node == nil:
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
	for _, f := range v.Fields {
		if f.Name != "version" || f.Value.Kind != Number {
			continue
		}
		if n, ok := integerOf(f.Value.Text); !ok || n != Version {
			r.fail(valueOf(f.Value), UnknownVersion)
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
	Place
	shape *Shape // nil: none is expected
}

// valueOf is a node for which no shape is expected.
func valueOf(n *Node) value { return value{Place: Place{Node: n}} }

// as is v, of which a choice is expected, where only that form of the choice is.
func (v value) as(form Form) value {
	for i := range v.shape.Any {
		if of := &v.shape.Any[i]; of.Form == form {
			v.shape = of
			break
		}
	}
	return v
}

// item is the i-th item of a list, whose shape v has.
func (v value) item(i int) value { return value{v.Item(i), &v.shape.Any[0]} }

// has reports whether the object has the field.
func (v value) has(name string) bool { return v.Member(name) != nil }

// hasOf is how many of these fields the object has.
func (v value) hasOf(names ...string) (n int) {
	for _, name := range names {
		if v.has(name) {
			n++
		}
	}
	return n
}

// field is the place of a field, or of its object if the field is absent.
func (v value) field(name string) value { return value{Place: v.Field(name)} }

// inObject is the place of a field, or of the value itself if that is no object.
func (v value) inObject(name string) value {
	if v.Kind != Object {
		return v
	}
	return v.field(name)
}

func isDigit(c byte) bool  { return c >= '0' && c <= '9' }
func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
