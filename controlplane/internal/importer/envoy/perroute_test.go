package envoy

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/envoyfile"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// The table of listenerFilter.settingOn: Envoy finds the configuration of a route for a filter by the filter's name.
func TestSettingsOfAFilterOnARoute(t *testing.T) {
	its := func(name string) envoyfile.Config {
		return envoyfile.Config{Name: name, TypeName: envoyfile.PerRouteType, Node: &policy.Node{}}
	}
	disabled := envoyfile.Config{Name: "one", Disabled: true}
	for _, tc := range []struct {
		name               string
		configs            []envoyfile.Config
		want, whereEnabled setting
	}{
		{"its configuration", []envoyfile.Config{its("one")}, configured, configured},
		{"disabled", []envoyfile.Config{disabled}, off, off},
		{"enabled", []envoyfile.Config{{Name: "one"}}, unchanged, unchanged},
		{"another filter's", []envoyfile.Config{its("two")}, unchanged, off},
		{"nothing", nil, unchanged, off},
		{"disabled in a host that has its configuration", []envoyfile.Config{disabled, its("one")}, off, off},
		{"its configuration in a host that disables it", []envoyfile.Config{its("one"), disabled}, configured, configured},
	} {
		f := listenerFilter{config: envoyfile.Config{Name: "one"}, typeOnRoutes: envoyfile.PerRouteType}
		got, c := f.settingOn(&hostRoute{configs: tc.configs})
		require.Equal(t, tc.want, got, tc.name)
		require.Equal(t, got == configured, c.Name == "one", tc.name)
		f.works = whereEnabled
		got, _ = f.settingOn(&hostRoute{configs: tc.configs})
		require.Equal(t, tc.whereEnabled, got, tc.name)
	}
}
