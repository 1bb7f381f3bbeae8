package policy_test

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func TestCosts(t *testing.T) {
	read := func(cost string) (*policy.Policy, []string) {
		p, problems := policy.Read(parse(t, `{"version":1,"rules":[{"name":"a","limits":["9/1s"],"cost":`+cost+`}]}`))
		return p, messages(problems)
	}
	search := policy.MatchedCost{
		Match: policy.Match{Paths: []policy.Pattern{{Kind: policy.Prefix, Text: "/search"}}}, Cost: policy.Cost{Fixed: 10},
	}
	for _, tt := range []struct {
		cost  string
		list  []policy.MatchedCost
		other policy.Cost
	}{
		{`2`, nil, policy.Cost{Fixed: 2}},
		{`[{"cost":2}]`, nil, policy.Cost{Fixed: 2}},
		{`[{"match":{"paths":["/search*"]},"cost":10}]`, []policy.MatchedCost{search}, policy.Cost{Fixed: 1}},
		{
			`[{"match":{"paths":["/search*"]},"cost":10},{"match":{},"cost":{"header":"X-C","max":7}}]`,
			[]policy.MatchedCost{search}, policy.Cost{Header: "x-c", Default: 1, Min: 1, Max: 7},
		},
	} {
		p, problems := read(tt.cost)
		require.Empty(t, problems, tt.cost)
		require.Equal(t, tt.list, p.Rules[0].Costs, tt.cost)
		require.Equal(t, tt.other, p.Rules[0].Cost, tt.cost)
	}
}

// The policy's exemptions are read as a rule's.
func TestExemptOfThePolicy(t *testing.T) {
	p, problems := policy.Read(parse(t, `{"version":1,"rules":[{"name":"a","limits":[],"exempt":[{"methods":["GET"]}]}],"exempt":[{"methods":["GET"]}]}`))
	require.Empty(t, problems)
	require.Equal(t, p.Rules[0].Exempt, p.Exempt)
	_, problems = policy.Read(parse(t, `{"version":1,"exempt":[{}]}`))
	require.Equal(t, []string{"exempt[0]: exempts_all"}, messages(problems))
}

// A cost with a match of whatever condition is for some requests, not for all.
func TestCostOfEveryCondition(t *testing.T) {
	for field := range reflect.TypeFor[policy.Match]().Fields() {
		condition := map[string]string{"Methods": `"methods":["GET"]`, "Hosts": `"hosts":["x"]`, "Paths": `"paths":["/a"]`,
			"ClientIPs": `"client_ips":["10.0.0.0/8"]`, "Headers": `"headers":{"x-plan":"*"}`}[field.Name]
		require.NotEmpty(t, condition, "give this test an example of match.%s", field.Name)
		p, problems := policy.Read(parse(t, `{"version":1,"rules":[{"name":"a","limits":["9/1s"],"cost":[{"match":{`+condition+`},"cost":2}]}]}`))
		require.Empty(t, messages(problems))
		require.Len(t, p.Rules[0].Costs, 1)
	}
}
