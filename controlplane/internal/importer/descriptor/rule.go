package descriptor

import (
	"cmp"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// rulesOfLeaves makes the rules of leaves that are reachable. They come in the order of the limiter's search, and a
// request belongs to the first whose conditions it meets. Each leaf with a limit becomes a rule, or an override of the
// rule of a later leaf. Each rule leaves out the requests of the leaves before its own.
//
// An example: alice may make 5 requests a minute, users that begin with "a" 20 an hour, and any
// other user 10 a minute. The descriptor has one entry, user, whose part is the header x-user.
//
//	alice  5/minute   an override of the rule for any user, which has the same window
//	a*     20/hour    a rule that matches x-user: a*, in which alice is unlimited
//	any    10/minute  a rule for any x-user, with the override for alice; in it a* is unlimited
func (d *Descriptor) rulesOfLeaves(to *draft.Findings, leaves []*leaf) (list []*draft.Rule) {
	mixed := findMixed(leaves)
	wider := joinOverrides(leaves, mixed)
	order := map[*draft.Rule]int{} // that of the file
	for i, l := range leaves {
		if l.level.Limit == nil || wider[l] != nil {
			continue
		}
		sent := *d
		if other := mixed[l]; other != nil {
			sent.Requests.Cannot("Hosts are compared without their port and case here, so its requests cannot be told from " +
				"those of " + other.level.Name() + ".")
		}
		r := sent.ruleOfLeaf(to, l.level.Name(), l, leaves[:i], wider)
		order[r] = l.level.Order
		list = append(list, r)
	}
	slices.SortStableFunc(list, func(a, b *draft.Rule) int { return cmp.Compare(order[a], order[b]) })
	if len(list) == 0 { // else its rules say why they are off
		for _, why := range d.Requests.WhyOff {
			to.Note(d.At, why+" There is no limit for it.")
		}
	}
	return list
}

// findMixed returns the leaves whose requests a policy takes for those of another leaf, each with one such leaf. They
// get rules of their own, which are off. An example are the leaves of the hosts a.example:80 and a.example:8080, if
// other conditions do not tell them apart.
func findMixed(leaves []*leaf) map[*leaf]*leaf {
	isOfHost := func(c condition) bool { return c.value.Part.Kind == request.KindHost }
	isPossible := func(l *leaf) bool { return slices.ContainsFunc(l.conditions, isOfHost) }
	if !slices.ContainsFunc(leaves, isPossible) { // each is compared with each other
		return nil
	}
	var inPolicy []*leaf
	for _, l := range leaves {
		inPolicy = append(inPolicy, l.inPolicy())
	}
	mixed := map[*leaf]*leaf{}
	for i, l := range leaves {
		for k, before := range leaves[:i] {
			if l.apartAsText(before) && !inPolicy[i].apartAsText(inPolicy[k]) {
				mixed[l] = before
				mixed[before] = l
			}
		}
	}
	return mixed
}

// inPolicy is the leaf as a policy has it, which compares less of some values.
func (l *leaf) inPolicy() *leaf {
	less := &leaf{level: l.level}
	for _, c := range l.conditions {
		c.pattern = c.value.Compared(c.pattern)
		less.conditions = append(less.conditions, c)
	}
	return less
}

// joinOverrides returns the leaves that become overrides, each with the wider leaf whose rule has it. The others have
// rules of their own, and so have those that are mixed. The last leaf that can have an override gets it, as it is the
// widest. In the example of rulesOfLeaves, alice becomes an override of the rule for any user.
func joinOverrides(leaves []*leaf, mixed map[*leaf]*leaf) (wider map[*leaf]*leaf) {
	wider = map[*leaf]*leaf{}
	isFree := func(l *leaf) bool { return l.level.Limit != nil && wider[l] == nil && mixed[l] == nil }
	for i, wide := range slices.Backward(leaves) {
		if !isFree(wide) || wide.isOneText() {
			continue
		}
		for _, l := range leaves[:i] {
			if isFree(l) && l.canOverride(wide) {
				wider[l] = wide
			}
		}
	}
	return wider
}

// isOneText reports whether each value must be one text: then no other leaf is within this one.
func (l *leaf) isOneText() bool {
	return !slices.ContainsFunc(l.conditions, func(c condition) bool { return c.pattern.Kind() != request.Exactly })
}

// canOverride reports whether a leaf can be an override of another one's rule, which takes
// the same window and the same enforcement.
func (l *leaf) canOverride(other *leaf) bool {
	// An override has no comments and no mode of its own.
	isPlain := func(l *leaf) bool {
		return len(l.level.Limit.Comments)+len(l.level.Limit.WhyOff) == 0 && l.whyNoOverride() == "" &&
			!slices.ContainsFunc(l.conditions, func(c condition) bool { return c.shared })
	}
	return l.withinAsText(other) && l.level.Limit.IsOfClass(other.level.Limit) && isPlain(l) && isPlain(other)
}

// whyNoOverride says why no override has a leaf's patterns, if none does. Only a path or a host can be the reason: no
// request has an address that no override can say, so reachable takes such a leaf out before.
func (l *leaf) whyNoOverride() string {
	for _, c := range l.conditions {
		_, ok := c.value.AsOverride(c.pattern)
		switch {
		case ok:
		case c.value.Part.Kind == request.KindHost:
			return "Hosts are compared without their port, and cannot say " + c.pattern.Text() + "."
		default:
			return "Paths are compared without the query, and cannot say " + c.pattern.Text() + "."
		}
	}
	return ""
}

// ruleOfLeaf makes the rule of a leaf, which leaves out the requests of the earlier leaves. Those that joinOverrides
// gave it have their own limit in it.
func (d *Descriptor) ruleOfLeaf(
	to *draft.Findings, name string, of *leaf, earlier []*leaf, wider map[*leaf]*leaf,
) *draft.Rule {
	r := leafRule{leaf: of, requests: d.Requests}
	for _, c := range of.conditions {
		r.place(c)
	}
	for _, before := range earlier {
		r.leaveOut(before, wider[before] == of)
	}
	r.selectUnmatched()
	var key []request.Part
	for _, p := range r.placed {
		if p.inKey {
			key = append(key, p.value.Part)
		}
	}
	limit := of.level.Limit
	return draft.NewRule(to, draft.Terms{
		Name: name, At: of.level.At, Limit: limit, Requests: r.requests, Key: key, Overrides: r.overrides, Cost: d.Cost,
		// Limiters with windows count a request before they compare, so a denied one counts too. At cost 1 that makes no
		// difference: the window is full already. Those with token buckets take nothing for a denied request.
		CountDenied: d.Cost > 0 && limit.IsWindowed(),
	})
}

// leafRule is the rule of a leaf in the making. An example is the second level of this configuration, for a descriptor
// with the entry user, whose part is the header x-user:
//
//	descriptors:
//	- {key: user, value: alice, rate_limit: {unit: minute, requests_per_unit: 5}}
//	- {key: user, rate_limit: {unit: minute, requests_per_unit: 10}}
//
// Its leaf has the condition x-user = anything. The rule:
//
//	rules:
//	- name: user
//	  key: [{header: x-user}]                 place: any user fits, and each counts apart
//	  limits: [10/minute]
//	  overrides:
//	  - {key: [alice], limits: [5/minute]}    leaveOut: alice is the leaf before it, and its override
type leafRule struct {
	leaf      *leaf
	requests  request.Selection // those of the descriptor, and only those that meet the conditions in the match
	placed    []placed          // the leaf's conditions. Those of the leaves beside it have the same places
	overrides []draft.Override  // the filter takes the first that fits
}

// placed is a condition of a leaf, and where it goes in the rule. Values that count apart need the key. One text, or
// values that count together, need only the match:
//
//	the condition      the descriptor's match has   inMatch   inKey
//	alice              nothing of the part, or it   yes       no
//	a*, shared         nothing of the part, or it   yes       no
//	a*                 nothing of the part, or it   yes       yes
//	any                anything                     yes       yes: the match need not ask for it
//	alice, a*          another value of the part    no        yes: overrides select it, see selectUnmatched
//	a*, shared         another value of the part    no        no: the rule is off
//
// A part that no match has, as a query parameter, is as one with another value.
type placed struct {
	condition
	inMatch, inKey bool
}

// isUnmatched reports whether the key alone has the condition.
func (p placed) isUnmatched() bool { return p.inKey && !p.inMatch }

// place gives a condition its place, and adds one in the match to the requests.
func (r *leafRule) place(c condition) {
	match, inMatch := c.addTo(r.requests.Match)
	isOneText := c.pattern.Kind() == request.Exactly
	p := placed{condition: c, inMatch: inMatch, inKey: !c.shared && (!inMatch || !isOneText)}
	if inMatch {
		r.requests.Match = match
	}
	if !p.inMatch && !p.inKey {
		r.requests.Cannot(c.sharing() + ", and no match can select them.")
	}
	r.placed = append(r.placed, p)
}

// addTo adds the condition to a match. It is not ok, and adds nothing, if no match can ask for the condition, or if
// this one asks for other values of the part.
func (c condition) addTo(m request.Match) (with request.Match, ok bool) {
	fits := c.value.Fitting(c.pattern)
	has := m.Of(c.value.Part)
	switch {
	case len(fits.WhyOff) > 0:
		return m, false
	case len(has) > 0 && len(fits.Match) > 0:
		return m, slices.Equal(has, fits.Match.Of(c.value.Part))
	}
	with, _ = m.And(fits.Match) // at most one of the two is about the part, so they can be joined
	return with, true
}

// leaveOut takes the requests of an earlier leaf out of the rule, or says why no override can. If the leaf becomes an
// override of the rule, it keeps its own limit there. A leaf that is apart from the rule's own has none of its
// requests.
func (r *leafRule) leaveOut(before *leaf, keepsLimit bool) {
	if before.apartAsText(r.leaf) {
		return
	}
	if why := r.cannotLeaveOut(before); why != "" {
		r.requests.Cannot(why)
		return
	}
	next := draft.Override{} // unlimited in this rule
	for i, p := range r.placed {
		if p.inKey {
			next.Patterns = append(next.Patterns, before.conditions[i].asOverride())
		}
	}
	if keepsLimit {
		next.Limit = before.level.Limit
	}
	r.overrides = append(r.overrides, next)
}

// asOverride is the condition as an override has it, if there is no whyNoOverride.
func (c condition) asOverride() string {
	text, _ := c.value.AsOverride(c.pattern)
	return text
}

// cannotLeaveOut says why no override tells the requests of an earlier leaf from the others of the rule, if none does.
// It tells them by the parts of the key. For a part that is not in the key:
//
//	the rule's condition   the earlier leaf's   an override
//	alice                  a*                   need not tell: each request of the rule fits a*, and other parts tell
//	al*, shared            a*                   need not tell, as above
//	a*, shared             alice                cannot tell which requests of the one counter are alice's
func (r *leafRule) cannotLeaveOut(before *leaf) (why string) {
	for i, p := range r.placed {
		if !p.inKey && !p.pattern.WithinAsText(before.conditions[i].pattern) {
			return p.sharing() + ", apart from " + before.level.Name() + ". The import does not write such a rule: exempt " +
				"those requests by hand."
		}
	}
	if why := before.whyNoOverride(); why != "" {
		return "It should leave out the requests of " + before.level.Name() + ". " + why
	}
	return ""
}

// sharing begins a sentence about values that have one counter.
func (c condition) sharing() string {
	return "The values of " + c.value.Part.String() + " that fit " + c.pattern.Text() + " share one counter there"
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
	if !slices.ContainsFunc(r.placed, placed.isUnmatched) {
		return
	}
	if why := r.leaf.whyNoOverride(); why != "" {
		r.requests.Cannot(why)
		return
	}
	var limited, others []string
	for _, p := range r.placed {
		if !p.inKey {
			continue
		}
		text := "*" // the match selects the value
		if p.isUnmatched() {
			text = p.asOverride()
		}
		limited = append(limited, text)
		others = append(others, "*")
	}
	r.overrides = append(r.overrides,
		draft.Override{Patterns: limited, Limit: r.leaf.level.Limit}, draft.Override{Patterns: others})
}

// RuleOfAll makes the rule of a limit for all requests of the descriptor. Each value of its parts counts for itself.
// The entries need no keys, as no level is searched for.
func (d *Descriptor) RuleOfAll(to *draft.Findings, name string, limit *draft.Limit) *draft.Rule {
	all := leafBehind(d.Entries, nil, &Level{Limit: limit, At: d.At})
	return d.ruleOfLeaf(to, name, all, nil, nil)
}

// ExemptLimited exempts the requests that the rules limit from those of the descriptor, and reports whether
// it has any left. Where the requests of a rule are unknown, no match can select what is left.
//
//	a rule with                    the descriptor exempts
//	match: {headers: {x-user: a}}  {headers: {x-user: a}}
//	key: [{header: x-user}]        {headers: {x-user: "*"}}
//	neither                        it has no request left
//	key: [{query: user}]           unknown, so its rules are off
func (d *Descriptor) ExemptLimited(rules []*draft.Rule) (hasAny bool) {
	var limited []request.Match
	isKnown := true
	for _, r := range rules {
		m, ok := r.LimitedRequests(d.Requests.Exempt)
		m = m.Without(d.Requests.Match) // conditions that all of its requests meet
		switch {
		case !ok:
			isKnown = false
		case len(m) == 0: // the rule limits all of them
			return false
		default:
			limited = append(limited, m)
		}
	}
	d.Requests.AddExempt(limited...)
	if !isKnown {
		d.Requests.CannotMatch("they are those that no other rule limits")
	}
	return true
}
