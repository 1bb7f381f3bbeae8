package ratelimitconfig_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/ratelimitconfig"
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

func read(t *testing.T, text string) (*ratelimitconfig.Config, error) {
	t.Helper()
	n, err := policyfile.Parse("c.yaml", []byte(text))
	require.NoError(t, err)
	return ratelimitconfig.Read("c.yaml", n)
}

const everyField = `
domain: shop
descriptors:
  - key: tenant
    value: 7
    metadata: {team: a}
    descriptors:
      - key: path
        value: /api/*
        share_threshold: true
        shadow_mode: true
        quota_mode: true
        detailed_metric: true
        value_to_metric: true
        rate_limit: {name: api, unit: MINUTE, requests_per_unit: 4294967295, replaces: [{name: all}, {name: web}]}
  - key: tenant
    rate_limit: {unlimited: true}
`

// Every field of a file is in the tree, at its line.
func TestTheTreeHasEveryField(t *testing.T) {
	c, err := read(t, everyField)
	require.NoError(t, err)
	metadata := c.Descriptors[0].Metadata
	require.Equal(t, map[string]any{"team": "a"}, metadata.AsMap())
	path := &ratelimitconfig.Descriptor{
		Key: "path", Value: "/api/*", ShareThreshold: true, ShadowMode: true, QuotaMode: true, DetailedMetric: true,
		ValueToMetric: true,
		Limit: &ratelimitconfig.Limit{
			Name: "api", Unit: "minute", Requests: 4294967295, Replaces: []string{"all", "web"},
			Windows: []limit.Window{{Algorithm: limit.FixedWindow, Limit: 4294967295, PeriodNs: 60_000_000_000}},
		},
		Path: "descriptors[0].descriptors[0]", Line: 8, Column: 9,
	}
	descriptors := []*ratelimitconfig.Descriptor{
		{
			Key: "tenant", Value: "7", Metadata: metadata, Descriptors: []*ratelimitconfig.Descriptor{path},
			Path: "descriptors[0]", Line: 4, Column: 5,
		},
		{
			Key: "tenant", Limit: &ratelimitconfig.Limit{Unlimited: true},
			Path: "descriptors[1]", Line: 16, Column: 5,
		},
	}
	require.Equal(t, &ratelimitconfig.Config{
		File: "c.yaml", Domain: "shop", Descriptors: descriptors, CountDenied: true,
	}, c)
	require.Equal(t, "tenant_7", c.Descriptors[0].Name())
	require.True(t, path.HasWildcard())
}

// What the service refuses is refused, with the place and what would be right.
func TestRefusesWhatTheServiceRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"domain: d\nrules: []": "c.yaml:2:1: rules: unknown field: the fields here are " +
			"descriptors, domain, sluice",
		"descriptors: []":                      "c.yaml:1:1: domain: is missing: a configuration has a domain",
		"domain: [d]":                          "c.yaml:1:9: domain: must be text, not a list",
		"domain: d\ndescriptors: [{value: a}]": "c.yaml:2:15: descriptors[0]: a descriptor needs a key",
		"domain: d\ndescriptors: [{key: a}, {key: a}]": "c.yaml:2:25: descriptors[1]: the descriptor a is given " +
			"twice: keep one",
		"domain: d\ndescriptors: [{key: a, key: b}]": "c.yaml:2:24: descriptors[0].key: is given twice: keep one",
		"domain: d\ndescriptors: [{key: a, shadow_mod: yes}]": `c.yaml:2:24: descriptors[0].shadow_mod: unknown field: ` +
			`did you mean "shadow_mode"?`,
		"domain: d\ndescriptors: [{key: a, rate_limit: {}}]": `c.yaml:2:36: descriptors[0].rate_limit.unit: must be ` +
			`second, minute, hour, day, ` +
			`week, month or year, not ""`,
	} {
		_, err := read(t, text)
		require.EqualError(t, err, want)
	}
}

// Each domain is one configuration; a domain of two files is an error unless they are merged.
func TestJoinMakesOneConfigurationOfEachDomain(t *testing.T) {
	var configs []*ratelimitconfig.Config
	for _, text := range []string{
		"domain: d\ndescriptors: [{key: a}]", "domain: e\ndescriptors: [{key: b}]", "domain: d\ndescriptors: [{key: c}]",
	} {
		c, err := read(t, text)
		require.NoError(t, err)
		configs = append(configs, c)
	}
	_, err := ratelimitconfig.Join(configs, false)
	require.EqualError(t, err, "c.yaml: domain: the domain d is that of c.yaml, too: put it in one file, or merge the "+
		"files of a domain")
	joined, err := ratelimitconfig.Join(configs, true)
	require.NoError(t, err)
	require.Len(t, joined, 2)
	require.Equal(t, []string{"d", "e"}, []string{joined[0].Domain, joined[1].Domain})
	require.Len(t, joined[0].Descriptors, 2)
	_, err = ratelimitconfig.Join(append(configs, configs[0]), true)
	require.EqualError(t, err, "c.yaml:2:15: descriptors[0]: the descriptor a is given twice: keep one")
}

// A field that the service knows elsewhere is ignored, as there, and said. Others are errors.
func TestFieldsInTheWrongPlaceAreIgnoredAsInTheService(t *testing.T) {
	c, err := read(t, `
domain: d
descriptors:
  - key: a
    unit: day
    rate_limit: {unit: hour, requests_per_unit: 1, shadow_mode: true}
`)
	require.NoError(t, err)
	require.False(t, c.Descriptors[0].ShadowMode)
	require.EqualError(t, c.Ignored, "c.yaml:5:5: descriptors[0].unit: is ignored here: it belongs to a rate_limit\n"+
		"c.yaml:6:52: descriptors[0].rate_limit.shadow_mode: is ignored here: it belongs to a descriptor")
	_, err = read(t, "domain: d\nsluice: {unit: day}")
	require.EqualError(t, err, "c.yaml:2:10: sluice.unit: unknown field: the fields here are count_denied")
}

// What is too deep or wrong everywhere ends early, with one message or a few.
func TestHostileFilesAreRefusedInFewWords(t *testing.T) {
	for want, text := range map[string]string{
		"32 deep":        strings.Repeat("[{key: a, descriptors: ", 100) + strings.Repeat("}]", 100),
		"given twice":    "[" + strings.Repeat("{key: a},", 20_000) + "]",
		"depth of 10000": strings.Repeat("[", 500_000),
	} {
		document, err := policyfile.Parse("c.yaml", []byte("domain: d\ndescriptors: "+text))
		if err == nil {
			_, err = ratelimitconfig.Read("c.yaml", document)
		}
		require.ErrorContains(t, err, want)
		require.Less(t, len(err.Error()), 20_000)
	}
}
