package descriptor

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
)

// overrides gives the rule of one leaf its overrides, or turns it off. An example is the second level of this
// configuration, for a descriptor with the entry user, whose part is the header x-user:
//
//	descriptors:
//	- {key: user, value: alice, rate_limit: {unit: minute, requests_per_unit: 5}}
//	- {key: user, rate_limit: {unit: minute, requests_per_unit: 10}}
//
// Its leaf has the value x-user = anything. The rule:
//
//	rules:
//	- name: user
//	  key: [{header: x-user}]                 split: any user fits, and each counts apart
//	  limits: [10/minute]
//	  overrides:
//	  - {key: [alice], limits: [5/minute]}    leaveOut: alice is the leaf before it
type overrides struct {
	rule    *draft.Rule
	leaf    *leaf
	key     []keyValue      // one for each part of the rule's key
	earlier []*leaf         // they have their requests first
	joined  map[*leaf]*leaf // see joinOverrides
}

// leaveOut takes the requests of the earlier leaves out of the rule, or turns it off if no override can. Leaves that
// are apart from the rule's own have none of its requests.
func (o *overrides) leaveOut() {
	for _, before := range o.earlier {
		if before.apart(o.leaf) {
			continue
		}
		if why := o.cannotLeaveOut(before); why != "" {
			o.rule.TurnOff(why)
			continue
		}
		// The requests are unlimited in this rule, or have the limit of the leaf that is joined.
		next := draft.Override{Patterns: o.patterns(before, func(keyValue) bool { return true })}
		if o.joined[before] == o.leaf {
			next.Limit = before.Limit
		}
		o.rule.Overrides = append(o.rule.Overrides, next)
	}
}

// cannotLeaveOut says why no override tells the requests of an earlier leaf from the others of the rule, if none does.
// It tells them by the parts of the key. For a part that split leaves out of the key:
//
//	the rule's value   the earlier leaf's   an override
//	alice              a*                   need not tell: each request of the rule fits a*, and other parts tell
//	al*, shared        a*                   need not tell, as above
//	a*, shared         alice                cannot tell which requests of the one counter are alice's
func (o *overrides) cannotLeaveOut(before *leaf) (why string) {
	for i, v := range o.leaf.values {
		isInKey := slices.ContainsFunc(o.key, func(k keyValue) bool { return k.index == i })
		if !isInKey && !v.pattern.Within(before.values[i].pattern) {
			return v.sharing() + ", apart from " + before.Name() + ". The import does not write such a rule: exempt " +
				"those requests by hand."
		}
	}
	if why := before.whyNoOverride(); why != "" {
		return "It should leave out the requests of " + before.Name() + ". " + why
	}
	return ""
}

// patterns are the patterns of an override of the rule, one for each part of its key: that of a leaf for the values
// that are asked for, and * for the others. In the example of selectUnmatched the leaf has the user alice: they are
// [alice] if that value is asked for, and ["*"] if none is.
func (o *overrides) patterns(l *leaf, isAsked func(keyValue) bool) (list []string) {
	for _, v := range o.key {
		text := "*"
		if isAsked(v) {
			text, _ = l.values[v.index].asOverride()
		}
		list = append(list, text)
	}
	return list
}

// selectUnmatched selects the leaf's values where no match can, or turns the rule off if no override can either: one
// override gives them the limit, and one behind it makes all other keys unlimited. No match asks for a query parameter,
// so the limit of the user alice in one becomes:
//
//	key: [{query: user}]
//	overrides:
//	- {key: [alice], limits: [5/minute]}
//	- {key: ["*"], unlimited: true}
func (o *overrides) selectUnmatched() {
	isUnmatched := func(v keyValue) bool { return !v.isMatched }
	if !slices.ContainsFunc(o.key, isUnmatched) {
		return
	}
	if why := o.leaf.whyNoOverride(); why != "" {
		o.rule.TurnOff(why)
		return
	}
	o.rule.Overrides = append(o.rule.Overrides,
		draft.Override{Patterns: o.patterns(o.leaf, isUnmatched), Limit: o.leaf.Limit},
		draft.Override{Patterns: o.patterns(o.leaf, func(keyValue) bool { return false })},
	)
}
