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
	joined := joinOverrides(leaves)
	order := map[*draft.Rule]int{} // that of the file
	for i, l := range leaves {
		if l.Limit == nil || joined[l] != nil {
			continue
		}
		r := d.ruleOfLeaf(to, l.Name(), l, leaves[:i], joined)
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

// RuleOfAll makes the rule of a limit for all requests of the descriptor. Each value of its parts counts for itself.
func (d *Descriptor) RuleOfAll(to *draft.Findings, name string, limit *draft.Limit) *draft.Rule {
	return d.ruleOfLeaf(to, name, leafOfAll(d.Entries, limit, d.At), nil, nil)
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
		isImpossible := slices.ContainsFunc(l.values, leafValue.isImpossible)
		switch {
		case !isImpossible && !slices.ContainsFunc(list, l.within):
			list = append(list, l)
		case l.Limit != nil:
			noteNoRequest(to, l.At, l.Name())
		}
	}
	return list
}

// joinOverrides joins the leaves that become overrides of another leaf's rule, each to that wider leaf. The others have
// rules of their own. The last leaf that can have an override gets it, as it is the widest. In the example of
// rulesOfLeaves, alice is joined to the leaf of any user.
func joinOverrides(leaves []*leaf) (joined map[*leaf]*leaf) {
	joined = map[*leaf]*leaf{}
	for i, wide := range slices.Backward(leaves) {
		if wide.Limit == nil || joined[wide] != nil || wide.isOneText() {
			continue
		}
		for _, l := range leaves[:i] {
			if l.Limit != nil && joined[l] == nil && l.canOverride(wide) {
				joined[l] = wide
			}
		}
	}
	return joined
}

// ruleOfLeaf makes the rule of a leaf, which leaves out the requests of the earlier ones. Those that are joined to it
// are overrides with their limits.
func (d *Descriptor) ruleOfLeaf(
	to *draft.Findings, name string, l *leaf, earlier []*leaf, joined map[*leaf]*leaf,
) *draft.Rule {
	requests, key := l.split(d.Selection)
	r := draft.NewRule(to, name, l.At, l.Limit, requests)
	for _, v := range key {
		r.Key = append(r.Key, v.part)
	}
	r.Cost = d.Cost
	// Limiters with windows count a request before they compare, so a denied one counts too. At cost 1 that makes no
	// difference: the window is full already. Those with token buckets take nothing for a denied request.
	r.CountDenied = d.Cost > 0 && l.Limit.IsWindowed()
	o := overrides{rule: r, leaf: l, key: key, earlier: earlier, joined: joined}
	o.leaveOut() // before the others, as the filter takes the first override that fits
	o.selectUnmatched()
	return r
}

// keyValue is a value of the leaf whose part is in the rule's key.
type keyValue struct {
	leafValue
	index     int  // of the value in its leaf, and of the value for the same part in the leaves beside it
	isMatched bool // the rule's match selects it
}

// split says where the values of a leaf go. Those that count apart need the key. One text, or values that count
// together, need only the match:
//
//	the leaf's value   the descriptor's match has   goes to
//	alice              nothing of the part, or it   the match
//	a*                 nothing of the part, or it   the match and the key
//	a*, shared         nothing of the part, or it   the match
//	any                anything                     the key
//	alice, a*          another value of the part    the key, where overrides select it: see selectUnmatched
//	a*, shared         another value of the part    neither: the rule is off
//
// A part that no match has, as a query parameter, is as one with another value.
func (l *leaf) split(all request.Selection) (requests request.Selection, key []keyValue) {
	requests = all
	for i, v := range l.values {
		match, isMatched := v.addTo(requests.Match)
		requests.Match = match
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

// addTo is the match that asks for the value too. It is not ok, and the match as it is, if no match asks for such a
// value, or if this one asks for others of the part.
func (v leafValue) addTo(m request.Match) (with request.Match, ok bool) {
	has := m.Of(v.part)
	if len(has) == 0 || v.pattern.Kind == request.AnyValue {
		return m.TryRequire(v.part, v.pattern)
	}
	alone, ok := request.Match{}.TryRequire(v.part, v.pattern)
	return m, ok && slices.Equal(has, alone.Of(v.part))
}
