package envoy

import (
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func TestRequestsOfARoute(t *testing.T) {
	header := func(condition string) string { return "{prefix: /, headers: [{name: x-a, " + condition + "}]}" }
	for _, tc := range []struct{ match, want string }{
		{"{prefix: /}", ""},
		{"{prefix: /a}", "if {paths: [/a*]}"},
		{"{prefix: /a, case_sensitive: false}", "if {paths: ['~(?i)/a.*']}"},
		{"{path: /a}", "if {paths: [/a]}"},
		{"{path_separated_prefix: /a}", "if {paths: ['~/a(/.*)?']}"},
		{"{path_separated_prefix: /a.b, case_sensitive: false}", `if {paths: ['~(?i)/a\.b(/.*)?']}`},
		{"{path_separated_prefix: /1, case_sensitive: false}", "if {paths: ['~/1(/.*)?']}"},
		{"{safe_regex: {regex: '/a|/b'}}", "if {paths: [~/a|/b]}"},
		{"{connect_matcher: {}}",
			"is off: No match can select its requests: their route has no known condition on the path."},
		{header("present_match: true"), "if {headers: {x-a: '*'}}"},
		{header("present_match: false"), "if {headers: {x-a: '!'}}"},
		{"{prefix: /, headers: [{name: ':method', present_match: true}]}", ""},
		{"{prefix: /, headers: [{name: ':method', present_match: false}]}",
			"is off: No match can select its requests: they lack :method, which every request has."},
		{header("exact_match: b"), "if {headers: {x-a: b}}"},
		{header("exact_match: b, invert_match: true"), "if {headers: {x-a: '*'}} but {headers: {x-a: b}}"},
		{header("exact_match: b, invert_match: true, treat_missing_header_as_empty: true"), "but {headers: {x-a: b}}"},
		{header("prefix_match: b, treat_missing_header_as_empty: true"), "if {headers: {x-a: b*}}"},
		{header("safe_regex_match: {regex: 'b?'}, treat_missing_header_as_empty: true"),
			"is off: No match can select its requests: they have an empty header x-a or none."},
		{header("safe_regex_match: {regex: 'b?'}, invert_match: true, treat_missing_header_as_empty: true"),
			"but {headers: {x-a: '~b?'}} but {headers: {x-a: '!'}}"},
		{header("treat_missing_header_as_empty: true"), ""},
		{header("present_match: true, treat_missing_header_as_empty: true"), ""},
		{header("present_match: false, treat_missing_header_as_empty: true"),
			"is off: No match can select its requests: they lack x-a, and a missing one counts as an empty one there."},
		{"{prefix: /, headers: [{name: ':method', exact_match: GET, treat_missing_header_as_empty: true}]}",
			"if {methods: [GET]}"},
		{header("exact_match: ''"), "if {headers: {x-a: '*'}}"}, // to Envoy every value is equal to this
		{header("exact_match: '', treat_missing_header_as_empty: true"), ""},
		{header("exact_match: '', invert_match: true"), "if {headers: {x-a: '*'}} but {headers: {x-a: '*'}}"},
		{header("string_match: {exact: ''}"), "if {headers: {x-a: =}}"},
		{header("string_match: {exact: ''}, treat_missing_header_as_empty: true"),
			"is off: No match can select its requests: they have an empty header x-a or none."},
		{header("range_match: {start: 1, end: 2}"),
			"is off: No match can select its requests: they have an unknown condition on the header x-a."},
		{"{prefix: /, query_parameters: [{name: q}]}",
			"is off: No match can select its requests: their route has a condition on query_parameters."},
	} {
		reading(t, tc.match, func(r *reader, n *policy.Node, at source.Place) {
			var s request.Selection
			r.readRouteMatch(&s, decode[*routev3.RouteMatch](r, n, at), at)
			require.Equal(t, tc.want, strings.TrimSpace(selected(t, s)), tc.match)
			require.Empty(t, s.Comments(), tc.match)
		})
	}
}
