package envoyfile

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const twoListeners = `
listeners:
- name: front
  filter_chains: [{filters: [{typed_config: {http_filters: [{name: limiter}], rds: {route_config_name: shop}}}]}]
- address: {socket_address: {address: 0.0.0.0, port_value: 80}}
  filter_chains: [{filters: [{typed_config: {http_filters: [], route_config: {virtual_hosts: []}}}]}]
routes:
- {name: shop, virtual_hosts: [{domains: [a.example]}]}
- {name: alone, virtual_hosts: []}
`

// A site is a listener with the routes that it has or names, or routes that no listener names.
func TestSitesOfAConfiguration(t *testing.T) {
	in, err := source.Open(source.File{Name: "e", Text: []byte(twoListeners)})
	require.NoError(t, err)
	var got []string
	sites := FindSites(in, nil)
	for _, s := range sites {
		domain := ""
		for _, h := range source.ItemsOf(s.Routing.Node, "virtual_hosts") {
			domain = source.ItemsOf(h, "domains")[0].Text
		}
		got = append(got, s.name+": "+domain)
	}
	require.Equal(t, []string{"front: a.example", "0.0.0.0:80: ", "alone: "}, got)
	require.Equal(t, "limiter", sites[0].Filters[0].Name)

	chosen, err := Choose(sites, "0.0.0.0:80")
	require.NoError(t, err)
	require.Same(t, sites[1], chosen)
	_, err = Choose(sites, "")
	var usage *source.UsageError
	require.ErrorAs(t, err, &usage)
	require.Equal(t, "choose one with --listener: front, 0.0.0.0:80, alone", usage.Hint)
}

// A part of a configuration is read as the whole that has it.
func TestPartsOfAConfiguration(t *testing.T) {
	const filter = "{kind: EnvoyFilter, spec: {configPatches: [{applyTo: HTTP_FILTER, patch: {value: {name: a}}}]}}"
	for text, want := range map[string]string{
		"routes: [{match: {prefix: /a}}]":     `{"virtual_hosts":[{"routes":[{"match":{"prefix":"/a"}}]}]}`,
		"{match: {prefix: /a}, route: {}}":    `{"virtual_hosts":[{"routes":[{"match":{"prefix":"/a"},"route":{}}]}]}`,
		"{virtual_hosts: [{domains: ['*']}]}": `{"virtual_hosts":[{"domains":["*"]}]}`,
		filter:                                `{"http_filters":[{"name":"a"}]}`,
	} {
		in, err := OpenWhole(draft.New("test", "e", policy.ScopeProxy).Findings, source.File{Name: "e", Text: []byte(text)})
		require.NoError(t, err, text)
		require.Equal(t, want, string(policy.AppendJSON(nil, in.Root)), text)
	}
}
