package policy

import (
	"math"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state/page"
)

const (
	// maxPageBytes is the most that the host copies at a time for one request.
	maxPageBytes = 16 << 10
	// minSlots is how many keys share a page at least.
	minSlots = 4
)

// checkRules checks what no rule can say alone.
func (r *reader) checkRules(p *Policy) {
	byName := make(map[string]int, len(p.Rules))
	byCounter := make(map[string]int, len(p.Rules))
	for i := range p.Rules {
		rule, at := &p.Rules[i], r.rules[i]
		if first, found := byName[rule.Name]; found && rule.Name != "" {
			r.failTwice(at.field("name"), RuleNameTwice, r.rules[first].value, rule.Name)
		} else {
			byName[rule.Name] = i
		}
		if !at.sound {
			continue
		}
		if first, found := byCounter[rule.Counter]; found {
			r.sameCounter(at.value, rule, r.rules[first].value, &p.Rules[first])
		} else {
			byCounter[rule.Counter] = i
		}
	}
	if r.count() > 0 {
		return
	}
	for i := range p.Rules {
		if first := byCounter[p.Rules[i].Counter]; first != i {
			p.Rules[first].joinUnits(&p.Rules[i])
		}
	}
	for i := range p.Rules {
		if first := byCounter[p.Rules[i].Counter]; first != i {
			p.Rules[i].joinUnits(&p.Rules[first])
		} else {
			r.fitsPage(r.rules[i].value, &p.Rules[i])
		}
	}
}

// sameCounter refuses a rule that shares a counter whose records it could not
// read: both must agree on keys, windows and capacity. Limits may differ.
func (r *reader) sameCounter(v value, rule *Rule, other value, first *Rule) {
	if rule.KeyDefinition() != first.KeyDefinition() {
		r.failTwice(v.field("key"), CounterKey, other, rule.Counter)
	}
	switch {
	case rule.HoldNs != first.HoldNs:
		r.failTwice(v.field("hold"), CounterHold, other, rule.Counter)
	case !sameBlock(rule.Block, first.Block):
		r.failTwice(v.field("block"), CounterBlock, other, rule.Counter)
	case !sameWindows(rule.Limits, first.Limits):
		r.failTwice(v.field("limits"), CounterWindows, other, rule.Counter)
	}
	if rule.Capacity != first.Capacity {
		r.failTwice(v.field("capacity"), CounterCapacity, other, rule.Counter,
			itoa(int64(rule.Capacity)), itoa(int64(first.Capacity)))
	}
	r.sameLeases(v, rule, other, first)
}

func sameBlock(a, b *Block) bool {
	return (a == nil) == (b == nil) && (a == nil || *a == *b)
}

// sameWindows compares as sets: within a rule all windows differ.
func sameWindows(a, b []Limit) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(l Limit) bool {
		return !slices.ContainsFunc(b, func(other Limit) bool { return other.Same(l.Window) })
	})
}

// setUnits makes each log of the rule remember as much as any key may use.
func (r *Rule) setUnits() {
	for i := range r.Limits {
		if r.Limits[i].Algorithm != limit.SlidingWindowLog {
			continue
		}
		units := r.Limits[i].Most()
		for j := range r.Overrides {
			if l := r.Overrides[j].Limits; i < len(l) && !l[i].Unlimited {
				units = max(units, l[i].Limit)
			}
		}
		r.remember(i, uint16(min(units, limit.MaxLog)))
	}
}

// joinUnits makes the logs of r remember at least as much as those of another
// rule of its counter, whose records they share.
func (r *Rule) joinUnits(other *Rule) {
	for i := range r.Limits {
		for _, l := range other.Limits {
			if l.Same(r.Limits[i].Window) && l.Units > r.Limits[i].Units {
				r.remember(i, l.Units)
			}
		}
	}
}

func (r *Rule) remember(i int, units uint16) {
	r.Limits[i].Units = units
	for j := range r.Overrides {
		if l := r.Overrides[j].Limits; i < len(l) {
			l[i].Units = units
		}
	}
}

