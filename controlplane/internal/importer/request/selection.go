// Package request says which requests a rule is for, and which of them count together.
//
//	part       of a request: the path, a header, the client's address     part.go
//	value      what a limiter compares of a part: the path with its       value.go
//	           query, where the policy compares the path alone (path.go)
//	pattern    which values fit: the text /login, what begins with /a,    pattern.go
//	           or an expression (regex.go)
//	match      for some parts, the patterns of which one must fit;        match.go
//	           hosts and addresses are compared by what they name
//	           (name.go)
//	selection  a match and what is exempt from it, or why a policy        selection.go
//	           cannot say for which requests something holds
//
// How a condition gets into a selection, such as that the host is a.example:80:
//
//	Selection.Require(Host.Value(), Exact("a.example:80"))
//	  Value.Fitting          what has the condition alone, or why no match says it
//	    Value.translate      Exact("a.example"), and a comment: without its port
//	    Part.takes           a match may have that
//	  Selection.NarrowTo     joins it with the selection
//
// There is no other way into one: ExemptFitting and ToHosts go by Fitting too.
//
// Two conditions on one part become the values that fit both: of the paths /a* and /a/b it is /a/b. There may be none,
// as of the hosts a.example and b.example, or no list of patterns says which they are. Then NarrowTo leaves the new
// condition out, and WhyOff says so.
//
// Requests of others are left out by exemptions. As everywhere, what no exemption says turns the rule off:
//
//	ExemptMatches   those of matches
//	ExemptFitting   those whose value fits a pattern
//	ExemptSelected  those of other selections
//
// The readers' functions that do the same have names that begin with exempt. One of these exempts more than it should,
// and so limits fewer requests: exemptAtLeast in package envoy. An override is no exemption: it gives requests another
// limit, or none.
//
// Its invariant: a selection that is for other requests than the files say has a comment or a reason in WhyOff. A
// comment is enough where the policy compares the same part with less, as the host without its port, or where fewer
// requests are limited than there. Else it is WhyOff, and a rule for the selection is off: then its match has more
// requests than the files say, and never fewer.
package request

import "slices"

// Selection says for which requests something holds: those that match and are not exempt. If a policy cannot
// say that, WhyOff has the reasons: a rule for them is off.
//
// Its methods change it, and leave copies of it as they are: they copy a list before they append to it.
type Selection struct {
	match  Match
	exempt []Match
	Remarks
}

// Remarks are what is to say of a rule before it is made: those of its selection, and those of its limit.
type Remarks struct {
	comments []string
	whyOff   []WhyOff
}

// WhyOff is why a rule is off, in a sentence: a policy cannot say something.
type WhyOff string

// NoMatch is why, if the rule's requests have a condition that no match can say. The condition is a clause, such as
// "they come at night".
func NoMatch(condition string) WhyOff {
	return WhyOff("No match can select its requests: " + condition + ".")
}

// Comments are those for the rule.
func (r Remarks) Comments() []string { return r.comments }

// WhyOff are the reasons why the rule is off.
func (r Remarks) WhyOff() []WhyOff { return r.whyOff }

// IsOff reports whether there is such a reason.
func (r Remarks) IsOff() bool { return len(r.whyOff) > 0 }

// AreNone reports whether there is nothing to say.
func (r Remarks) AreNone() bool { return len(r.comments)+len(r.whyOff) == 0 }

// Comment adds a comment for the rule.
func (r *Remarks) Comment(text string) { r.comments = append(slices.Clip(r.comments), text) }

// TurnOff adds a reason why the rule is off.
func (r *Remarks) TurnOff(why WhyOff) { r.whyOff = append(slices.Clip(r.whyOff), why) }

// AddAll adds other remarks.
func (r *Remarks) AddAll(other Remarks) {
	r.comments = append(slices.Clip(r.comments), other.comments...)
	r.whyOff = append(slices.Clip(r.whyOff), other.whyOff...)
}

