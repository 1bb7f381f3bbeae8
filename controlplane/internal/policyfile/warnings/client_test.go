package warnings

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Each condition narrows a match. An exemption gets a warning if any client can meet it by what it sends beside the
// request's target.
func TestEveryConditionOfAMatch(t *testing.T) {
	header := []policy.HeaderMatch{{Name: "x-probe", Value: policy.Pattern{Kind: policy.Present}}}
	conditions := map[string]struct {
		match                policy.Match
		alone, besideAHeader bool // whether an exemption gets the warning
	}{
		"Hosts":     {policy.Match{Hosts: []string{"a.example"}}, false, true},
		"Methods":   {policy.Match{Methods: []string{"GET"}}, false, true},
		"Paths":     {policy.Match{Paths: []policy.Pattern{{Kind: policy.Exact, Text: "/a"}}}, false, true},
		"Headers":   {policy.Match{Headers: header}, true, true},
		"ClientIPs": {policy.Match{ClientIPs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, false, false},
	}
	list := policy.Node{Kind: policy.List, Items: []*policy.Node{{}}}
	rule := policy.Node{Kind: policy.Object, Fields: []policy.Field{{Name: "exempt", Value: &list}}}
	isWarned := func(m policy.Match) bool {
		c := &collector{}
		c.warnExemptions(policy.Place{Node: &rule}, []policy.Match{m})
		return len(c.found) > 0
	}
	for field := range reflect.TypeFor[policy.Match]().Fields() {
		of, known := conditions[field.Name]
		require.True(t, known, "give this test an example of match.%s", field.Name)
		require.False(t, (&collector{}).coversMatch(&of.match, &policy.Match{}), "coversMatch leaves out %s", field.Name)
		require.Equal(t, of.alone, isWarned(of.match), field.Name)
		beside := of.match
		beside.Headers = header
		require.Equal(t, of.besideAHeader, isWarned(beside), "%s beside a header", field.Name)
	}
}
