package descriptor

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// written are the rules of levels for requests that send the user.
func written(t *testing.T, user request.Value, levels []*Level) string {
	d := draft.New("levels", "f", policy.ScopeProxy)
	sent := Descriptor{Entries: []Entry{FromRequest("user", user)}}
	d.Add(ServiceLevels(levels, draft.Enforcement{}).Rules(d.Findings, []Descriptor{sent}).Rules...)
	made, err := d.Finish()
	require.NoError(t, err)
	_, rules, _ := strings.Cut(string(made.Policy), "rules:\n")
	return rules
}

// A leaf is a rule, or an override of the rule of a later leaf with the same window. Each rule leaves out the leaves
// before its own.
func TestLeavesBecomeRulesAndOverrides(t *testing.T) {
	alice := newLevel(5, "user=alice")
	begun := newLevel(20, "user=a*")
	all := newLevel(10, "user=*")
	begun.Limit.Per = "hour"
	for i, l := range []*Level{alice, begun, all} {
		l.Order = i
	}
	header, query := request.Header("x-user"), request.Part{Kind: request.KindQuery, Name: "user"}.Value()
	for _, tc := range []struct {
		name   string
		user   request.Value
		levels []*Level
		want   string
	}{
		{"one text needs no key", header, []*Level{alice}, `
  - name: user_alice
    match: {headers: {x-user: alice}}
    limits: [5/minute]
`},
		{"alice is an override, as the windows are the same", header, []*Level{alice, all}, `
  - name: user
    key: [{header: x-user}]
    limits: [10/minute]
    overrides:
      - {key: [alice], limits: [5/minute]}
`},
		{"a* has another window, so it is a rule, which leaves alice out", header, []*Level{alice, begun, all}, `
  - name: user_a*
    match: {headers: {x-user: a*}}
    key: [{header: x-user}]
    limits: [20/hour]
    overrides:
      - {key: [alice], unlimited: true}
  - name: user
    key: [{header: x-user}]
    limits: [10/minute]
    overrides:
      - {key: [alice], limits: [5/minute]}
      - {key: [a*], unlimited: true}
`},
		{"no match asks for a query parameter, so overrides select alice", query, []*Level{alice}, `
  - name: user_alice
    key: [{query: user}]
    limits: [5/minute]
    overrides:
      - {key: [alice], limits: [5/minute]}
      - {key: ['*'], unlimited: true}
`},
	} {
		require.Equal(t, strings.TrimPrefix(tc.want, "\n"), written(t, tc.user, tc.levels), tc.name)
	}
}
