package descriptor

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

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