// Match is what the requests match, those that are exempt too. It is not ok if the selection is off: then it lacks the
// condition that no match can say, and an exemption by it exempts too much.
func (s Selection) Match() (m Match, ok bool) { return s.match, !s.IsOff() }

// Of are the patterns that a part must fit one of to match; none if there is no condition on it.
func (s Selection) Of(p Part) []Pattern { return s.match[p.id()] }

// IsNone reports whether it exempts all that it matches. A true answer is sure, as in IsApart.
func (s Selection) IsNone() bool { return s.HasExempt(s.match) }

// IsApart reports whether no request is in both selections, as of the hosts a.example and b.example. A true answer is
// sure, also of a selection that is off, as its match has more requests and never fewer.
func (s Selection) IsApart(other Selection) bool {
	for id, others := range other.match {
		values, inBoth := s.match[id]
		if common, isKnown := id.commonValues(values, others); inBoth && isKnown && len(common) == 0 {
			return true
		}
	}
	return false
}

// Require keeps the requests whose value fits one of the patterns.
func (s *Selection) Require(v Value, patterns ...Pattern) { s.NarrowTo(v.Fitting(patterns...)) }

// NarrowTo keeps the requests that another selection has too, such as those of a route in those of the host around it.
// If they have conditions on one part that cannot be joined, such as two methods, it leaves that of the other out, and
// says that no match can select them.
func (s *Selection) NarrowTo(other Selection) {
	match, why := s.match.joined(other.match)
	s.match = match
	if why != "" {
		s.TurnOff(why)
	}
	s.ExemptMatches(other.exempt...)
	s.AddAll(other.Remarks)
}

// ExemptFitting exempts the requests whose value fits one of the patterns.
func (s *Selection) ExemptFitting(v Value, patterns ...Pattern) {
	fitting := v.Fitting(patterns...)
	s.AddAll(fitting.Remarks)
	if !fitting.IsOff() {
		s.ExemptMatches(fitting.match)
	}
}

// ExemptMatches exempts the requests of matches. One of every request would end the limit without a word, so it turns
// the rule off instead. Each call copies the list, so add many at once.
func (s *Selection) ExemptMatches(list ...Match) {
	isEverything := func(m Match) bool { return len(m) == 0 }
	if slices.ContainsFunc(list, isEverything) {
		s.TurnOff("It should exempt every request.")
		list = slices.DeleteFunc(slices.Clone(list), isEverything)
	}
	s.exempt = append(slices.Clip(s.exempt), list...)
}

// Exempt are the matches whose requests are exempt.
func (s Selection) Exempt() []Match { return s.exempt }

// HasExempt reports whether one of the exemptions is this match.
func (s Selection) HasExempt(m Match) bool { return slices.ContainsFunc(s.exempt, m.Equal) }

// ExemptSelected exempts the requests of other selections, and returns those that it has exempted. If one may have
// requests of this one, and no exemption says which, the rule is off: whyOf makes the reason, of the other's index and
// of why no exemption has its requests.
//
// It adds no comments of the others. If an exempted one has a comment, because a policy compares less of its requests,
// this one exempts more requests than there: the caller says that in its own words.
func (s *Selection) ExemptSelected(
	others []Selection, whyOf func(i int, why WhyOff) WhyOff,
) (exempted []Selection) {
	var matches []Match
	var whyOff []WhyOff
	add := func(i int, why WhyOff) {
		if why := whyOf(i, why); !slices.Contains(whyOff, why) {
			whyOff = append(whyOff, why)
		}
	}
	for i, o := range others {
		switch {
		case s.IsApart(o): // it has none of them
		case o.IsOff():
			add(i, o.whyOff[0])
		case len(o.exempt) > 0:
			add(i, "An exemption has no exemptions of its own.")
		default:
			exempted = append(exempted, o)
			matches = append(matches, o.match)
		}
	}
	s.ExemptMatches(matches...)
	s.AddAll(Remarks{whyOff: whyOff})
	return exempted
}

// IsEverything reports whether it is for every request.
func (s Selection) IsEverything() bool { return len(s.match)+len(s.exempt)+len(s.whyOff) == 0 }
