package usage

// path is where a value stands, or what was read of a name: a node of the tree of all rows'
// paths, or 0 where no row is.
type path uint16

const theRoot path = 1

// node has what follows on a path.
type node struct {
	row           *row   // whose path ends here, nil where none does
	fields, items path   // of an object and an array that stand here
	longer, other path   // the first name with one more character, and the next one beside this
	c             byte   // that character
	begun         uint32 // bits of the characters that follow in a name, modulo 32
}

type nodes []node

// tree is made of the rows. Nothing follows on its first node, that of 0.
var tree = func() nodes {
	all := make(nodes, theRoot+1, 512)
	for i := range rows {
		at := theRoot
		for _, c := range []byte(rows[i].path) {
			at = all.follow(at, c)
		}
		all[at].row = &rows[i]
	}
	return all
}()

// follow returns the path that a path leads to with c, and makes it where there is none.
func (t *nodes) follow(at path, c byte) path {
	from := &(*t)[at]
	next := &from.longer
	switch c {
	case ']':
		return at
	case '.':
		next = &from.fields
	case '[':
		next = &from.items
	default:
		from.begun |= 1 << (c % 32)
		for *next != 0 && (*t)[*next].c != c {
			next = &(*t)[*next].other
		}
	}
	if *next == 0 {
		*next = path(len(*t)) // fits: there are some hundreds
		*t = append(*t, node{c: c})
		return path(len(*t) - 1)
	}
	return *next
}

// with returns the path of the name that goes on with c.
func (at path) with(c byte) path {
	if tree[at].begun>>(c%32)&1 == 0 {
		return 0
	}
	for at = tree[at].longer; at != 0 && tree[at].c != c; at = tree[at].other {
	}
	return at
}
