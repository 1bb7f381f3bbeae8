package counters_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/counters"
)

// TestPrepareRefuses: what is no operation on one key of a rule of scope cluster.
func TestPrepareRefuses(t *testing.T) {
	p, _, _, err := policyfile.Read("shop.yaml", []byte(shop+`
  - {name: own, key: [{header: x-user}], limits: [10/minute]}
  - {name: off, scope: cluster, mode: off, key: [{header: x-user}], limits: [10/minute]}
`))
	require.NoError(t, err)
	alice := []string{"alice"}
	for want, o := range map[string]counters.Operation{
		`unknown operation "leased"`:          {Name: "leased", Rule: "per-user", Key: alice},
		`there is no rule "other"`:            {Name: "get", Rule: "other", Key: alice},
		`there is no rule "off"`:              {Name: "get", Rule: "off", Key: alice},
		`rule "own" is not of scope cluster`:  {Name: "get", Rule: "own", Key: alice},
		"key":                                 {Name: "get", Rule: "per-user"},
		`rule "per-user" has no window "day"`: {Name: "set", Rule: "per-user", Key: alice, Window: "day"},
	} {
		_, err := counters.Prepare(p, o)
		require.ErrorContains(t, err, want)
	}
	require.True(t, counters.IsOfCluster(p, counters.Operation{Name: "get", Rule: "per-user"}))
	require.False(t, counters.IsOfCluster(p, counters.Operation{Name: "get", Rule: "own"}))
	require.False(t, counters.IsOfCluster(p, counters.Operation{Name: "stats", Rule: "per-user"}))
}
