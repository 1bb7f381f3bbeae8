package api

import (
	"fmt"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// misfits says where proxies, by what they tell of themselves, lack what the policy takes
// for granted. What a proxy does not tell is not known, and nothing is said of it.
func misfits(p *policy.Policy, proxies []xds.Managed) (warnings []string) {
	var names []string
	var first xds.Managed
	port := manageOf(p).Port
	for _, m := range proxies {
		if at := manage.Port(m.Address); port != 0 && at != 0 && at != port {
			if names = append(names, m.Node); len(names) == 1 {
				first = m
			}
		}
	}
	if len(names) > 0 {
		warnings = append(warnings, fmt.Sprintf("manage.port is %d, but the management listener of %s is on another port (%s): it will answer no request",
			port, printable.Cut(strings.Join(names, ", "), maxShown), shown(first.Address)))
	}
	return warnings
}
