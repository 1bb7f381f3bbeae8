package descriptor

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// leafMaker makes the rule of one leaf. An example is the second level of this configuration, for a descriptor with the
// entry user, whose part is the header x-user:
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
//	  - {key: [alice], limits: [5/minute]}    ofEarlierLeaves: alice is the leaf before it
type leafMaker struct {
	rule *draft.Rule
	leaf *leaf
	key  []keyValue // one for each part of the rule's key
}

// keyValue is a value of the leaf whose part is in the rule's key.
type keyValue struct {
	leafValue
	index     int  // of the value in its leaf, and of the value for the same part in the leaves beside it
	isMatched bool // the rule's match selects it
}

// rule makes the rule of a leaf, which leaves out the requests of the earlier ones. See joinOverrides for wider.
func (d *Descriptor) rule(
	to *draft.Draft, name string, l *leaf, earlier []*leaf, wider map[*leaf]*leaf,
) *draft.Rule {
	requests, key := l.split(d.Selection)
	r := to.RuleOf(name, l.At, l.Limit, requests)
	for _, v := range key {
		r.Key = append(r.Key, *v.part)
	}
	r.Cost = d.Cost
	// Limiters with windows count a request before they compare, so a denied one counts too. At cost 1 that makes no
	// difference: the window is full already. Those with token buckets take nothing for a denied request.
	r.CountDenied = d.Cost > 0 && l.Limit.IsWindowed()
	m := &leafMaker{r, l, key}
	// The filter takes the first override that fits.
	r.Overrides = slices.Concat(m.ofEarlierLeaves(earlier, wider), m.ofUnmatched())
	return r
}

// split adds the values of the leaf to the requests of the descriptor, to the key, or to both. One text, or values that
// count together, need only the match. Values that count apart need the key.
func (l *leaf) split(all request.Selection) (requests request.Selection, key []keyValue) {
	requests = all
	for i, v := range l.values {
		has := requests.Match.Of(*v.part)
		isMatched := v.pattern.Kind == request.AnyValue || slices.Equal(has, v.part.Matching(v.pattern).Of(*v.part))
		if len(has) == 0 { // else the key has the value, and overrides select it
			requests.Match, isMatched = requests.Match.TryRequire(*v.part, v.pattern)
		}
		switch {
		case isMatched && (v.shared || v.pattern.Kind == request.Exactly):
		case v.shared:
			requests.Cannot(v.sharing() + ", and no match can select them.")
		default:
			key = append(key, keyValue{v, i, isMatched})
		}
	}
	return requests, key
}

// ofEarlierLeaves are the overrides that take the requests of the earlier leaves out of the rule. Leaves that are apart
// from the rule's own have none of its requests. A leaf that is an override of this rule has it as its wider one.
func (m *leafMaker) ofEarlierLeaves(earlier []*leaf, wider map[*leaf]*leaf) (list []draft.Override) {
	for _, before := range earlier {
		if before.apart(m.leaf) {
			continue
		}
		if why := m.cannotLeaveOut(before); why != "" {
			m.rule.TurnOff(why)
			continue
		}
		// The requests are unlimited in this rule, or have the limit of the leaf that is joined.
		o := draft.Override{Patterns: m.patterns(before, func(keyValue) bool { return true })}
		if wider[before] == m.leaf {
			o.Limit = before.Limit
		}
		list = append(list, o)
	}
	return list
}

// cannotLeaveOut says why no override tells the requests of an earlier leaf from the others of the rule, if none does.
// It tells them by a part of the key. If the part of a value is not in the key:
//
//	the value is one text              the earlier pattern has it, as leaves that are apart do not come here: all
//	                                   requests of the rule have the value, and the other parts tell
//	the values share one counter       all of them must be within the earlier pattern. Else some of them are the earlier
//	                                   leaf's, and nothing tells which
func (m *leafMaker) cannotLeaveOut(before *leaf) (why string) {
	for i, v := range m.leaf.values {
		isInKey := slices.ContainsFunc(m.key, func(k keyValue) bool { return k.index == i })
		if !isInKey && !v.pattern.Within(before.values[i].pattern) {
			return v.sharing() + ", apart from " + before.Name() + ". The import does not write such a rule: exempt " +
				"those requests by hand."
		}
	}
	if why := before.unsayable(); why != "" {
		return "It should leave out the requests of " + before.Name() + ". " + why
	}
	return ""
}

// patterns are the patterns of an override of the rule, one for each part of its key: that of a leaf for the values
// that are asked for, and * for the others.
func (m *leafMaker) patterns(l *leaf, isAsked func(keyValue) bool) (list []string) {
	for _, v := range m.key {
		text := "*"
		if isAsked(v) {
			text, _ = l.values[v.index].asOverride()
		}
		list = append(list, text)
	}
	return list
}

// ofUnmatched are the overrides that select the leaf's values where no match can: the first gives them the limit, and
// the second makes all other keys unlimited. No match asks for a query parameter, so the limit of the user alice in one
// becomes:
//
//	key: [{query: user}]
//	overrides:
//	- {key: [alice], limits: [5/minute]}
//	- {key: ["*"], unlimited: true}
func (m *leafMaker) ofUnmatched() []draft.Override {
	isUnmatched := func(v keyValue) bool { return !v.isMatched }
	if why := m.leaf.unsayable(); why != "" {
		m.rule.TurnOff(why)
		return nil
	}
	if !slices.ContainsFunc(m.key, isUnmatched) {
		return nil
	}
	return []draft.Override{
		{Patterns: m.patterns(m.leaf, isUnmatched), Limit: m.leaf.Limit},
		{Patterns: m.patterns(m.leaf, func(keyValue) bool { return false })},
	}
}
