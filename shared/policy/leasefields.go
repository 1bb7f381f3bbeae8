package policy

import (
	"math"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/quota"
)

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
