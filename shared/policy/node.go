package policy

import (
	"strconv"
	"strings"
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

// Place is a value of a document, or where an object lacks a field.
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

// Paths say where in the document the places are, as in "rules[2].limits[0].per".
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

// step is the way to a field: .a, or ["b c"] where the name is no short word.
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
