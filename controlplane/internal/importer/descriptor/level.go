package descriptor

import (
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
)

// Level is what a configuration calls a descriptor: pairs of a key and its values, and the limit
// of the requests that have them.
type Level struct {
	Pairs []Pair       // first the pairs of the levels around it
	Limit *draft.Limit // nil = no limit
	At    source.Place
	Order int // in its file
}

// Pair is a key with the values that it may have.
type Pair struct {
	Key string
	request.Pattern
	Shared bool // all the values count together
}

// named is the name of a key and value in envoyproxy/ratelimit.
func named(key, value string) string {
	if value == "" {
		return key
	}
	return key + "_" + value
}

// Name has the keys and values of the level, such as path_/login.user.
func (l *Level) Name() string {
	var names []string
	for _, e := range l.Pairs {
		names = append(names, named(e.Key, e.Text()))
	}
	return strings.Join(names, ".")
}

// Grouped groups levels by their pair at a depth, in their order. Levels that have no pair there, or for which
// by is not ok, are in no group. By the values at depth 0, [path = /a], [path = /b, user] and [path = /a, user]
// make two groups: the first and the third, and the second.
func Grouped(levels []*Level, depth int, by func(Pair) (value string, ok bool)) (groups [][]*Level) {
	index := map[string]int{}
	for _, l := range levels {
		if len(l.Pairs) <= depth {
			continue
		}
		value, ok := by(l.Pairs[depth])
		switch i, known := index[value]; {
		case !ok:
		case known:
			groups[i] = append(groups[i], l)
		default:
			index[value] = len(groups)
			groups = append(groups, []*Level{l})
		}
	}
	return groups
}

// Levels are those of a configuration, with the search of its limiter through them.
type Levels struct {
	List    []*Level
	search  func(entries []Entry) []*leaf
	reached map[*Level]bool // by some descriptor
}

// ServiceLevels are searched as envoyproxy/ratelimit does.
func ServiceLevels(list []*Level) *Levels {
	// A descriptor meets only levels with the key of its first entry. To search all of them for each would take long.
	byKey := map[string][]*Level{}
	for _, l := range list {
		key := l.Pairs[0].Key
		byKey[key] = append(byKey[key], l)
	}
	search := func(entries []Entry) []*leaf { return serviceLeaves(byKey[entries[0].Key], entries) }
	return &Levels{List: list, search: search, reached: map[*Level]bool{}}
}

// LocalLevels are searched as Envoy's local filter does.
func LocalLevels(list []*Level) *Levels {
	search := func(entries []Entry) []*leaf { return localLeaves(list, entries) }
	return &Levels{List: list, search: search, reached: map[*Level]bool{}}
}

// Rules makes the rules of the levels that requests with these descriptors come to.
func (ls *Levels) Rules(to *draft.Findings, sent []Descriptor) (list []*draft.Rule) {
	for i := range sent {
		leaves := ls.search(sent[i].Entries)
		for _, l := range leaves {
			ls.reached[l.Level] = true
		}
		list = append(list, sent[i].rulesOfLeaves(to, leaves)...)
	}
	return list
}

// NoteUnreached notes the limits of the levels that no descriptor came to.
func (ls *Levels) NoteUnreached(to *draft.Findings) {
	for _, l := range ls.List {
		if l.Limit != nil && !ls.reached[l] {
			noteNoRequest(to, l.At, l.Name())
		}
	}
}

// noteNoRequest notes a limit that has no rule, because no request comes to it.
func noteNoRequest(to *draft.Findings, at source.Place, name string) {
	to.Note(at, strings.TrimPrefix(name+": no request reaches this limit, so there is no rule for it", ": "))
}
