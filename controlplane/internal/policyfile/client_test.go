package policyfile

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What any client can send must not raise its limit, or exempt it, without a warning.
func TestWarningsOfWhatAnyClientCanSend(t *testing.T) {
	const (
		key    = `,"missing_key":"deny","key":`
		raised = `,"overrides":[{"key":["gold*"],"limits":["2/1s"]}]`
	)
	rule := func(fields string) string {
		return `{"version":1,"rules":[{"name":"a","limits":["1/1s"]` + fields + `}]}`
	}
	higher := func(name string) []string {
		return []string{"rules[0].overrides[0]: any client that sends " + name + " gets the higher limit: have the proxy check, set or " +
			"remove it at the edge, or count by what is verified, such as a jwt claim or a client certificate"}
	}
	exempt := func(at, name string) []string {
		return []string{at + "exempt[0]: any client can send or leave out " + name + " and be exempt: have the proxy check, set or " +
			"remove it at the edge, or add client_ips"}
	}
	for _, tt := range []struct {
		doc  string
		want []string
	}{
		{rule(key + `[{"header":"X-Plan"}]` + raised), higher("x-plan")},
		{rule(key + `[{"header":"X-Plan"}]` + raised + `,"mode":"off"`), nil},
		{rule(key + `[{"query":"plan"}]` + raised), higher("query:plan")},
		{rule(key + `[{"cookie":"plan"}]` + raised), higher("cookie:plan")},
		{rule(key + `[{"property":["request","headers","x"]}]` + raised), higher("property:request.headers.x")},
		{rule(key + `[{"jwt":{"provider":"p","claim":"plan"}}]` + raised), nil},
		{rule(key + `[{"property":["connection","uri_san_peer_certificate"]}]` + raised), nil},
		{rule(key + `["route"]` + raised), nil},
		{rule(key + `["host"]` + raised), nil},
		{rule(key + `[{"header":"x-plan"}],"overrides":[{"key":["trial"],"limits":["0/1s"]}]`), nil},
		{rule(key + `[{"header":"x-plan"}],"overrides":[{"key":["gold"],"unlimited":true},{"key":["vip"],"unlimited":true}]`), higher("x-plan")},
		{rule(key + `[{"header":"a"},{"header":"b"},"host"],"overrides":[{"key":["x","y","*"],"unlimited":true}]`), higher("a, b")},
		{rule(key + `[{"header":"a"},"client_ip"],"overrides":[{"key":["x","10.0.0.1"],"unlimited":true}]`), nil},
		{rule(key + `["client_ip",{"header":"a"}],"overrides":[{"key":["*","x"],"unlimited":true}]`), higher("a")},
		{rule(key + `[{"first_of":[{"header":"a"},"client_ip"]}],"overrides":[{"key":["header:a=x"],"unlimited":true}]`), higher("a")},
		{rule(key + `[{"first_of":[{"header":"a"},"client_ip"]}],"overrides":[{"key":["client_ip=192.0.2.7"],"unlimited":true}]`), nil},
		{rule(key + `[{"first_of":[{"header":"a"},"client_ip"]}],"overrides":[{"key":["~.*x"],"unlimited":true}]`), higher("a")},
		{rule(`,"exempt":[{"headers":{"X-Probe":"1","y":"!"}}]`), exempt("rules[0].", "x-probe, y")},
		{rule(`,"exempt":[{"headers":{"x-probe":"1"},"client_ips":["10.0.0.0/8"]},{"paths":["/health"]}]`), nil},
		{`{"version":1,"rules":[{"name":"a","limits":["1/1s"]}],"exempt":[{"paths":["/x"],"headers":{"x-probe":"1"}}]}`, exempt("", "x-probe")},
		{rule(`,"cost":[{"match":{"paths":["/a*"]},"cost":9},{"cost":2}]`), []string{
			"rules[0].limits[0]: denies every request: each costs at least 2, and 1 is the most that fits",
		}},
		{rule(`,"cost":[{"match":{"paths":["/a*"]},"cost":9}]`), []string{
			"rules[0].cost[0]: rules[0].limits[0] denies all that match: each costs at least 9, and 1 is the most that fits",
		}},
	} {
		_, errs, warnings := judge(parseTree(t, tt.doc))
		require.Empty(t, messages(errs), tt.doc)
		require.Equal(t, tt.want, messages(warnings), tt.doc)
	}
}
