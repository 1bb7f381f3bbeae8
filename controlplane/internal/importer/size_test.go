package importer_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer"
)

// TestBombs: what grows when it is read is refused in a moment, and nothing is made of it. That one policy
// has no room for it is said of the configuration.
func TestBombs(t *testing.T) {
	var laughs strings.Builder
	laughs.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 9; i++ {
		fmt.Fprintf(&laughs, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	var values strings.Builder
	for i := range 10_001 {
		fmt.Fprintf(&values, "- {key: tenant, value: v%d, rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
	}
	overrides := "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n"
	for i := range 1001 {
		overrides += "- {key: a, value: v" + strings.Repeat("x", i) + "}\n"
	}
	var keys strings.Builder
	for i := range 12_000 {
		fmt.Fprintf(&keys, "- {key: k%d, rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
	}
	most := "domain: d\ndescriptors:\n" + values.String()[:strings.LastIndex(values.String(), "- ")]
	_, err := service(most)
	require.NoError(t, err)
	for name, tc := range map[string]struct{ text, want string }{
		"aliases": {laughs.String() + "domain: d\n", "an alias counts each time it is used"},
		"depth":   {"domain: d\ndescriptors: " + strings.Repeat("[{key: a, descriptors: ", 5000) + strings.Repeat("}]", 5000), "deep"},
		"integer": {"domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1" + strings.Repeat("0", 100_000) + "}}]", "whole number from 0"},
		"parts":   {strings.Repeat("a: 1\n---\n", 100_000), "more than 100 documents"},
		"rules":   {overrides, "a is beyond what a policy may have: overrides: has 1001 items, the most is 1000"},
		"values":  {"domain: d\ndescriptors:\n" + values.String(), "tenant has more than 10000 values with a limit"},
		"policy":  {"domain: d\ndescriptors:\n" + keys.String(), "bytes, and the maximum is 1048576 (1 MiB): split the file"},
		"size":    {"domain: d\n" + strings.Repeat("#\n", 1<<20), "the most is 1048576"},
	} {
		made, err := service(tc.text)
		require.ErrorContains(t, err, tc.want, name)
		require.NotContains(t, err.Error(), "fault of this import", name)
		require.Empty(t, made.Policy, name)
	}
}

// TestManyRoutes: the path of each is compared with each before it, and has more bytes as JSON than
// as YAML, and each header that may be absent doubles what is sent.
func TestManyRoutes(t *testing.T) {
	for _, tc := range []struct {
		hosts, routes, dots, headers int
		want                         string
	}{
		{1, 4, 200_000, 0, "the policy would have 1600"},
		{840, 1, 500, 0, "the policy would have 1"},
		{1, 250, 0, 9, "r.yaml: virtual_hosts[0].routes[196].route.rate_limits[0]: the rate_limits before these make more than 100000 descriptors"},
	} {
		var routes strings.Builder
		routes.WriteString("virtual_hosts:\n")
		actions := "{remote_address: {}}"
		for i := range tc.headers {
			actions += fmt.Sprintf(", {request_headers: {header_name: x%d, descriptor_key: k%d, skip_if_absent: true}}", i, i)
		}
		for host := range tc.hosts {
			fmt.Fprintf(&routes, "- domains: [h%d]\n  routes:\n", host)
			for i := range tc.routes {
				fmt.Fprintf(&routes, "  - match: {path_separated_prefix: /%d%s}\n    route: {rate_limits: [{actions: [%s]}]}\n",
					i, strings.Repeat(".", tc.dots), actions)
			}
		}
		text := "domain: d\ndescriptors: [{key: remote_address, rate_limit: {unit: day, requests_per_unit: 1}}]\n"
		made, err := importer.EnvoyRatelimit([]importer.File{{Name: "c.yaml", Text: []byte(text)}},
			importer.Options{Routes: &importer.File{Name: "r.yaml", Text: []byte(routes.String())}})
		require.ErrorContains(t, err, tc.want)
		require.NotContains(t, err.Error(), "fault of this import")
		require.NotContains(t, err.Error(), "\n")
		require.Empty(t, made.Policy)
	}
}
