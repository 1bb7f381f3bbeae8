package draft_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// finish makes a policy of one limit.
func finish(numbers draft.Numbers, key ...request.Part) (draft.Imported, error) {
	d := draft.New("a limiter", "limits.yaml", policy.ScopeProxy)
	at := source.Place{File: "limits.yaml", Line: 3}
	limit := &draft.Limit{Numbers: numbers, At: at}
	limit.Comment("There it counts in UTC.")
	r := draft.NewRule(d.Findings, "", at, limit, request.Selection{})
	r.Key = key
	d.Rules = append(d.Rules, r)
	return d.Finish()
}

// There is no policy if it is not valid. The error tells a fault of the file from one of the import.
func TestAPolicyThatIsNotValid(t *testing.T) {
	made, err := finish(draft.Windowed(5, "fortnight"))
	require.ErrorIs(t, err, draft.ErrFault)
	require.Empty(t, made.Policy)
	require.Equal(t, "limits.yaml:3: rule: There it counts in UTC.", made.Notes[0].String())

	made, err = finish(draft.Windowed(5, "minute"), make([]request.Part, 100)...)
	require.ErrorContains(t, err, "rule is beyond what a policy may have: key: ")
	require.NotErrorIs(t, err, draft.ErrFault)
	require.Empty(t, made.Policy)
}

// A rule says once what is so of several routes.
func TestARemarkOfARuleIsSaidOnce(t *testing.T) {
	var requests request.Selection
	for range 2 {
		requests.Comment("It leaves out a route.")
		requests.Cannot("Another route is unknown.")
	}
	d := draft.New("a limiter", "limits.yaml", policy.ScopeProxy)
	limit := &draft.Limit{Numbers: draft.Windowed(5, "minute")}
	d.Rules = append(d.Rules, draft.NewRule(d.Findings, "routes", source.Place{}, limit, requests))
	made, err := d.Finish()
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(made.Policy), "# It leaves out a route."), string(made.Policy))
	require.Equal(t, 1, strings.Count(string(made.Policy), "# Off: Another route is unknown."), string(made.Policy))
}
