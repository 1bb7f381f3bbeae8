package descriptor

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// rulesOfLeaves makes the rules for the leaves with a limit. The leaves come in the order of the limiter's
// search, and a request belongs to the first whose values it has. Each leaf with a limit becomes a
// rule, or an override of the rule of a later leaf. Each rule leaves out the requests of the leaves
// before its own.
//
// An example: alice may make 5 requests a minute, users that begin with "a" 20 an hour, and any
// other user 10 a minute. The descriptor has one entry, user, whose part is the header x-user.
//
//	alice  5/minute   an override of the rule for any user, which has the same window
//	a*     20/hour    a rule that matches x-user: a*, in which alice is unlimited
//	any    10/minute  a rule for any x-user, with the override for alice; in it a* is unlimited
func (d *Descriptor) rulesOfLeaves(to *draft.Findings, leaves []*leaf) (list []*draft.Rule) {
	if n := countLimited(leaves); n > policy.MaxRules { // each is compared with each other
		text := d.keys() + " has more than " + strconv.Itoa(policy.MaxRules) + " values with a limit: import fewer"
		to.Fail(leaves[0].At, text)
		return nil
	}
	leaves = dropUnreachable(to, leaves)
	joinOverrides(leaves)
	order := map[*draft.Rule]int{} // that of the file
	for i, l := range leaves {
		if l.Limit == nil || l.wider != nil {
			continue
		}
		r := d.ruleOfLeaf(to, l.Name(), l, leaves[:i])
		order[r] = l.Order
		list = append(list, r)
	}
	slices.SortStableFunc(list, func(a, b *draft.Rule) int { return cmp.Compare(order[a], order[b]) })
	if len(list) == 0 { // else its rules say why they are off
		for _, why := range d.WhyOff {
			to.Note(d.At, why+" There is no limit for it.")
		}
	}
	return list
}

// countLimited counts the leaves with a limit.
func countLimited(leaves []*leaf) (n int) {
	for _, l := range leaves {
		if l.Limit != nil {
			n++
		}
	}
	return n
}

// dropUnreachable returns the leaves that some request may end in, and notes the limits of the others. A
// request ends in the first leaf whose values it has.
func dropUnreachable(to *draft.Findings, leaves []*leaf) (list []*leaf) {
	for _, l := range leaves {
		isNever := func(v leafValue) bool { return v.part.IsNever(v.pattern) }
		switch {
		case !slices.ContainsFunc(l.values, isNever) && !slices.ContainsFunc(list, l.within):
			list = append(list, l)
		case l.Limit != nil:
			noteNoRequest(to, l.At, l.Name())
		}
	}
	return list
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

// joinOverrides joins the leaves that become overrides of another leaf's rule to that wider leaf. The others have rules
// of their own. The last leaf that can have an override gets it, as it is the widest. In the example of rulesOfLeaves,
// alice is joined to the leaf of any user.
func joinOverrides(leaves []*leaf) {
	for i, wide := range slices.Backward(leaves) {
		if wide.Limit == nil || wide.wider != nil || wide.isOneText() {
			continue
		}
		for _, l := range leaves[:i] {
			if l.Limit != nil && l.wider == nil && l.canOverride(wide) {
				l.wider = wide
			}
		}
	}
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
		if _, ok := v.part.AsOverride(v.pattern); !ok {
			return "Paths are compared without the query, and cannot say " + v.pattern.Text() + "."
		}
	}
	return ""
}

