package descriptor

import (
	"cmp"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// rulesOfLeaves makes the rules of leaves that are reachable. They come in the order of the limiter's search, and a
// request belongs to the first whose conditions it meets. Each leaf with a limit becomes a rule, or an override of the
// rule of a later leaf. In each rule the requests of the leaves before its own are unlimited, or have that override.
//
// An example: alice may make 5 requests a minute, users that begin with "a" 20 an hour, and any
// other user 10 a minute. The descriptor has one entry, user, whose part is the header x-user.
//
//	alice  5/minute   an override of the rule for any user, which has the same window
//	a*     20/hour    a rule that matches x-user: a*, in which alice is unlimited
//	any    10/minute  a rule for any x-user, with the override for alice; in it a* is unlimited
func (d *Descriptor) rulesOfLeaves(
	to *draft.Findings, leaves []*leaf, enforced draft.Enforcement,
) (list []*draft.Rule) {
	byFile := func(a, b *plannedLeaf) int { return cmp.Compare(a.level.Order, b.level.Order) }
	for _, l := range slices.SortedStableFunc(slices.Values(plan(leaves)), byFile) {
		if l.hasRule() {
			list = append(list, d.makeRule(l, enforced))
		}
	}
	if len(list) == 0 { // else its rules say why they are off
		for _, why := range d.Requests.WhyOff() {
			to.Note(d.At, string(why)+" There is no rule for it.")
		}
	}
	return list
}

// plannedLeaf is a leaf with what becomes of it: a rule, an override in the rule of a wider leaf, or neither, as it has
// no limit.
type plannedLeaf struct {
	*leaf
	earlier  []*plannedLeaf // those before it, in the order of the search
	mixed    *leaf          // one that a policy takes for it, so its rule is off; nil = there is none
	inRuleOf *plannedLeaf   // the wider leaf; nil = it is no override
}

func (l *plannedLeaf) hasRule() bool { return l.level.Limit != nil && l.inRuleOf == nil }

// limitIn is the limit of the leaf's requests in the rule of a later one; nil if they are unlimited there: they have a
// rule of their own, or no limit.
func (l *plannedLeaf) limitIn(other *plannedLeaf) *draft.Limit {
	if l.inRuleOf != other {
		return nil
	}
	return l.level.Limit
}

// plan says what becomes of leaves, in their order.
func plan(leaves []*leaf) []*plannedLeaf {
	mixed := findMixed(leaves)
	list := make([]*plannedLeaf, len(leaves))
	for i, l := range leaves {
		list[i] = &plannedLeaf{leaf: l, earlier: list[:i], mixed: mixed[l]}
	}
	joinOverrides(list)
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
	mixed := map[*leaf]*leaf{}
	for i, l := range leaves {
		for _, before := range leaves[:i] {
			if l.isMixedWith(before.conditions) {
				mixed[l] = before
				mixed[before] = l
			}
		}
	}
	return mixed
}

// isMixedWith reports whether no request meets both conditions, and a policy, which compares less of hosts, takes those
// of the one for those of the other.
func (list conditions) isMixedWith(other conditions) bool {
	if !list.apart(other) {
		return false
	}
	for i, c := range list {
		if c.value.Compared(c.pattern).Apart(c.value.Compared(other[i].pattern)) {
			return false
		}
	}
	return true
}

// joinOverrides makes leaves overrides of the rules of wider ones, but none that is mixed. The last leaf that can have
// an override gets it, as it is the widest. In the example of rulesOfLeaves, alice becomes an override of the rule for
// any user.
func joinOverrides(list []*plannedLeaf) {
	var wide []*plannedLeaf // those with a rule that may have overrides, the last first
	for _, l := range slices.Backward(list) {
		if l.level.Limit == nil || l.mixed != nil {
			continue
		}
		canHave := func(w *plannedLeaf) bool { return l.canOverride(w.leaf) }
		if i := slices.IndexFunc(wide, canHave); i >= 0 {
			l.inRuleOf = wide[i]
		} else if !l.areOneText() {
			wide = append(wide, l)
		}
	}
}

// areOneText reports whether each value must be one text: then no other leaf is within theirs.
func (list conditions) areOneText() bool {
	return !slices.ContainsFunc(list, func(c condition) bool { return c.pattern.Kind() != request.Exactly })
}

// canOverride reports whether a leaf can be an override of another one's rule, which takes
// the same window and the same enforcement.
func (l *leaf) canOverride(other *leaf) bool {
	needsRule := func(c condition) bool {
		_, why := c.inOverride()
		return why != "" || c.shared
	}
	// An override has no comments and no mode of its own.
	isPlain := func(l *leaf) bool { return l.level.Limit.AreNone() && !slices.ContainsFunc(l.conditions, needsRule) }
	return l.within(other.conditions) && l.level.Limit.IsOfClass(other.level.Limit) && isPlain(l) && isPlain(other)
}

// inOverride is the condition as an override has it, or why none has it. Only a path or a host can be the reason: no
// request has an address that no override can say, so reachable takes such a leaf out before.
func (c condition) inOverride() (text string, why request.WhyOff) {
	text, ok := c.value.AsOverride(c.pattern)
	switch {
	case ok:
		return text, ""
	case c.value.Part.Kind == request.KindHost:
		return "", request.WhyOff("Hosts are compared without their port, and cannot say " + c.pattern.Text() + ".")
	}
	return "", request.WhyOff("Paths are compared without the query, and cannot say " + c.pattern.Text() + ".")
}
