package envoy

import (
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/descriptor"
)

// guess lists the descriptors that lead to limits. Without routes it guesses the part of the request from
// each key. Where Envoy's routes choose a key's value, there is a descriptor for each value. An example:
//
//	levels                        descriptors
//	x_user = anything             x_user, whose part is the header x-user: a guess
//	  path = /login               x_user and path, whose part is the path: it commonly is
//	generic_key = slow            generic_key = slow, whose rule is off: only routes say when Envoy sends it
//
// The calls that go from level to level:
//
//	guessBelow     for each key of the levels at a depth:
//	  guessEach    if routes choose its values, a descriptor for each value
//	  guessWith    adds an entry with the key, and begins again below
func (r *reader) guess(levels []*descriptor.Level) []descriptor.Descriptor {
	isFree := func(l *descriptor.Level) bool { return l.Limit == nil }
	list := r.guessBelow(slices.DeleteFunc(slices.Clone(levels), isFree), descriptor.Descriptor{})
	if len(r.keys.guesses) > 0 {
		r.NoteImport("Guessed keys, because no routes are given: " + strings.Join(r.keys.guesses, ", ") + ". A request " +
			"without such a header has no limit. To be sure, give --routes FILE or --key KEY=header:NAME.")
	}
	return list
}

// guessBelow lists the descriptors that begin as the levels do.
func (r *reader) guessBelow(levels []*descriptor.Level, before descriptor.Descriptor) (list []descriptor.Descriptor) {
	depth := len(before.Entries)
	byKey := func(p descriptor.Pair) (string, bool) { return p.Key, true }
	for _, group := range descriptor.Grouped(levels, depth, byKey) {
		key := group[0].Pairs[depth].Key
		isOwnValue := !slices.ContainsFunc(group, func(l *descriptor.Level) bool { return l.Pairs[depth].Text() != key })
		p, why := r.keys.usePart(key, isOwnValue)
		if why != "" {
			list = append(list, r.guessEach(before, key, why, group)...)
			continue
		}
		if differs := notesOfUsual[strings.ToLower(key)]; differs != "" {
			r.NoteImport(differs)
		}
		list = append(list, r.guessWith(before, descriptor.Entry{Key: key, Part: p}, group)...)
	}
	return list
}

// guessEach lists the descriptors for each value of a key that stands for no part of the request. Their
// rules are off.
func (r *reader) guessEach(
	before descriptor.Descriptor, key, why string, levels []*descriptor.Level,
) (list []descriptor.Descriptor) {
	depth := len(before.Entries)
	byValue := func(p descriptor.Pair) (string, bool) { return p.Text(), true }
	for _, way := range descriptor.Grouped(levels, depth, byValue) {
		d, value := before, way[0].Pairs[depth].Text()
		which := key + " = " + value
		if value == "" {
			which = key + ", with a counter for each value"
		}
		d.Cannot("It is for requests for which Envoy sends " + which + ". " + why)
		list = append(list, r.guessWith(d, descriptor.Entry{Key: key, Value: value}, way)...)
	}
	return list
}

// guessWith lists a descriptor with one entry more, if a level ends there, and those that begin so.
func (r *reader) guessWith(
	d descriptor.Descriptor, e descriptor.Entry, levels []*descriptor.Level,
) (list []descriptor.Descriptor) {
	d.Entries = append(slices.Clip(d.Entries), e)
	if slices.ContainsFunc(levels, func(l *descriptor.Level) bool { return len(l.Pairs) == len(d.Entries) }) {
		list = append(list, d)
	}
	return append(list, r.guessBelow(levels, d)...)
}