// ruleOfLeaf makes the rule of a leaf, which leaves out the requests of the earlier leaves. Those that are joined to
// the leaf have their own limit in it.
func (d *Descriptor) ruleOfLeaf(to *draft.Findings, name string, l *leaf, earlier []*leaf) *draft.Rule {
	r := leafRule{leaf: l, requests: d.Selection}
	r.placeValues()
	for _, before := range earlier {
		r.leaveOut(before)
	}
	r.selectUnmatched()
	var key []request.Part
	for i, v := range l.values {
		if r.homes[i].inKey {
			key = append(key, v.part.Part)
		}
	}
	return draft.NewRule(to, draft.Terms{
		Name: name, At: l.At, Limit: l.Limit, Requests: r.requests, Key: key, Overrides: r.overrides, Cost: d.Cost,
		// Limiters with windows count a request before they compare, so a denied one counts too. At cost 1 that makes no
		// difference: the window is full already. Those with token buckets take nothing for a denied request.
		CountDenied: d.Cost > 0 && l.Limit.IsWindowed(),
	})
}

// leafRule is the rule of a leaf in the making. An example is the second level of this configuration, for a descriptor
// with the entry user, whose part is the header x-user:
//
//	descriptors:
//	- {key: user, value: alice, rate_limit: {unit: minute, requests_per_unit: 5}}
//	- {key: user, rate_limit: {unit: minute, requests_per_unit: 10}}
//
// Its leaf has the value x-user = anything. The rule:
//
//	rules:
//	- name: user
//	  key: [{header: x-user}]                 placeValues: any user fits, and each counts apart
//	  limits: [10/minute]
//	  overrides:
//	  - {key: [alice], limits: [5/minute]}    leaveOut: alice is the leaf before it, and is joined to it
type leafRule struct {
	*leaf
	requests  request.Selection // those of the descriptor, and only those with the values that the match selects
	homes     []home            // of the leaf's values, and of those for the same parts in the leaves beside it
	overrides []draft.Override  // the filter takes the first that fits
}

// home is where a value of a leaf goes in its rule. Values that count apart need the key. One text, or values that
// count together, need only the match:
//
//	the leaf's value   the descriptor's match has   inMatch   inKey
//	alice              nothing of the part, or it   yes       no
//	a*, shared         nothing of the part, or it   yes       no
//	a*                 nothing of the part, or it   yes       yes
//	any                anything                     yes       yes: the match need not ask for it
//	alice, a*          another value of the part    no        yes: overrides select it, see selectUnmatched
//	a*, shared         another value of the part    no        no: the rule is off
//
// A part that no match has, as a query parameter, is as one with another value.
type home struct{ inMatch, inKey bool }

// placeValues gives each value of the leaf its home, and adds those in the match to the requests.
func (r *leafRule) placeValues() {
	for _, v := range r.values {
		match, inMatch := v.addTo(r.requests.Match)
		isOneText := v.pattern.Kind() == request.Exactly
		h := home{inMatch: inMatch, inKey: !v.shared && (!inMatch || !isOneText)}
		if inMatch {
			r.requests.Match = match
		}
		if !h.inMatch && !h.inKey {
			r.requests.Cannot(v.sharing() + ", and no match can select them.")
		}
		r.homes = append(r.homes, h)
	}
}

// addTo is the match that asks for the value too. It is not ok if no match asks for such a value, or if this one asks
// for others of the part.
func (v leafValue) addTo(m request.Match) (with request.Match, ok bool) {
	fits := v.part.Fitting(v.pattern)
	has := m.Of(v.part.Part)
	switch {
	case len(fits.WhyOff) > 0:
		return m, false
	case len(has) > 0 && len(fits.Match) > 0:
		return m, slices.Equal(has, fits.Match.Of(v.part.Part))
	}
	with, _ = m.And(fits.Match) // it has no condition on the part, or the value none
	return with, true
}

