package descriptor

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
)

// Leaf is where the limiter's search ends for some requests of a descriptor: the values that
// they have, and their limit, nil if there is none. An example:
//
//	entries of the descriptor   pairs of the level   values of the leaf
//	path = the request's path   path = /login        /login for the path
//	kind = api, a fixed text    kind = api           none: it is the same for all requests
//	user = the header x-user    user = anything      anything for the header x-user
type Leaf struct {
	level  *Level // nil for the requests of no level
	Name   string
	values []leafValue // one for each entry of the descriptor that is a part of the request
	Quota  *draft.Quota
	At     source.Place
	order  int // of its level

	overrides *Leaf // set by joinOverrides: the later leaf whose rule has this one as an override; nil if none has
}

// NewLeaf is the leaf of a limit for all requests of a descriptor: each part of them may have any value.
func NewLeaf(name string, q *draft.Quota, at source.Place, entries []Entry) Leaf {
	l := LeafOfRest(entries)
	l.Name = name
	l.Quota = q
	l.At = at
	return l
}

// leafValue is a part of the request and the pattern that it fits.
type leafValue struct {
	part    *request.Part
	pattern request.Pattern
	shared  bool // all that fits counts together
}

// hasOwnRule reports whether the leaf's limit is a rule, and not an override of another leaf's.
func (l *Leaf) hasOwnRule() bool { return l.Quota != nil && l.overrides == nil }

// isImpossible reports whether no request has such a value.
func (v leafValue) isImpossible() bool { return v.part.IsNever(v.pattern) }

// sharing begins a sentence about values that have one counter.
func (v leafValue) sharing() string {
	return "The values of " + v.part.String() + " that fit " + v.pattern.Text + " share one counter there"
}

// asOverride writes the pattern as overrides have it. It is not ok if no override can say it.
func (v leafValue) asOverride() (text string, ok bool) { return v.part.AsOverride(v.pattern) }

// within reports whether every request of the leaf has the values of another one too. Like that of
// patterns it may say false where it is so.
func (l *Leaf) within(other *Leaf) bool {
	for i := range l.values {
		if !l.values[i].pattern.TextWithin(other.values[i].pattern) {
			return false
		}
	}
	return true
}

// isOneText reports whether each value is one text: then no other leaf is within this one.
func (l *Leaf) isOneText() bool {
	return !slices.ContainsFunc(l.values, func(v leafValue) bool { return v.pattern.Kind != request.Exactly })
}

// apart reports whether no request has the values of both leaves. Like that of patterns it may say false
// where it is so.
func (l *Leaf) apart(other *Leaf) bool {
	for i := range l.values {
		if l.values[i].pattern.TextApart(other.values[i].pattern) {
			return true
		}
	}
	return false
}

// canOverride reports whether a leaf can be an override of another one's rule, which takes
// the same window and the same enforcement.
func (l *Leaf) canOverride(other *Leaf) bool {
	isPlain := func(l *Leaf) bool {
		return len(l.Quota.Comments)+len(l.Quota.WhyOff) == 0 && l.unsayable() == "" &&
			!slices.ContainsFunc(l.values, func(v leafValue) bool { return v.shared })
	}
	return l.within(other) && l.Quota.IsOfClass(other.Quota) && isPlain(l) && isPlain(other)
}

// unsayable says why no override has a leaf's patterns, if none does. That is so for paths alone: addresses that no
// override can say are those that no request has, and dropUnreachable took their leaves out.
func (l *Leaf) unsayable() string {
	for _, v := range l.values {
		if _, ok := v.asOverride(); !ok {
			return "Paths are compared without the query, and cannot say " + v.pattern.Text + "."
		}
	}
	return ""
}

// countLimited counts the leaves with a limit.
func countLimited(leaves []Leaf) (n int) {
	for i := range leaves {
		if leaves[i].Quota != nil {
			n++
		}
	}
	return n
}

// dropUnreachable returns the leaves that some request may end in, and notes the limits of the others. A
// request ends in the first leaf whose values it has.
func dropUnreachable(findings *draft.Findings, leaves []Leaf) (list []Leaf) {
	for i := range leaves {
		l := &leaves[i]
		isImpossible := slices.ContainsFunc(l.values, leafValue.isImpossible)
		switch {
		case !isImpossible && !l.isWithinAny(list):
			list = append(list, *l)
		case l.Quota != nil:
			NoteNoRequest(findings, l.At, l.Name)
		}
	}
	return list
}

func (l *Leaf) isWithinAny(list []Leaf) bool {
	for i := range list {
		if l.within(&list[i]) {
			return true
		}
	}
	return false
}
