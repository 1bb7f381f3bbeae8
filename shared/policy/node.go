package policy

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

	Line, Column int // from 1; 0 where the source has no positions
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
