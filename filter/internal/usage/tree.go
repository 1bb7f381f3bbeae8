package usage

import (
	"encoding/binary"
	"strings"
	"sync"
)

// A name of an object is looked up when it is complete: first among all names that matter, then
// among those that the object's path has.

// name is the number of a name that matters, 0 for others.
type name uint8

// path is the place of a value: a node of the tree of all rows' paths, or 0 if no row begins so.
type path uint8

const theRoot path = 1

// maxName is the size of the longest name that matters.
const maxName = 32

// slots is the size of the hash tables of names and of edges, several times their number.
const slots = 1024

// node is a place in an answer.
type node struct {
	row    *row // of the count here, nil if there is none
	mark   mark
	kind   kind // of text here, none if no row says it
	object kind // of the text in an object here
	items  path // of the items of an array here
}

// edge goes from an object to its value under a name.
type edge struct {
	from path
	name name
	to   path
}

// tree is made of the tables. Names and nodes are from 1 on.
type tree struct {
	spelt [256]spelling
	kinds [256]kind // of the names, none if the envelope does not have the name
	byKey [slots]name
	nodes [256]node
	edges [slots]edge

	names, paths int // how many there are
}

// spelling is a name, with its first and last eight bytes as numbers: they differ for most names.
type spelling struct {
	first, last uint64
	text        string
}

// spell returns the first and the last bytes of a name. Names of up to 16 bytes have no others.
func spell(p []byte) (first, last uint64) {
	n := len(p)
	switch {
	case n >= 8:
		return binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[n-8:])
	case n >= 4:
		return uint64(binary.LittleEndian.Uint32(p)), uint64(binary.LittleEndian.Uint32(p[n-4:]))
	case n > 0:
		return uint64(p[0]) | uint64(p[n/2])<<8, uint64(p[n-1])
	}
	return 0, 0
}

// isOf reports whether a name, with these ends, is spelt so. It makes no string of the name:
// TinyGo would allocate that.
func (s *spelling) isOf(p []byte, first, last uint64) bool {
	if s.first != first || s.last != last || len(s.text) != len(p) {
		return false
	}
	for i := 8; i < len(p)-8; i++ {
		if s.text[i] != p[i] {
			return false
		}
	}
	return true
}

// places is made with the first scanner, see Reset. If the compiler made it, it would be 12 KB of
// the module's constants, and the collector takes numbers in these for pointers.
var places *tree

var makePlaces sync.Once

func newTree() *tree {
	t := &tree{paths: int(theRoot)}
	for i := range counts {
		at := t.place(counts[i].path)
		t.nodes[at].row = &counts[i]
	}
	for _, m := range marks {
		at := t.place(m.path)
		t.nodes[at].mark = m.mark
	}
	for _, r := range texts {
		of, isObject := strings.CutSuffix(r.path, ".")
		at := t.place(of)
		if isObject {
			t.nodes[at].object = r.kind
		} else {
			t.nodes[at].kind = r.kind
		}
	}
	for _, a := range aliases {
		t.link(t.place(a.object), t.add(a.name), t.place(a.same))
	}
	for _, list := range envelope {
		for rest := list.names; rest != ""; {
			var s string
			s, rest, _ = strings.Cut(rest, " ")
			n := t.add(s)
			t.kinds[n] = list.kind
		}
	}
	return t
}

// place returns the node of a path, which it makes if there is none.
func (t *tree) place(text string) path {
	at := theRoot
	for text != "" {
		if rest, isArray := strings.CutPrefix(text, "[]"); isArray {
			if t.nodes[at].items == 0 {
				items := t.newNode()
				t.nodes[at].items = items
			}
			at, text = t.nodes[at].items, rest
			continue
		}
		end := 1
		for end < len(text) && text[end] != '.' && text[end] != '[' {
			end++
		}
		n := t.add(text[1:end])
		next := t.field(at, n)
		if next == 0 {
			next = t.newNode()
			t.link(at, n, next)
		}
		at, text = next, text[end:]
	}
	return at
}

func (t *tree) newNode() path {
	t.paths++
	return path(t.paths) // fits: a test counts them
}

// add returns the number of a name, which it makes if there is none.
func (t *tree) add(s string) name {
	p := []byte(s)
	if n := t.lookup(p); n != 0 {
		return n
	}
	first, last := spell(p)
	key := nameKey(first, last)
	for t.byKey[key] != 0 {
		key = (key + 1) % slots
	}
	t.names++
	t.byKey[key] = name(t.names) // fits: a test counts them
	t.spelt[t.names] = spelling{first, last, s}
	return t.byKey[key]
}

// lookup returns the number of a name.
func (t *tree) lookup(p []byte) name {
	first, last := spell(p)
	for key := nameKey(first, last); t.byKey[key] != 0; key = (key + 1) % slots {
		if n := t.byKey[key]; t.spelt[n].isOf(p, first, last) {
			return n
		}
	}
	return 0
}

// nameKey is the slot where a name is looked for first.
func nameKey(first, last uint64) uint32 {
	return uint32((first + last*8) * 0x9e3779b97f4a7c15 >> 54)
}

func (t *tree) link(from path, n name, to path) {
	key := edgeKey(from, n)
	for t.edges[key].from != 0 {
		key = (key + 1) % slots
	}
	t.edges[key] = edge{from, n, to}
}

// field returns the place of an object's value under a name, 0 if that has no row.
func (t *tree) field(from path, n name) path {
	for key := edgeKey(from, n); t.edges[key].from != 0; key = (key + 1) % slots {
		if e := &t.edges[key]; e.from == from && e.name == n {
			return e.to
		}
	}
	return 0
}

func edgeKey(from path, n name) uint32 { return (uint32(from)*167 + uint32(n)*5) % slots }
