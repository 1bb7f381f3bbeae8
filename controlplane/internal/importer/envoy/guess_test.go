package envoy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Each limit has one rule that is off, where routes choose the values of its key. What an earlier wildcard takes has
// none: the service gives all that fits ab* to a*, and never comes to the limit of any value behind *.
func TestGuessOfValuesThatAnotherOneTakes(t *testing.T) {
	for _, tc := range []struct {
		values           string
		names, unreached []string
	}{
		{"ab*, a*", []string{"generic_key_ab*", "generic_key_a*"}, nil},
		{"a*, ab*", []string{"generic_key_a*"}, []string{"generic_key_ab*"}},
		{"a*, ab", []string{"generic_key_a*", "generic_key_ab"}, nil},
		{"'', '*'", []string{"generic_key_*"}, []string{"generic_key"}},
		{"'', a*", []string{"generic_key", "generic_key_a*"}, nil},
	} {
		text := "domain: shop\ndescriptors:\n"
		for _, value := range strings.Split(tc.values, ", ") {
			text += "- {key: generic_key, value: " + value + ", rate_limit: {unit: minute, requests_per_unit: 5}}\n"
		}
		in, err := source.Open(source.File{Name: "limits.yaml", Text: []byte(text)})
		require.NoError(t, err)
		d := draft.New("envoyproxy/ratelimit", "limits.yaml", policy.ScopeProxy)
		require.NoError(t, ReadService(d, []*source.Document{in}, Options{}))
		made, err := d.Finish()
		require.NoError(t, err)
		var names, unreached []string
		for line := range strings.Lines(string(made.Policy)) {
			if _, name, ok := strings.Cut(line, "- name: "); ok {
				names = append(names, strings.Trim(strings.TrimSpace(name), `"'`))
			}
		}
		for _, n := range made.Notes {
			if name, _, ok := strings.Cut(n.Message, ": no request reaches this limit"); ok {
				unreached = append(unreached, name)
			}
		}
		require.Equal(t, tc.names, names, tc.values)
		require.Equal(t, tc.unreached, unreached, tc.values)
	}
}
