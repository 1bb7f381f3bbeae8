package descriptor

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
)

// leaf is where the limiter's search ends for some requests of a descriptor: the values that
// they have, and their limit, nil if there is none. An example:
//
//	entries of the descriptor   pairs of the level   values of the leaf
//	path = the request's path   path = /login        /login for the path
//	kind = api, a fixed text    kind = api           none: it is the same for all requests
//	user = the header x-user    user = anything      anything for the header x-user
//
// The leaves of one descriptor have values for the same parts, in the same order.
type leaf struct {
	*Level             // one without a limit for the requests of no level of the configuration
	values []leafValue // one for each entry of the descriptor that is a part of the request
}

// leafValue is a part of the request and the pattern that it fits.
type leafValue struct {
	part    request.Compared
	pattern request.Pattern
	shared  bool // all that fits counts together
}

// leafOfRest is the leaf of the requests that no level takes: those of the descriptor that have the pairs begin, and
// any values behind them. It has no limit.
func leafOfRest(entries []Entry, begin []Pair) *leaf { return leafBehind(entries, begin, &Level{}) }

// leafOfAll is the leaf of all requests that have the entries, with a limit at a place.
func leafOfAll(entries []Entry, limit *draft.Limit, at source.Place) *leaf {
	return leafBehind(entries, nil, &Level{Limit: limit, At: at})
}

// leafBehind is the leaf of a new level, which has the pairs begin, and any values behind them.
func leafBehind(entries []Entry, begin []Pair, l *Level) *leaf {
	l.Pairs = slices.Clone(begin)
	for _, e := range entries[len(begin):] {
		l.Pairs = append(l.Pairs, Pair{Key: e.Key})
	}
	end, _ := l.leafOf(entries) // fits: begin was chosen for these entries, and the rest has their keys and any value
	return end
}

// leafOf is the leaf of the level for a descriptor with these entries. It fits if the entries have
// the keys of the level's pairs, and may have their values.
func (l *Level) leafOf(entries []Entry) (end *leaf, fits bool) {
	if len(l.Pairs) != len(entries) {
		return nil, false
	}
	end = &leaf{Level: l}
	for i, e := range entries {
		switch has := l.Pairs[i]; {
		case has.Key != e.Key, e.isFixed() && !has.Matches(e.Value):
			return nil, false
		case !e.isFixed():
			end.values = append(end.values, leafValue{part: e.Part, pattern: has.Pattern, shared: has.Shared})
		}
	}
	return end, true
}

// within reports whether every request of the leaf has the values of another one too. Like that of
// patterns it may say false where it is so.
//
// Values are compared as texts, also those of hosts and addresses, because these limiters compare texts: the value
// 10.0.0.0/8 is that of a request whose address is masked to it, and not that of 10.1.2.3.
func (l *leaf) within(other *leaf) bool {
	for i := range l.values {
		if !l.values[i].pattern.Within(other.values[i].pattern) {
			return false
		}
	}
	return true
}

// apart reports whether no request has the values of both leaves, compared as within does. Like that of patterns it
// may say false where it is so.
func (l *leaf) apart(other *leaf) bool {
	for i := range l.values {
		if l.values[i].pattern.Apart(other.values[i].pattern) {
			return true
		}
	}
	return false
}

// isOneText reports whether each value is one text: then no other leaf is within this one.
func (l *leaf) isOneText() bool {
	return !slices.ContainsFunc(l.values, func(v leafValue) bool { return v.pattern.Kind() != request.Exactly })
}

// canOverride reports whether a leaf can be an override of another one's rule, which takes
// the same window and the same enforcement.
func (l *leaf) canOverride(other *leaf) bool {
	// An override has no comments and no mode of its own.
	isPlain := func(l *leaf) bool {
		return len(l.Limit.Comments)+len(l.Limit.WhyOff) == 0 && l.whyNoOverride() == "" &&
			!slices.ContainsFunc(l.values, func(v leafValue) bool { return v.shared })
	}
	return l.within(other) && l.Limit.IsOfClass(other.Limit) && isPlain(l) && isPlain(other)
}

// whyNoOverride says why no override has a leaf's patterns, if none does. Only a path can be the reason: no request has
// an address that no override can say, so dropUnreachable takes such a leaf out before.
func (l *leaf) whyNoOverride() string {
	for _, v := range l.values {
		if _, ok := v.asOverride(); !ok {
			return "Paths are compared without the query, and cannot say " + v.pattern.Text() + "."
		}
	}
	return ""
}

// asOverride writes the pattern as overrides have it. It is not ok if no override can say it.
func (v leafValue) asOverride() (text string, ok bool) { return v.part.AsOverride(v.pattern) }

// isImpossible reports whether no request has such a value.
func (v leafValue) isImpossible() bool { return v.part.IsNever(v.pattern) }

// sharing begins a sentence about values that have one counter.
func (v leafValue) sharing() string {
	return "The values of " + v.part.String() + " that fit " + v.pattern.Text() + " share one counter there"
}
