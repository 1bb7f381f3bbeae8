package lint

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// warnTimeoutNs is how long a request may wait for the quota service without a
// warning.
const warnTimeoutNs = 1_000_000_000

// quota warns of how the rules of scope cluster ask.
func (l *linter) quota(root value, p *policy.Policy) {
	at := root.field("quota")
	if p.Quota == nil || at.node == root.node { // defaults
		return
	}
	if p.Quota.TimeoutNs > warnTimeoutNs {
		l.warn(at.field("timeout"), "while the quota service is silent, a request may wait "+policy.FormatDuration(p.Quota.TimeoutNs)+
			" until the proxy decides without it: 100ms is the default")
	}
	for i := range p.Rules {
		if p.Rules[i].Scope == policy.ScopeCluster {
			return
		}
	}
	l.warn(at, "no rule has scope cluster, so nothing asks a quota service")
}

// cluster warns of what a rule of scope cluster risks, and of what it says in vain.
func (l *linter) cluster(v value, r *policy.Rule) {
	if r.Scope != policy.ScopeCluster || r.Mode == policy.ModeOff {
		return
	}
	if r.OnUnavailable == policy.UnavailableAllow {
		l.warn(v.field("on_unavailable"), "while the quota service is silent, every request is allowed and none is counted: "+
			"local keeps each Envoy to its share of the limit")
	}
	if r.Lease == quota.LeaseOff {
		return
	}
	limits := v.field("limits")
	for i := range r.Limits {
		if w := &r.Limits[i].Window; r.Limits[i].Max() > 0 && !quota.Leases(w) {
			l.warn(limits.item(i), "the rule leases nothing, because a lease of this window would last "+policy.FormatDuration(quota.LeaseNs(w))+
				" and the shortest is "+policy.FormatDuration(quota.MinLeaseNs)+": each request asks the quota service; set lease to off to say so")
			return
		}
	}
	if most := mostAhead(r); r.Lease != quota.LeaseAuto && len(r.Limits) > 0 && r.Lease > most {
		l.warn(v.field("lease"), "is never reached: one grant gives at most a quarter of what is left ahead of need, and nothing where less "+
			"than 16 is left, which makes "+strconv.FormatUint(uint64(most), 10)+" here; lower it, or write auto")
	}
}

// mostAhead is the most units that any key of the rule is given ahead of need.
func mostAhead(r *policy.Rule) uint32 {
	most := smallest(r.Limits)
	for i := range r.Overrides {
		most = max(most, smallest(r.Overrides[i].Limits))
	}
	return quota.MostAhead(most)
}

// smallest is how many units the tightest of the windows admits; 0 without windows.
func smallest(limits []policy.Limit) uint32 {
	units, bounded := uint32(0), false
	for i := range limits {
		if w := &limits[i]; !w.Unlimited && (!bounded || w.Max() < units) {
			units, bounded = w.Max(), true
		}
	}
	return units
}
