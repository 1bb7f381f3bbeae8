package descriptor

import (
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// leafMaker makes the rule of one leaf: newLeafMaker begins it, build does the rest. An example is the second level
// of this configuration, for a descriptor with the entry user, whose part is the header x-user:
//
//	descriptors:
//	- {key: user, value: alice, rate_limit: {unit: minute, requests_per_unit: 5}}
//	- {key: user, rate_limit: {unit: minute, requests_per_unit: 10}}
//
// Its leaf has the value x-user = anything. The rule, and what adds it:
//
//	rules:
//	- name: user                              newLeafMaker
//	  key: [{header: x-user}]                 addValues: any user fits, and each counts apart
//	  limits: [10/minute]                     newLeafMaker
//	  overrides:
//	  - {key: [alice], limits: [5/minute]}    overrideEarlierLeaves: alice is the leaf before it
type leafMaker struct {
	rule       *draft.Rule
	descriptor *Descriptor
	leaf       *Leaf

	// Set by addValues.
	inKey     []int // indexes of the leaf's values whose parts are in the rule's key, in its order
	unmatched []int // those of inKey that no match can select
}

// newLeafMaker begins the rule of a leaf: its name, and the requests of the descriptor.
func newLeafMaker(findings *draft.Findings, d *Descriptor, l *Leaf) *leafMaker {
	m := &leafMaker{rule: draft.NewRule(findings, l.name, l.quota, l.at), descriptor: d, leaf: l}
	m.rule.Identity = l.at.String()
	m.rule.Match = d.Match
	m.rule.Exempt = d.Exempt
	m.rule.Cost = d.Cost
	// Limiters with windows count a request before they compare, so a denied one counts too. At cost 1 that makes no
	// difference: the window is full already. Those with token buckets take nothing for a denied request.
	m.rule.CountDenied = d.Cost > 0 && l.quota.IsWindowed()
	return m
}

// build makes the rule. The order matters: an override has a pattern for each part of the key, and the filter takes the
// first override that fits, so that for all other keys comes last.
func (m *leafMaker) build(earlier []*Leaf, wider map[*Leaf]*Leaf) {
	m.addValues()
	m.rule.AddRemarks(m.descriptor.Remarks)
	m.overrideEarlierLeaves(earlier, wider)
	m.selectUnmatched()
	m.rule.CapExempt()
}

// addValues adds the values of the leaf to the rule's match and key.
func (m *leafMaker) addValues() {
	for i, v := range m.leaf.values {
		m.addValue(i, v)
	}
}

// addValue adds a value of the leaf to the match, to the key, or to both. One text, or values that
// count together, need only the match. Values that count apart need the key.
func (m *leafMaker) addValue(i int, v leafValue) {
	var matched bool
	m.rule.Match, matched = m.rule.Match.TryRequire(*v.part, v.pattern)
	switch {
	case matched && (v.shared || v.pattern.Kind == request.Exactly):
	case v.shared:
		m.rule.TurnOff(v.sharing() + ", and no match can select them.")
	default:
		m.inKey = append(m.inKey, i)
		m.rule.Key = append(m.rule.Key, *v.part)
		if !matched {
			m.unmatched = append(m.unmatched, i)
		}
	}
}

// overrideEarlierLeaves takes the requests of the earlier leaves out of the rule. Leaves that are apart
// from the rule's own have none of its requests. A leaf that is an override of this rule has it as its wider one.
func (m *leafMaker) overrideEarlierLeaves(earlier []*Leaf, wider map[*Leaf]*Leaf) {
	for _, before := range earlier {
		if !before.apart(m.leaf) {
			m.overrideEarlierLeaf(before, wider[before] == m.leaf)
		}
	}
}

// overrideEarlierLeaf adds an override for the requests of an earlier leaf: they are unlimited in this
// rule, or have the leaf's limit if that is joined as an override of the rule. If alice is an earlier leaf with another
// window, the rule for any user gets the override {key: [alice], unlimited: true}. If all users share one counter, the
// user is not in the key, and the rule is off.
func (m *leafMaker) overrideEarlierLeaf(before *Leaf, isJoined bool) {
	for i, v := range m.leaf.values {
		if !m.canTell(i, before) {
			m.rule.TurnOff(v.sharing() + ", apart from " + before.name + ". The import does not write such a rule: exempt " +
				"those requests by hand.")
			return
		}
	}
	if why := before.unsayable(); why != "" {
		m.rule.TurnOff("It should leave out the requests of " + before.name + ". " + why)
		return
	}
	o := draft.Override{Patterns: m.patterns(before, m.inKey)}
	if isJoined {
		o.Quota = before.quota
	}
	m.rule.Overrides = append(m.rule.Overrides, o)
}

// canTell reports whether an override can tell the requests of an earlier leaf from the others of the rule, as far as
// the value at an index goes. It tells them by a part of the key. If the part is not in the key:
//
//	the leaf's value is one text    the earlier pattern has it, as leaves that are apart do not come here: all requests
//	                                of the rule have the value, and the other parts tell
//	its values share one counter    all of them must be within the earlier pattern. Else some of them are the earlier
//	                                leaf's, and nothing tells which
func (m *leafMaker) canTell(i int, before *Leaf) bool {
	return slices.Contains(m.inKey, i) || m.leaf.values[i].pattern.TextWithin(before.values[i].pattern)
}

// patterns are the patterns of an override of the rule, one for each part of its key: the leaf's
// pattern for the values in the list, and * for the others.
func (m *leafMaker) patterns(l *Leaf, in []int) (list []string) {
	for _, i := range m.inKey {
		text := "*"
		if slices.Contains(in, i) {
			text, _ = l.values[i].asOverride()
		}
		list = append(list, text)
	}
	return list
}

// selectUnmatched selects the leaf's values where no match can. Two overrides at the end do: the first gives
// them the limit, and the second makes all other keys unlimited. No match asks for a query parameter, so the limit of
// the user alice in one becomes:
//
//	key: [{query: user}]
//	overrides:
//	- {key: [alice], limits: [5/minute]}
//	- {key: ["*"], unlimited: true}
func (m *leafMaker) selectUnmatched() {
	if why := m.leaf.unsayable(); why != "" {
		m.rule.TurnOff(why)
	} else if len(m.unmatched) > 0 {
		own := draft.Override{Patterns: m.patterns(m.leaf, m.unmatched), Quota: m.leaf.quota}
		others := draft.Override{Patterns: m.patterns(m.leaf, nil)}
		m.rule.Overrides = append(m.rule.Overrides, own, others)
	}
}
