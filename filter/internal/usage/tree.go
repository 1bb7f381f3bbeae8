package usage

import (
	"encoding/binary"
	"strings"
	"sync"
)

// A name of an object is looked up when it is complete: first among all names that matter, then
// among those that the object's node has.

// name is the number of a name that matters, 0 for others.
type name uint8

// node is the number of a node in the tree of all rows' paths. A value that no row's path leads to, or
// through, is at 0.
type node uint8

const theRoot node = 1

// maxName is the size of the longest name that matters.
const maxName = 32

// slots is the size of the hash tables of names and of edges, several times their number.
const slots = 1024

// place is what the tables say of the values at a node.
type place struct {
	row    *row // of the count here, nil if there is none
	mark   mark
	kind   kind // of text here, none if no row says it
	object kind // of the text in an object here
	items  node // of an array here
}

// edge goes from an object to its value under a name.
type edge struct {
	from node
	name name
	to   node
}

// tree is made of the tables. Names and nodes are from 1 on.
type tree struct {
	spelt  [256]spelling
	kinds  [256]kind // of the names, none if the envelope does not have the name
	byKey  [slots]name
	places [256]place // by node
	edges  [slots]edge

	names, nodes int // how many there are
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

// theTree is made with the first scanner, see Reset. If the compiler made it, it would be 12 KB of
// the module's constants, and the collector takes numbers in these for pointers.
var theTree *tree

var makeTree sync.Once

func newTree() *tree {
	t := &tree{nodes: int(theRoot)}
	for i := range counts {
		at := t.nodeAt(counts[i].path)
		t.places[at].row = &counts[i]
	}
	for _, m := range marks {
		at := t.nodeAt(m.path)
		t.places[at].mark = m.mark
	}
	for _, r := range texts {
		of, isObject := strings.CutSuffix(r.path, ".")
		at := t.nodeAt(of)
		if isObject {
			t.places[at].object = r.kind
		} else {
			t.places[at].kind = r.kind
		}
	}
	for _, a := range aliases {
		t.link(t.nodeAt(a.object), t.add(a.name), t.nodeAt(a.same))
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

// nodeAt returns the node of a path, which it makes if there is none.
func (t *tree) nodeAt(path string) node {
	at := theRoot
	for path != "" {
		if rest, isArray := strings.CutPrefix(path, "[]"); isArray {
			if t.places[at].items == 0 {
				items := t.newNode()
				t.places[at].items = items
			}
			at, path = t.places[at].items, rest
			continue
		}
		end := 1
		for end < len(path) && path[end] != '.' && path[end] != '[' {
			end++
		}
		n := t.add(path[1:end])
		next := t.field(at, n)
		if next == 0 {
			next = t.newNode()
			t.link(at, n, next)
		}
		at, path = next, path[end:]
	}
	return at
}

func (t *tree) newNode() node {
	t.nodes++
	return node(t.nodes) // fits: a test counts them
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

// nameKey is the slot where a name is looked for first: the upper ten bits of a product, which depend on all
// bits of the name. 0x9e37… is 2⁶⁴ by the golden ratio, as Knuth hashes numbers.
func nameKey(first, last uint64) uint32 {
	return uint32((first + last*8) * 0x9e3779b97f4a7c15 >> 54)
}

func (t *tree) link(from node, n name, to node) {
	key := edgeKey(from, n)
	for t.edges[key].from != 0 {
		key = (key + 1) % slots
	}
	t.edges[key] = edge{from, n, to}
}

// field returns the node of an object's value under a name, 0 if there is none.
func (t *tree) field(from node, n name) node {
	for key := edgeKey(from, n); t.edges[key].from != 0; key = (key + 1) % slots {
		if e := &t.edges[key]; e.from == from && e.name == n {
			return e.to
		}
	}
	return 0
}

// edgeKey is the slot where an edge is looked for first. These factors put few edges into one slot.
func edgeKey(from node, n name) uint32 { return (uint32(from)*167 + uint32(n)*5) % slots }
