package envoy

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// The table of listenerFilter.configFor: Envoy finds the configuration of a route for a filter by the filter's name.
func TestConfigurationOfAFilterForARoute(t *testing.T) {
	its := func(name string) envoyfile.Config {
		return envoyfile.Config{Name: name, TypeName: envoyfile.PerRouteType, Node: &policy.Node{}}
	}
	disabled := envoyfile.Config{Name: "one", Disabled: true}
	const ofFilter, ofRoute, none = "the filter's own", "that of the route", "none"
	for _, tc := range []struct {
		name               string
		configs            []envoyfile.Config
		want, whereEnabled string
	}{
		{"its configuration", []envoyfile.Config{its("one")}, ofRoute, ofRoute},
		{"disabled", []envoyfile.Config{disabled}, none, none},
		{"enabled", []envoyfile.Config{{Name: "one"}}, ofFilter, ofFilter},
		{"another filter's", []envoyfile.Config{its("two")}, ofFilter, none},
		{"nothing", nil, ofFilter, none},
		{"disabled in a host that has its configuration", []envoyfile.Config{disabled, its("one")}, none, none},
		{"its configuration in a host that disables it", []envoyfile.Config{its("one"), disabled}, ofRoute, ofRoute},
	} {
		f := listenerFilter{kind: serviceFilter, config: envoyfile.Config{Name: "one"}}
		used := func() string {
			c, works := f.configFor(&hostRoute{configs: tc.configs})
			require.Equal(t, works, c.Name == "one", tc.name)
			switch {
			case !works:
				return none
			case c == f.config:
				return ofFilter
			}
			return ofRoute
		}
		require.Equal(t, tc.want, used(), tc.name)
		f.worksWhere = whereEnabled
		require.Equal(t, tc.whereEnabled, used(), tc.name)
	}
}
