package policy

// Shape is what a value looks like in the document.
type Shape struct {
	Form     Form
	Required bool
	Words    []string // of FormWord
	Min, Max int64    // of FormInteger and FormPrice; of FormList how many items; a Max of 0 is any number
	Of       string   // of FormObject, FormList, FormChoice and FormText: which object, item, choice or text
	Any      []Shape  // of FormChoice: the forms that there are; of FormList what an item is
}

// Form is the kind of a Shape.
type Form uint8

// The forms of values.
const (
	FormText Form = 1 + iota
	FormName
	FormWord
	FormInteger
	FormBool
	FormDuration
	FormPeriod // a duration, or words such as "minute" and "15 minutes"
	FormList
	FormObject
	FormPatterns // an object from header names to patterns
	FormTexts    // an object from names to texts
	FormPrice    // a number with at most six decimal places
	FormChoice   // one of several forms
)

func integer(low, high int64) Shape { return Shape{Form: FormInteger, Min: low, Max: high} }
func textOf(name string) Shape      { return Shape{Form: FormText, Of: name} }
func objectOf(name string) Shape    { return Shape{Form: FormObject, Of: name} }

func listOf(item Shape, least, most int64) Shape {
	return Shape{Form: FormList, Of: item.Of, Min: least, Max: most, Any: []Shape{item}}
}

func choice(of string, forms ...Shape) Shape { return Shape{Form: FormChoice, Of: of, Any: forms} }

var (
	textShape     = Shape{Form: FormText}
	tokenShape    = textOf("token") // of RFC 9110
	nameShape     = Shape{Form: FormName}
	boolShape     = Shape{Form: FormBool}
	durationShape = Shape{Form: FormDuration}
	periodShape   = Shape{Form: FormPeriod}
)

func word[W ~string](words ...W) Shape {
	s := Shape{Form: FormWord}
	for _, w := range words {
		s.Words = append(s.Words, string(w))
	}
	return s
}

func required(s Shape) Shape {
	s.Required = true
	return s
}

// ObjectSchema is an object of the policy file.
type ObjectSchema struct {
	Name   string // "policy" is the whole file
	IsOne  bool   // it has exactly one of the fields
	Fields []FieldSchema
}

// FieldSchema is a field of an object.
type FieldSchema struct {
	Name    string
	Shape   Shape
	Default *Node // read if the field is absent; nil = none
}

// Schema returns every object of the policy file, in the order of reading.
func Schema() []ObjectSchema {
	whole := policyObject.ObjectSchema
	whole.Fields = append(placementObject().Fields, whole.Fields...)
	list := []ObjectSchema{
		whole, selectorObject().ObjectSchema, quotaObject.ObjectSchema, ruleObject.ObjectSchema, matchObject.ObjectSchema,
	}
	list = append(list, keyObjects()...)
	return append(list, limitObject.ObjectSchema, requestsObject.ObjectSchema, slotsObject.ObjectSchema,
		costObject.ObjectSchema, byteCostObject.ObjectSchema, matchedCostObject.ObjectSchema,
		settleObject.ObjectSchema, settleToObject.ObjectSchema, priceObject.ObjectSchema, answerObject.ObjectSchema,
		blockObject.ObjectSchema,
		overrideObject.ObjectSchema, missingKeyObject.ObjectSchema, responseObject.ObjectSchema, manageObject.ObjectSchema,
		usageObject.ObjectSchema)
}

// field is one row of an object's table. Reading, the schema and the reference
// use the same row, so they cannot drift apart.
type field[T any] struct {
	name  string
	shape Shape
	def   string // as a person would write it; "" = none
	read  func(r *reader, v value, out *T)
}

// words is the row of a field that is one of some words.
func words[T any, W ~string](name, def string, to func(*T) *W, list ...W) field[T] {
	return field[T]{name, word(list...), def, func(r *reader, v value, out *T) { *to(out) = W(r.word(v)) }}
}

// object is the table of an object that is read into a T.
type object[T any] struct {
	ObjectSchema
	read []func(r *reader, v value, out *T)
}

func newObject[T any](name string, fields []field[T]) *object[T] {
	o := &object[T]{ObjectSchema: ObjectSchema{Name: name}}
	for i := range fields {
		f := FieldSchema{Name: fields[i].name, Shape: fields[i].shape}
		if fields[i].def != "" {
			f.Default = defaultNode(fields[i].def)
		}
		o.Fields = append(o.Fields, f)
		o.read = append(o.read, fields[i].read)
	}
	return o
}

// oneOf is a table of an object that has exactly one of the fields. Who reads it checks that.
func oneOf[T any](o *object[T]) *object[T] {
	o.IsOne = true
	return o
}

// defaultNode returns what the document would have for a default. Nobody may
// change it.
func defaultNode(def string) *Node {
	switch {
	case isNumber(def):
		return &Node{Kind: Number, Text: def}
	case def == "true", def == "false":
		return &Node{Kind: Bool, Text: def}
	}
	return &Node{Kind: String, Text: def}
}
