// Package request says which requests a rule is for, and which of them count together.
//
//	part       of a request: the path, a header, the client's address    part.go
//	pattern    which values of a part fit: the text /login, what begins  pattern.go
//	           with /a, an expression
//	match      for some parts, the patterns of which one must fit         match.go
//	selection  a match and what is exempt from it, or why a policy         selection.go
//	           cannot say for which requests something holds
//
// To join conditions, ask whether both sides may have one on the same part:
//
//	both may have                    call               example
//	no part twice                    Selection.Require  a condition of a route or a selector. Exclude is its opposite
//	a path, of which one is within   Selection.And      a host with its routes, an action with the next (envoy);
//	the other                                           a scope with those in it, a variable with the next (nginx)
//	any part, with values of which   Selection.Meet     a scope with one form of a limit's key (nginx): the hosts
//	some fit both                                       *.example and a.example
//
// What they cannot say is a reason in WhyOff. For a match alone there is Match.TryRequire, which is not ok where it
// cannot say the condition: a leaf's value then goes to the key (descriptor), and a map's entry is off (nginx).
// Match.With joins nothing: its condition replaces the one that the match had on the part.
//
// Its invariant: what a policy cannot say is never said wrongly. A selection that cannot say a condition has
// the reason in WhyOff, and a rule for it is off.
package request

import (
	"maps"
	"slices"
	"strings"
)

// Selection says for which requests something holds: those that match and are not exempt. If a policy cannot
// say that, WhyOff has the reasons: a rule for them is off.
//
// A copy of a selection shares its lists. So they change by AddExempt and the methods of Remarks alone, which leave the
// lists of other copies as they are.
type Selection struct {
	Match  Match
	Exempt []Match
	Remarks
}

// Remarks are what is to say of a rule before it is made: those of its selection, and those of its limit.
type Remarks struct {
	Comments []string
	WhyOff   []string // why the rule is off
}

// Comment adds a comment for the rule.
func (r *Remarks) Comment(text string) { r.Comments = append(slices.Clip(r.Comments), text) }

// Cannot adds what a policy cannot say, and why: the rule is off.
func (r *Remarks) Cannot(why string) { r.WhyOff = append(slices.Clip(r.WhyOff), why) }

// AddAll adds other remarks.
func (r *Remarks) AddAll(other Remarks) {
	r.Comments = append(slices.Clip(r.Comments), other.Comments...)
	r.WhyOff = append(slices.Clip(r.WhyOff), other.WhyOff...)
}

// CannotMatch adds a condition that no match can say.
func (s *Selection) CannotMatch(condition string) {
	s.Cannot("No match can select its requests: " + condition + ".")
}

// And is for the requests of both selections, such as those of a route and those of the host around it. If they
// have different conditions on one part, such as two methods, it says that no match can select them.
func (s Selection) And(other Selection) Selection {
	match, ok := s.Match.and(other.Match)
	s.Match = match
	s.AddExempt(other.Exempt...)
	if !ok {
		s.CannotMatch("they have two conditions on one part")
	}
	s.AddAll(other.Remarks)
	return s
}

// Require adds the condition that the part fits the pattern.
func (s *Selection) Require(p Part, v Pattern) {
	if m, ok := s.narrowed(s.Match, p, v); ok {
		s.Match = m
	}
}

// Exclude exempts the requests whose part fits the pattern.
func (s *Selection) Exclude(p Part, v Pattern) {
	if m, ok := s.narrowed(nil, p, v); ok {
		s.AddExempt(m)
	}
}

// narrowed is a match in which the part fits a pattern too. If no match can say that it is not ok, and the
// selection has the reason. If the policy compares another text, the selection has a comment.
func (s *Selection) narrowed(m Match, p Part, v Pattern) (narrow Match, ok bool) {
	narrow, comment, why := m.narrow(p, v)
	if comment != "" {
		s.Comment(comment)
	}
	if why != "" {
		s.CannotMatch(why)
	}
	return narrow, why == ""
}

// IsEverything reports whether it is for every request.
func (s Selection) IsEverything() bool { return len(s.Match)+len(s.Exempt)+len(s.WhyOff) == 0 }

// AddExempt adds exemptions. Each call copies the list, so add many at once.
func (s *Selection) AddExempt(list ...Match) { s.Exempt = append(slices.Clip(s.Exempt), list...) }

// HasExempt reports whether one of the exemptions is this match.
func (s *Selection) HasExempt(m Match) bool { return slices.ContainsFunc(s.Exempt, m.Equal) }

// Meet is And for selections that often have conditions on one part: it looks which values fit both. The hosts
// a.example and *.example meet in a.example. It has no request if no value fits both, as of a.example and
// b.example.
func (s Selection) Meet(other Selection) (both Selection, hasAny bool) {
	met := Match{}
	maps.Copy(met, s.Match)
	unmet := Match{} // conditions of other that And says no match can select
	for id, values := range other.Match {
		common, ok := commonValues(id.kind, s.Match[id], values)
		switch {
		case !ok:
			unmet[id] = values
		case len(common) == 0:
			return Selection{}, false
		default:
			met[id] = common
		}
	}
	s.Match = met
	other.Match = unmet
	return s.And(other), true
}

// commonValues are the patterns for the values of a kind of part that fit one of each list; an empty list
// fits all. It is not ok if no list of patterns says that.
func commonValues(kind PartKind, a, b []Pattern) (common []Pattern, ok bool) {
	if len(a) == 0 {
		return b, true
	}
	for _, p := range a {
		for _, q := range b {
			switch {
			case IsValueWithin(kind, p, q):
				common = AppendNew(common, []Pattern{p})
			case IsValueWithin(kind, q, p):
				common = AppendNew(common, []Pattern{q})
			case !IsValueApart(kind, p, q):
				return nil, false
			}
		}
	}
	return common, true
}

// IsValueWithin reports whether every value of a kind of part that fits p fits q. Hosts and addresses are
// compared as a match does: the text of a pattern may be *.a.example or a network.
func IsValueWithin(kind PartKind, p, q Pattern) bool {
	switch kind {
	case KindHost:
		return strings.EqualFold(p.Text, q.Text) || IsHostBelow(p.Text, q.Text)
	case KindClientIP:
		narrow, _ := NetworkOf(p.Text)
		wide, _ := NetworkOf(q.Text)
		return wide.Bits() <= narrow.Bits() && wide.Overlaps(narrow)
	default:
		return p.TextWithin(q)
	}
}

// IsValueApart reports whether no value of a kind of part fits both p and q. Of two hosts or networks, one is
// within the other or they are apart.
func IsValueApart(kind PartKind, p, q Pattern) bool {
	switch kind {
	case KindHost, KindClientIP:
		return !IsValueWithin(kind, p, q) && !IsValueWithin(kind, q, p)
	default:
		return p.TextApart(q)
	}
}

// IsHostBelow reports whether every host of a name is one of another, wider name, as those of a.b.example and
// *.b.example are hosts of *.example. Hosts have no case.
func IsHostBelow(name, wider string) bool {
	name = strings.ToLower(name)
	wider = strings.ToLower(wider)
	end, isWildcard := strings.CutPrefix(wider, "*")
	return isWildcard && name != wider && strings.HasSuffix(strings.TrimPrefix(name, "*"), end)
}