// fitsPage bounds what one request makes the host copy: a single log fits,
// several long ones do not.
func (r *reader) fitsPage(v value, rule *Rule) {
	layout := page.NewLayout(rule.Windows(), minSlots)
	if layout.ValueBytes() > maxPageBytes {
		units := 0
		for i := range rule.Limits {
			units += int(rule.Limits[i].Units)
		}
		r.fail(v.field("limits"), LogsTooLong, itoa(int64(units)))
	}
}

// MaxLease is the most units that a lease may be set to.
const MaxLease = math.MaxUint32 - 1

func readLease(r *reader, v value, rule *Rule) {
	switch n, ok := v.Integer(); {
	case v.Kind == String && v.Text == "auto":
		rule.Lease = quota.LeaseAuto
	case v.Kind == String && v.Text == "off":
		rule.Lease = quota.LeaseOff
	case ok && n >= 1 && n <= MaxLease:
		rule.Lease = uint32(n)
	default:
		r.fail(v, WrongValue)
	}
}

// leases reports whether the rule holds units that the quota service has granted
// ahead of need.
func (r *Rule) leases() bool { return r.Scope == ScopeCluster && r.Lease != quota.LeaseOff }

// fitsScope checks what only rules of scope cluster have, and what a rule that
// leases or holds cannot do.
func (r *reader) fitsScope(v value, rule *Rule) {
	if r.rule.holds() {
		r.refuse(v, HeldLease, "lease")
		if rule.Scope == ScopeCluster {
			rule.Lease = quota.LeaseOff
		} else {
			r.refuse(v, ClusterOnly, "on_unavailable")
		}
		return
	}
	switch {
	case rule.Scope == ScopeProxy:
		r.refuse(v, ClusterOnly, "lease", "on_unavailable")
	case rule.Block != nil:
		if rule.Lease != quota.LeaseOff && rule.Lease != quota.LeaseAuto {
			r.fail(v.field("lease"), LeasedBlock)
		}
		rule.Lease = quota.LeaseOff
	}
	if !rule.leases() {
		return
	}
	if rule.CountDenied {
		r.fail(v.field("count_denied"), LeasedDenials)
	}
	for i := range rule.Limits {
		if rule.Limits[i].Elastic {
			r.fail(value{Place: v.Field("limits").Item(i).Field("elastic")}, LeasedElastic)
		}
	}
}

// sameLeases refuses rules of one counter that could not spend the same units.
func (r *reader) sameLeases(v value, rule *Rule, other value, first *Rule) {
	switch {
	case rule.Scope != first.Scope:
		r.failTwice(v.field("scope"), CounterScope, other, rule.Counter)
	case rule.Scope != ScopeCluster:
	case rule.Lease != first.Lease:
		r.failTwice(v.field("lease"), CounterLease, other, rule.Counter)
	case rule.leases() && sameWindows(rule.Limits, first.Limits) && !sameNumbers(rule, first):
		r.failTwice(v.field("limits"), CounterLimits, other, rule.Counter)
	}
}

// sameNumbers reports whether two rules with the same windows allow each key the
// same.
func sameNumbers(a, b *Rule) bool {
	return sameLimits(a.Limits, b.Limits) && slices.EqualFunc(a.Overrides, b.Overrides, func(x, y Override) bool {
		samePattern := func(p, q Pattern) bool { return p.Kind == q.Kind && p.Text == q.Text }
		return slices.EqualFunc(x.Key, y.Key, samePattern) && sameLimits(x.Limits, y.Limits)
	})
}

// sameLimits is sameWindows that compares their numbers too.
func sameLimits(a, b []Limit) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(l Limit) bool {
		return !slices.ContainsFunc(b, func(other Limit) bool {
			return other.Same(l.Window) && other.Limit == l.Limit && other.Burst == l.Burst && other.Unlimited == l.Unlimited &&
				other.Requested.same(l.Requested)
		})
	})
}
