package api

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// misfits says where proxies, by what they tell of themselves, lack what the policy takes
// for granted, or do not tell whether they have it.
func (q *Quota) misfits(p *policy.Policy, proxies []xds.Managed) (warnings []string) {
	port := manageOf(p).Port
	names, first := lacking(proxies, func(m xds.Managed) bool { at := manage.Port(m.Address); return port != 0 && at != 0 && at != port })
	if names != "" {
		warnings = append(warnings, fmt.Sprintf("manage.port is %d, but the management listener of %s is on another port (%s): it will answer no request",
			port, names, shown(first.Address)))
	}
	if !slices.ContainsFunc(p.Rules, func(r policy.Rule) bool { return r.Scope == policy.ScopeCluster }) {
		return warnings
	}
	if q.Apart {
		warnings = append(warnings, countedApart)
	}
	names, first = lacking(proxies, func(m xds.Managed) bool { return m.Quota != "" && m.Quota != "*" && m.Quota != p.Quota.Cluster })
	if names != "" {
		warnings = append(warnings, fmt.Sprintf("quota.cluster is %s, but the quota service's cluster in the Envoy of %s is %s: on_unavailable will decide rules of scope cluster",
			shown(p.Quota.Cluster), names, shown(first.Quota)))
	}
	names, _ = lacking(proxies, func(m xds.Managed) bool { return m.Quota == "" })
	if names != "" {
		warnings = append(warnings, fmt.Sprintf("whether the Envoy of %s has the cluster %s of the quota service is not known, because sluice.quota_cluster in the node's metadata names none: "+
			"without it on_unavailable will decide rules of scope cluster", names, shown(p.Quota.Cluster)))
	}
	return warnings
}

// lacking names the proxies that lack something, and returns the first.
func lacking(proxies []xds.Managed, lacks func(xds.Managed) bool) (names string, first xds.Managed) {
	var list []string
	for _, m := range proxies {
		if lacks(m) {
			if list = append(list, m.Node); len(list) == 1 {
				first = m
			}
		}
	}
	return printable.Cut(strings.Join(list, ", "), maxShown), first
}
