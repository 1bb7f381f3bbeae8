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
	const off, byOwn, byRoutes = "off", "by its own", "by the route's"
	for _, tc := range []struct {
		name               string
		configs            []envoyfile.Config
		want, whereEnabled string
	}{
		{"its configuration", []envoyfile.Config{its("one")}, byRoutes, byRoutes},
		{"disabled", []envoyfile.Config{disabled}, off, off},
		{"enabled", []envoyfile.Config{{Name: "one"}}, byOwn, byOwn},
		{"another filter's", []envoyfile.Config{its("two")}, byOwn, off},
		{"nothing", nil, byOwn, off},
		{"disabled in a host that has its configuration", []envoyfile.Config{disabled, its("one")}, off, off},
		{"its configuration in a host that disables it", []envoyfile.Config{its("one"), disabled}, byRoutes, byRoutes},
	} {
		f := listenerFilter{filterType: serviceFilter, config: envoyfile.Config{Name: "one"}}
		used := func() string {
			switch c := f.configFor(&hostRoute{configs: tc.configs}); c {
			case nil:
				return off
			case &f.config:
				return byOwn
			default:
				require.Equal(t, "one", c.Name, tc.name)
				return byRoutes
			}
		}
		require.Equal(t, tc.want, used(), tc.name)
		f.works = whereEnabled
		require.Equal(t, tc.whereEnabled, used(), tc.name)
	}
}
