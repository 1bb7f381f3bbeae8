package policy

// The model is what the tables say of a policy's format, for whoever writes it
// down: the JSON Schema and the reference page. The filter does not link it.

// ObjectDoc is an object of the policy file.
type ObjectDoc struct {
	Name     string // "policy" is the whole file
	Fields   []FieldDoc
	OneField bool     // it has exactly one of the fields
	NotBuilt []string // fields that the format has, and this build refuses
}

// FieldDoc is a field of an object.
type FieldDoc struct {
	Name     string
	Doc      string
	Default  *Node // nil = none, or what the doc says
	Required bool
	Reserved bool // refused in a file: the control plane sets it
	Type     TypeDoc
	NotBuilt []string // words that the format has, and this build refuses
}

// TypeDoc is what a value looks like.
type TypeDoc struct {
	Kind     TypeKind
	Words    []string  // of TypeWord
	Min, Max int64     // of TypeInteger; of TypeList how many items; of TypeText how many bytes, 0 = any number
	Pattern  string    // of TypeText: RE2 and ECMAScript alike; "" = any
	Object   string    // of TypeObject: its name
	Item     *TypeDoc  // of TypeList and TypeHeaders: of each value
	Forms    []TypeDoc // of TypeChoice
	Text     string    // as errors say it: "must be …"
}

// TypeKind is the kind of a type.
type TypeKind uint8

// The kinds of types.
const (
	TypeUnknown TypeKind = iota // a shape without a word in written.go; a test finds it
	TypeText
	TypeName
	TypeWord
	TypeInteger
	TypeBoolean
	TypeDuration
	TypeList
	TypeObject
	TypeHeaders // an object from header names to values
	TypeChoice  // one of several forms
)

// Model returns every object of the policy file, in the order of reading.
func Model() []ObjectDoc {
	return []ObjectDoc{
		objectDoc("policy", policyFields),
		objectDoc("rule", ruleFields),
		objectDoc("match", matchFields),
		objectDoc("key", keyFields),
		objectDoc("client_ip", clientIPFields),
		objectDoc[KeyPart]("host", nil),
		objectDoc[KeyPart]("method", nil),
		objectDoc("path", keyPathFields),
		objectDoc[KeyPart]("route", nil),
		objectDoc("jwt", jwtFields),
		objectDoc("limit", limitFields),
		objectDoc("cost", costFields),
		objectDoc("override", overrideFields),
		objectDoc("response", responseFields),
		objectDoc("manage", manageFields),
	}
}

func objectDoc[T any](name string, fields []field[T]) ObjectDoc {
	o := ObjectDoc{Name: name, OneField: name == "key"}
	for i := range fields {
		row := &fields[i]
		f := FieldDoc{
			Name: row.name, Doc: row.doc, Required: row.required, Reserved: name+"."+row.name == "policy.revision",
			Type: typeDoc(name+"."+row.name, row.shape),
		}
		if row.def != "" {
			f.Default = defaultNode(row.def)
		}
		for _, n := range notBuiltWords {
			if n.field == row.name {
				f.NotBuilt = append(f.NotBuilt, n.word)
			}
		}
		o.Fields = append(o.Fields, f)
	}
	for _, n := range notBuilt {
		if n.object == name {
			o.NotBuilt = append(o.NotBuilt, n.name)
		}
	}
	return o
}

// typeDoc is the type of the field at "OBJECT.FIELD".
func typeDoc(at string, s shape) TypeDoc {
	d := TypeDoc{Text: s.String()}
	switch s.form {
	case formText:
		d.Kind, d.Pattern = TypeText, writtenText()[at]
	case formName:
		d.Kind, d.Max = TypeName, MaxNameBytes
	case formWord:
		d.Kind, d.Words = TypeWord, s.words
	case formInteger:
		d.Kind, d.Min, d.Max = TypeInteger, s.min, s.max
	case formBool:
		d.Kind = TypeBoolean
	case formDuration:
		d.Kind, d.Pattern = TypeDuration, durationPattern
	case formList:
		item := itemDoc(s.of)
		d.Kind, d.Item = TypeList, &item
		d.Min, d.Max = writtenItems()[at][0], writtenItems()[at][1]
	case formObject:
		d.Kind, d.Object = TypeObject, s.of
	case formPatterns:
		d.Kind, d.Item, d.Min = TypeHeaders, &TypeDoc{Kind: TypeText, Pattern: headerValuePattern}, 1
	case formChoice:
		if forms, told := writtenChoice(s.of); told {
			d.Kind, d.Forms = TypeChoice, forms
		}
	}
	return d
}

// itemDoc is the type of a list's items: as written says, or the object of
// that name.
func itemDoc(of string) TypeDoc {
	if d, told := writtenItem(of); told {
		return d
	}
	return TypeDoc{Kind: TypeObject, Object: of}
}
