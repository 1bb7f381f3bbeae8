package descriptor

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// overrides are those of the rule of one leaf, or say why it is off. An example is the second level of this
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
//	  key: [{header: x-user}]                 its home is inBoth: any user fits, and each counts apart
//	  limits: [10/minute]
//	  overrides:
//	  - {key: [alice], limits: [5/minute]}    leaveOut: alice is the leaf before it
type overrides struct {
	leaf    *leaf
	homes   []home          // of its values, and of those for the same parts in the leaves beside it
	earlier []*leaf         // they have their requests first
	joined  map[*leaf]*leaf // see joinOverrides

	list            []draft.Override
	request.Remarks // why the rule is off
}

// leaveOut takes the requests of the earlier leaves out of the rule, or says why no override can. Leaves that are apart
// from the rule's own have none of its requests.
func (o *overrides) leaveOut() {
	for _, before := range o.earlier {
		if before.apart(o.leaf) {
			continue
		}
		if why := o.cannotLeaveOut(before); why != "" {
			o.Cannot(why)
			continue
		}
		// The requests are unlimited in this rule, or have the limit of the leaf that is joined.
		next := draft.Override{Patterns: o.patterns(before, home.isInKey)}
		if o.joined[before] == o.leaf {
			next.Limit = before.Limit
		}
		o.list = append(o.list, next)
	}
}

// cannotLeaveOut says why no override tells the requests of an earlier leaf from the others of the rule, if none does.
// It tells them by the parts of the key. For a part that is not in the key:
//
//	the rule's value   the earlier leaf's   an override
//	alice              a*                   need not tell: each request of the rule fits a*, and other parts tell
//	al*, shared        a*                   need not tell, as above
//	a*, shared         alice                cannot tell which requests of the one counter are alice's
func (o *overrides) cannotLeaveOut(before *leaf) (why string) {
	for i, v := range o.leaf.values {
		if !o.homes[i].isInKey() && !v.pattern.Within(before.values[i].pattern) {
			return v.sharing() + ", apart from " + before.Name() + ". The import does not write such a rule: exempt " +
				"those requests by hand."
		}
	}
	if why := before.whyNoOverride(); why != "" {
		return "It should leave out the requests of " + before.Name() + ". " + why
	}
	return ""
}

// patterns are the patterns of an override of the rule, one for each part of its key: that of a leaf where the value's
// home is asked for, and * for the others. In the example of selectUnmatched the leaf has the user alice: they are
// [alice] if inKey is asked for, and ["*"] if no home is.
func (o *overrides) patterns(l *leaf, isAsked func(home) bool) (list []string) {
	for i, h := range o.homes {
		if !h.isInKey() {
			continue
		}
		text := "*"
		if isAsked(h) {
			text, _ = l.values[i].asOverride()
		}
		list = append(list, text)
	}
	return list
}

// selectUnmatched selects the values whose home is inKey, or says why no override can: one
// override gives them the limit, and one behind it makes all other keys unlimited. No match asks for a query parameter,
// so the limit of the user alice in one becomes:
//
//	key: [{query: user}]
//	overrides:
//	- {key: [alice], limits: [5/minute]}
//	- {key: ["*"], unlimited: true}
func (o *overrides) selectUnmatched() {
	if !slices.Contains(o.homes, inKey) {
		return
	}
	if why := o.leaf.whyNoOverride(); why != "" {
		o.Cannot(why)
		return
	}
	o.list = append(o.list,
		draft.Override{Patterns: o.patterns(o.leaf, func(h home) bool { return h == inKey }), Limit: o.leaf.Limit},
		draft.Override{Patterns: o.patterns(o.leaf, func(home) bool { return false })},
	)
}
