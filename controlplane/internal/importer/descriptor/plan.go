package descriptor

import (
	"cmp"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// plan says what becomes of the leaves of a descriptor that have a limit.
type plan struct {
	leaves   []*leaf         // all, in the order of the search
	mixed    map[*leaf]*leaf // of a leaf another one that a policy takes for it: its rule is off
	inRuleOf map[*leaf]*leaf // of a leaf a wider one behind it, of whose rule it becomes an override; else it has a rule
}

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
	mixed := findMixed(leaves)
	p := plan{leaves, mixed, findOverrides(leaves, mixed)}
	byFile := func(a, b *leaf) int { return cmp.Compare(a.level.Order, b.level.Order) }
	for _, l := range slices.SortedStableFunc(slices.Values(leaves), byFile) {
		if l.level.Limit != nil && p.inRuleOf[l] == nil {
			list = append(list, d.makeRule(l, p, enforced))
		}
	}
	if len(list) == 0 { // else its rules say why they are off
		for _, why := range d.Requests.WhyOff() {
			to.Note(d.At, string(why)+" There is no rule for it.")
		}
	}
	return list
}

// findMixed finds the leaves whose requests a policy takes for those of another leaf. They get rules of their own,
// which are off. An example are the leaves of the hosts a.example:80 and a.example:8080, if other conditions do not
// tell them apart.
func findMixed(leaves []*leaf) (mixed map[*leaf]*leaf) {
	isOfHost := func(c condition) bool { return c.value.Part.Kind == request.KindHost }
	isPossible := func(l *leaf) bool { return slices.ContainsFunc(l.conditions, isOfHost) }
	if !slices.ContainsFunc(leaves, isPossible) { // each is compared with each other
		return nil
	}
	mixed = map[*leaf]*leaf{}
	for i, l := range leaves {
		for _, before := range leaves[:i] {
			if l.isMixedWith(before) {
				mixed[l] = before
				mixed[before] = l
			}
		}
	}
	return mixed
}

// isMixedWith reports whether no request meets the conditions of both leaves, and a policy, which compares less of
// hosts, takes those of the one for those of the other.
func (l *leaf) isMixedWith(other *leaf) bool {
	if !l.apart(other) {
		return false
	}
	for i, c := range l.conditions {
		if c.value.Compared(c.fits).Apart(c.value.Compared(other.conditions[i].fits)) {
			return false
		}
	}
	return true
}

// findOverrides finds the leaves that become overrides of the rules of wider ones, but none that is mixed. The last
// leaf that can have an override gets it, as it is the widest. In the example of rulesOfLeaves, alice becomes an
// override of the rule for any user.
func findOverrides(leaves []*leaf, mixed map[*leaf]*leaf) (inRuleOf map[*leaf]*leaf) {
	inRuleOf = map[*leaf]*leaf{}
	var wide []*leaf // those with a rule that may have overrides, the last first
	for _, l := range slices.Backward(leaves) {
		if l.level.Limit == nil || mixed[l] != nil {
			continue
		}
		if i := slices.IndexFunc(wide, l.canOverride); i >= 0 {
			inRuleOf[l] = wide[i]
		} else if !l.isOneText() {
			wide = append(wide, l)
		}
	}
	return inRuleOf
}

// isOneText reports whether each value must be one text: then no other leaf is within this one.
func (l *leaf) isOneText() bool {
	return !slices.ContainsFunc(l.conditions, func(c condition) bool { return c.fits.Kind() != request.Exactly })
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
	return l.within(other) && l.level.Limit.IsOfClass(other.level.Limit) && isPlain(l) && isPlain(other)
}

// inOverride is the condition as an override has it, or why none has it. Only a path or a host can be the reason: no
// request has an address that no override can say, so reachable takes such a leaf out before.
func (c condition) inOverride() (text string, why request.WhyOff) {
	text, ok := c.value.AsOverride(c.fits)
	switch {
	case ok:
		return text, ""
	case c.value.Part.Kind == request.KindHost:
		return "", request.WhyOff("Hosts are compared without their port, and cannot say " + c.fits.Text() + ".")
	}
	return "", request.WhyOff("Paths are compared without the query, and cannot say " + c.fits.Text() + ".")
}
