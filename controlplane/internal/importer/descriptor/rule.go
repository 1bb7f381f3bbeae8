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
	requests, homes := l.split(d.Selection)
	o := overrides{leaf: l, homes: homes, earlier: earlier, joined: joined}
	o.leaveOut() // before the others, as the filter takes the first override that fits
	o.selectUnmatched()
	requests.AddAll(o.Remarks)
	var key []request.Part
	for i, v := range l.values {
		if homes[i].isInKey() {
			key = append(key, v.part.Part)
		}
	}
	return draft.NewRule(to, draft.Terms{
		Name: name, At: l.At, Limit: l.Limit, Requests: requests, Key: key, Overrides: o.list, Cost: d.Cost,
		// Limiters with windows count a request before they compare, so a denied one counts too. At cost 1 that makes no
		// difference: the window is full already. Those with token buckets take nothing for a denied request.
		CountDenied: d.Cost > 0 && l.Limit.IsWindowed(),
	})
}

// home is where a value of a leaf goes in its rule. Those that count apart need the key. One text, or values that count
// together, need only the match:
//
//	the leaf's value   the descriptor's match has   home
//	alice              nothing of the part, or it   inMatch
//	a*, shared         nothing of the part, or it   inMatch
//	a*                 nothing of the part, or it   inBoth
//	any                anything                     inBoth: the match need not ask for it
//	alice, a*          another value of the part    inKey
//	a*, shared         another value of the part    nowhere
//
// A part that no match has, as a query parameter, is as one with another value.
type home uint8

const (
	inMatch home = iota
	inBoth
	inKey   // overrides select the value: see selectUnmatched
	nowhere // the rule is off
)

func (h home) isInKey() bool { return h == inBoth || h == inKey }

// split has the home of each value of a leaf, and the requests that have the values whose home is the match too.
func (l *leaf) split(all request.Selection) (requests request.Selection, homes []home) {
	requests = all
	for _, v := range l.values {
		match, isMatched := v.addTo(requests.Match)
		h := v.home(isMatched)
		if isMatched {
			requests.Match = match
		}
		if h == nowhere {
			requests.Cannot(v.sharing() + ", and no match can select them.")
		}
		homes = append(homes, h)
	}
	return requests, homes
}

// home is that of the value, if a match can select it or not.
func (v leafValue) home(isMatched bool) home {
	switch {
	case isMatched && (v.shared || v.pattern.Kind() == request.Exactly):
		return inMatch
	case isMatched:
		return inBoth
	case v.shared:
		return nowhere
	}
	return inKey
}

// addTo is the match that asks for the value too. It is not ok if no match asks for such a value, or if this one asks
// for others of the part.
func (v leafValue) addTo(m request.Match) (with request.Match, ok bool) {
	has := m.Of(v.part.Part)
	if len(has) == 0 || v.pattern.Kind() == request.AnyValue {
		return m.TryRequire(v.part, v.pattern)
	}
	alone, ok := request.Match{}.TryRequire(v.part, v.pattern)
	return m, ok && slices.Equal(has, alone.Of(v.part.Part))
}
