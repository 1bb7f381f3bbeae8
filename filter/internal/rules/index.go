package rules

import (
	"math/bits"
	"slices"
	"sort"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// minIndexed is how many rules must ask for a host, or for a path, before an
// index pays: fewer rules, asked one after the other, read less of the request
// and take no longer.
const minIndexed = 8

// Index finds the rules that a request may match by its host and path, so that
// a thousand rules cost little more than ten. It leaves out only rules that
// cannot match; the others are still asked whether they match. A set of rules
// has a bit for each, in policy order.
type Index struct {
	dimensions []dimension // the one that more rules ask for first
	candidates []uint64
	scratch    []uint64
}

// dimension is the index by host or by path.
type dimension struct {
	read   func(*request.Request) []string
	asking []uint64 // the rules that ask for it
	open   []uint64 // rules that are never left out: they do not ask, or ask by an expression

	exact    map[string][]uint32
	suffixes map[string][]uint32 // ".example.com"
	prefixes []prefix            // sorted
}

// prefix is the beginning of a text and the rules that ask for it.
type prefix struct {
	text   string
	parent int // index of the longest other prefix that text begins with, -1 for none
	rules  []uint32
}

// NewIndex makes the index of rules by their matches.
func NewIndex(rules []*Match) Index {
	size := (len(rules) + 63) / 64
	x := Index{candidates: make([]uint64, size), scratch: make([]uint64, size)}
	for _, d := range []struct {
		patterns func(*Match) []policy.Pattern
		read     func(*request.Request) []string
	}{
		{func(m *Match) []policy.Pattern { return m.hosts }, (*request.Request).Hosts},
		{func(m *Match) []policy.Pattern { return m.paths }, (*request.Request).Paths},
	} {
		if made := newDimension(rules, d.patterns, d.read); count(made.asking) >= minIndexed {
			x.dimensions = append(x.dimensions, made)
		}
	}
	sort.SliceStable(x.dimensions, func(i, j int) bool { return count(x.dimensions[i].asking) > count(x.dimensions[j].asking) })
	return x
}

func newDimension(rules []*Match, patterns func(*Match) []policy.Pattern, read func(*request.Request) []string) dimension {
	size := (len(rules) + 63) / 64
	d := dimension{
		read: read, asking: make([]uint64, size), open: make([]uint64, size),
		exact: map[string][]uint32{}, suffixes: map[string][]uint32{},
	}
	starts := map[string][]uint32{}
	for i := range rules {
		list := patterns(rules[i])
		if len(list) > 0 {
			add(d.asking, uint32(i))
		}
		isExpression := func(p policy.Pattern) bool { return p.Kind == policy.Regexp }
		if len(list) == 0 || slices.ContainsFunc(list, isExpression) {
			add(d.open, uint32(i))
			continue
		}
		for _, p := range list {
			var into map[string][]uint32
			switch p.Kind {
			case policy.Suffix:
				into = d.suffixes
			case policy.Prefix:
				into = starts
			default: // the only other kind that is indexed
				into = d.exact
			}
			into[p.Text] = append(into[p.Text], uint32(i))
		}
	}
	for text, rules := range starts {
		d.prefixes = append(d.prefixes, prefix{text: text, rules: rules})
	}
	d.nest()
	return d
}

// nest sorts the prefixes and links each to the one around it.
func (d *dimension) nest() {
	sort.Slice(d.prefixes, func(i, j int) bool { return d.prefixes[i].text < d.prefixes[j].text })
	for i := range d.prefixes {
		at := i - 1
		for at >= 0 && !strings.HasPrefix(d.prefixes[i].text, d.prefixes[at].text) {
			at = d.prefixes[at].parent
		}
		d.prefixes[i].parent = at
	}
}

// Find returns the rules that the request may match; nil means all of them. It
// reads the second of host and path only where a rule that asks for it is left.
func (x *Index) Find(r *request.Request) []uint64 {
	if len(x.dimensions) == 0 {
		return nil
	}
	x.dimensions[0].find(r, x.candidates)
	for i := range x.dimensions[1:] {
		d := &x.dimensions[i+1]
		if !meet(x.candidates, d.asking) {
			continue
		}
		d.find(r, x.scratch)
		for w := range x.candidates {
			x.candidates[w] &= x.scratch[w]
		}
	}
	return x.candidates
}

func (d *dimension) find(r *request.Request, out []uint64) {
	copy(out, d.open)
	for _, text := range d.read(r) {
		d.findText(text, out)
	}
}

func (d *dimension) findText(text string, out []uint64) {
	for _, i := range d.exact[text] {
		add(out, i)
	}
	if len(d.suffixes) > 0 {
		for at := strings.IndexByte(text, '.'); at >= 0; {
			for _, i := range d.suffixes[text[at:]] {
				add(out, i)
			}
			next := strings.IndexByte(text[at+1:], '.')
			if next < 0 {
				break
			}
			at += 1 + next
		}
	}
	d.findPrefixes(text, out)
}

// findPrefixes starts at the greatest prefix that does not sort after the text,
// and goes outwards: every prefix of the text is among those.
func (d *dimension) findPrefixes(text string, out []uint64) {
	at, exact := slices.BinarySearchFunc(d.prefixes, text, func(p prefix, text string) int {
		return strings.Compare(p.text, text)
	})
	if !exact {
		at--
	}
	for at >= 0 {
		p := &d.prefixes[at]
		if strings.HasPrefix(text, p.text) {
			for _, i := range p.rules {
				add(out, i)
			}
		}
		at = p.parent
	}
}

func add(set []uint64, i uint32) { set[i/64] |= 1 << (i % 64) }

func meet(a, b []uint64) bool {
	for w := range a {
		if a[w]&b[w] != 0 {
			return true
		}
	}
	return false
}

func count(set []uint64) (n int) {
	for _, word := range set {
		n += bits.OnesCount64(word)
	}
	return n
}
