package rules

import (
	"math/bits"
	"slices"
	"sort"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// minIndexed is how many rules must ask for a host, or for a path, before an index pays.
// Fewer rules, asked one after the other, read less of the request and take no longer.
const minIndexed = 8

// Index finds the rules that a request may match by its host and path, so that
// a thousand rules cost little more than ten. It leaves out only rules that
// cannot match; the others are still asked whether they match.
type Index struct {
	dimensions []*dimension // the one that more rules ask for first

	// Memory for Find:
	candidates RuleSet
	scratch    RuleSet
}

// RuleSet is a set of rules: a bit for each, in policy order.
type RuleSet []uint64

func newRuleSet(rules int) RuleSet { return make(RuleSet, (rules+63)/64) }

func (set RuleSet) addRule(i uint32) { set[i/64] |= 1 << (i % 64) }

func (set RuleSet) size() (n int) {
	for _, word := range set {
		n += bits.OnesCount64(word)
	}
	return n
}

// meets reports whether a rule is in both.
func (set RuleSet) meets(other RuleSet) bool {
	for w := range set {
		if set[w]&other[w] != 0 {
			return true
		}
	}
	return false
}

// keepOf removes the rules that are not in the other set.
func (set RuleSet) keepOf(other RuleSet) {
	for w := range set {
		set[w] &= other[w]
	}
}

// by says what a dimension looks at: the patterns of a match, and the texts of a request.
type by struct {
	patterns func(*Match) []policy.Pattern
	read     func(*request.Request) []string
}

// dimension is the index by host or by path.
type dimension struct {
	by
	asking RuleSet // the rules that ask for it
	open   RuleSet // rules that are never left out: they do not ask for it, or by an expression

	exact, suffixes, prefixes []asked // each sorted; a suffix is ".example.com"
}

// asked is a text and the rules that ask for it. A map would take its place, but TinyGo's
// collector reads a map's memory as pointers.
type asked struct {
	text   string
	parent int // of a prefix: index of the longest other prefix that it begins with, -1 for none
	rules  []uint32
}

// NewIndex makes the index of rules by their matches.
func NewIndex(rules []*Match) Index {
	x := Index{candidates: newRuleSet(len(rules)), scratch: newRuleSet(len(rules))}
	for _, of := range []by{
		{func(m *Match) []policy.Pattern { return m.hosts }, (*request.Request).Hosts},
		{func(m *Match) []policy.Pattern { return m.paths }, (*request.Request).Paths},
	} {
		d := newDimension(rules, of)
		if d.asking.size() >= minIndexed {
			x.dimensions = append(x.dimensions, d)
		}
	}
	if d := x.dimensions; len(d) == 2 && d[1].asking.size() > d[0].asking.size() {
		d[0], d[1] = d[1], d[0]
	}
	return x
}

func newDimension(rules []*Match, of by) *dimension {
	d := &dimension{by: of, asking: newRuleSet(len(rules)), open: newRuleSet(len(rules))}
	for i := range rules {
		list := of.patterns(rules[i])
		if len(list) > 0 {
			d.asking.addRule(uint32(i))
		}
		isExpression := func(p policy.Pattern) bool { return p.Kind == policy.Regexp }
		if len(list) == 0 || slices.ContainsFunc(list, isExpression) {
			d.open.addRule(uint32(i))
			continue
		}
		for _, p := range list {
			var into *[]asked
			switch p.Kind {
			case policy.Suffix:
				into = &d.suffixes
			case policy.Prefix:
				into = &d.prefixes
			default: // the only other kind that is indexed
				into = &d.exact
			}
			*into = append(*into, asked{text: p.Text, rules: []uint32{uint32(i)}})
		}
	}
	d.exact = sorted(d.exact)
	d.suffixes = sorted(d.suffixes)
	d.prefixes = sorted(d.prefixes)
	d.nest()
	return d
}

// sorted sorts by text, and joins those with the same text.
func sorted(list []asked) []asked {
	sort.SliceStable(list, func(i, j int) bool { return list[i].text < list[j].text })
	n := 0
	for i := range list {
		if n > 0 && list[n-1].text == list[i].text {
			list[n-1].rules = append(list[n-1].rules, list[i].rules...)
			continue
		}
		list[n] = list[i]
		n++
	}
	return list[:n]
}

// lastUpTo returns the index of the last text that does not sort after this one, -1 for none.
// exact says that it is this one.
func lastUpTo(list []asked, text string) (at int, exact bool) {
	at, exact = slices.BinarySearchFunc(list, text, func(a asked, text string) int {
		return strings.Compare(a.text, text)
	})
	if !exact {
		at--
	}
	return at, exact
}

// addAskingFor adds the rules that ask for this very text.
func (set RuleSet) addAskingFor(text string, list []asked) {
	if at, exact := lastUpTo(list, text); exact {
		for _, i := range list[at].rules {
			set.addRule(i)
		}
	}
}

// nest links each prefix to the one around it.
func (d *dimension) nest() {
	for i := range d.prefixes {
		at := i - 1
		for at >= 0 && !strings.HasPrefix(d.prefixes[i].text, d.prefixes[at].text) {
			at = d.prefixes[at].parent
		}
		d.prefixes[i].parent = at
	}
}

// Find returns the rules that the request may match; nil means all of them. It reads the
// second of host and path only if a rule that asks for it is left.
func (x *Index) Find(r *request.Request) RuleSet {
	if len(x.dimensions) == 0 {
		return nil
	}
	x.dimensions[0].findRules(r, x.candidates)
	for _, d := range x.dimensions[1:] {
		if x.candidates.meets(d.asking) {
			d.findRules(r, x.scratch)
			x.candidates.keepOf(x.scratch)
		}
	}
	return x.candidates
}

// findRules finds the rules that the request may match by this dimension.
func (d *dimension) findRules(r *request.Request, found RuleSet) {
	copy(found, d.open)
	for _, text := range d.read(r) {
		d.addByText(found, text)
	}
}

// addByText adds the rules that ask for the text, or for a suffix or a prefix of it.
func (d *dimension) addByText(found RuleSet, text string) {
	found.addAskingFor(text, d.exact)
	if len(d.suffixes) > 0 {
		for at := strings.IndexByte(text, '.'); at >= 0; {
			found.addAskingFor(text[at:], d.suffixes)
			next := strings.IndexByte(text[at+1:], '.')
			if next < 0 {
				break
			}
			at += 1 + next
		}
	}
	d.addByPrefix(found, text)
}

// addByPrefix starts at the last prefix that does not sort after the text, and goes on to its
// parents: every prefix of the text is among these.
func (d *dimension) addByPrefix(found RuleSet, text string) {
	for at, _ := lastUpTo(d.prefixes, text); at >= 0; {
		p := &d.prefixes[at]
		if strings.HasPrefix(text, p.text) {
			for _, i := range p.rules {
				found.addRule(i)
			}
		}
		at = p.parent
	}
}