// leaveOut takes the requests of an earlier leaf out of the rule, or says why no override can. A leaf that is apart
// from the rule's own has none of its requests.
func (r *leafRule) leaveOut(before *leaf) {
	if before.apart(r.leaf) {
		return
	}
	if why := r.cannotLeaveOut(before); why != "" {
		r.requests.Cannot(why)
		return
	}
	var patterns []string
	for i, h := range r.homes {
		if h.inKey {
			text, _ := before.values[i].part.AsOverride(before.values[i].pattern)
			patterns = append(patterns, text)
		}
	}
	next := draft.Override{Patterns: patterns} // unlimited in this rule
	if before.wider == r.leaf {
		next.Limit = before.Limit
	}
	r.overrides = append(r.overrides, next)
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

// cannotLeaveOut says why no override tells the requests of an earlier leaf from the others of the rule, if none does.
// It tells them by the parts of the key. For a part that is not in the key:
//
//	the rule's value   the earlier leaf's   an override
//	alice              a*                   need not tell: each request of the rule fits a*, and other parts tell
//	al*, shared        a*                   need not tell, as above
//	a*, shared         alice                cannot tell which requests of the one counter are alice's
func (r *leafRule) cannotLeaveOut(before *leaf) (why string) {
	for i, v := range r.values {
		if !r.homes[i].inKey && !v.pattern.Within(before.values[i].pattern) {
			return v.sharing() + ", apart from " + before.Name() + ". The import does not write such a rule: exempt " +
				"those requests by hand."
		}
	}
	if why := before.whyNoOverride(); why != "" {
		return "It should leave out the requests of " + before.Name() + ". " + why
	}
	return ""
}

// sharing begins a sentence about values that have one counter.
func (v leafValue) sharing() string {
	return "The values of " + v.part.String() + " that fit " + v.pattern.Text() + " share one counter there"
}

// selectUnmatched selects the values that are in the key alone, or says why no override can. One override gives them
// the limit, and one behind it makes all other keys unlimited. No match asks for a query parameter, so the limit of the
// user alice in one becomes:
//
//	key: [{query: user}]
//	overrides:
//	- {key: [alice], limits: [5/minute]}
//	- {key: ["*"], unlimited: true}
func (r *leafRule) selectUnmatched() {
	isUnmatched := func(h home) bool { return h.inKey && !h.inMatch }
	if !slices.ContainsFunc(r.homes, isUnmatched) {
		return
	}
	if why := r.whyNoOverride(); why != "" {
		r.requests.Cannot(why)
		return
	}
	var limited, others []string
	for i, h := range r.homes {
		if !h.inKey {
			continue
		}
		text := "*" // the match selects the value
		if isUnmatched(h) {
			text, _ = r.values[i].part.AsOverride(r.values[i].pattern)
		}
		limited = append(limited, text)
		others = append(others, "*")
	}
	r.overrides = append(r.overrides, draft.Override{Patterns: limited, Limit: r.Limit}, draft.Override{Patterns: others})
}

// RuleOfAll makes the rule of a limit for all requests of the descriptor. Each value of its parts counts for itself.
func (d *Descriptor) RuleOfAll(to *draft.Findings, name string, limit *draft.Limit) *draft.Rule {
	all := leafBehind(d.Entries, nil, &Level{Limit: limit, At: d.At})
	return d.ruleOfLeaf(to, name, all, nil)
}

// ExemptLimited exempts the requests that the rules limit from those of the descriptor, and reports whether
// it has any left. If it has none, it notes that for the limit of a name. Where the requests of a rule are unknown, no
// match can select what is left.
//
//	a rule with                    the descriptor exempts
//	match: {headers: {x-user: a}}  {headers: {x-user: a}}
//	key: [{header: x-user}]        {headers: {x-user: "*"}}
//	neither                        it has no request left
//	key: [{query: user}]           unknown, so its rules are off
func (d *Descriptor) ExemptLimited(to *draft.Findings, rules []*draft.Rule, name string) (hasAny bool) {
	var limited []request.Match
	isKnown := true
	for _, r := range rules {
		m, ok := r.LimitedRequests(d.Exempt)
		m = m.Without(d.Match) // conditions that all of its requests meet
		switch {
		case !ok:
			isKnown = false
		case len(m) == 0: // the rule limits all of them
			noteNoRequest(to, d.At, name)
			return false
		default:
			limited = append(limited, m)
		}
	}
	d.AddExempt(limited...)
	if !isKnown {
		d.CannotMatch("they are those that no other rule limits")
	}
	return true
}
