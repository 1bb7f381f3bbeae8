package policy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// A limit that requests say has its default as its own number, and what counts by the most
// that any request may use counts by its max.
func TestALimitFromTheRequest(t *testing.T) {
	read := func(rule string) (*policy.Policy, []string) {
		p, problems := policy.Read(parse(t, `{"version":1,"rules":[{"name":"a","key":["host"],`+rule+`}]}`))
		return p, messages(problems)
	}
	p, problems := read(`"algorithm":"sliding_window_log","limits":["7/1s",` +
		`{"requests":{"jwt":{"provider":"corp","claim":["plan","rpm"]},"default":3,"max":90},"per":"1m"},` +
		`{"requests":{"header":"X-Limit","trusted":true,"default":0,"max":1},"per":"1h","algorithm":"fixed_window"},` +
		`{"requests":{"property":["request","query"],"trusted":true,"default":2,"max":2},"per":"month","algorithm":"fixed_window"}],` +
		`"overrides":[{"key":["a"],"limits":["2/1m"]}]`)
	require.Empty(t, problems)
	r := &p.Rules[0]
	require.Nil(t, r.Limits[0].From)
	require.Equal(t, &policy.LimitFrom{
		Part: policy.KeyPart{Kind: policy.KeyJWT, Name: "corp", Path: []string{"plan", "rpm"}}, Default: 3, Max: 90,
	}, r.Limits[1].From)
	require.Equal(t, policy.KeyPart{Kind: policy.KeyHeader, Name: "x-limit"}, r.Limits[2].From.Part)
	var limits, most []uint32
	for i := range r.Limits {
		limits, most = append(limits, r.Limits[i].Limit), append(most, r.Limits[i].Most())
		require.Nil(t, r.Overrides[0].Limits[i].From, "an override has a number")
	}
	require.Equal(t, []uint32{7, 3, 0, 2}, limits)
	require.Equal(t, []uint32{7, 90, 1, 2}, most)
	require.EqualValues(t, 90, r.Limits[1].Units, "the log remembers what any request may use")
	require.True(t, r.Overrides[0].Raises(r), "a request may say 0")

	limit := func(requests string) string { return `"limits":[{"requests":{` + requests + `},"per":"1m"}]` }
	for rule, want := range map[string][]string{
		limit(`"property":["metadata","filter_metadata","ns","n"],"default":1,"max":2`):             {},
		limit(`"property":["filter_state","n"],"default":1,"max":2`):                                {},
		limit(`"property":["xds","route_metadata","filter_metadata","ns","n"],"default":1,"max":2`): {},
		limit(`"property":["connection","uri_san_peer_certificate"],"default":1,"max":2`):           {},
		limit(`"header":"n","trusted":true,"default":2,"max":2`):                                    {},
		limit(`"default":1,"max":2`): {"rules[0].limits[0].requests: number_without_place"},
		limit(`"header":"n","jwt":{"provider":"a","claim":"b"},"trusted":true,"default":1,"max":2`):             {"rules[0].limits[0].requests: number_many_places"},
		limit(`"header":"n","default":1,"max":2`):                                                               {"rules[0].limits[0].requests: number_untrusted"},
		limit(`"header":"n","trusted":false,"default":1,"max":2`):                                               {"rules[0].limits[0].requests: number_untrusted"},
		limit(`"property":["request","headers","n"],"default":1,"max":2`):                                       {"rules[0].limits[0].requests: number_untrusted"},
		limit(`"property":["request","query"],"default":1,"max":2`):                                             {"rules[0].limits[0].requests: number_untrusted"},
		limit(`"property":["source","port"],"default":1,"max":2`):                                               {"rules[0].limits[0].requests: number_untrusted"},
		limit(`"property":["connection","requested_server_name"],"default":1,"max":2`):                          {"rules[0].limits[0].requests: number_untrusted"},
		limit(`"jwt":{"provider":"a","claim":"b"},"trusted":true,"default":1,"max":2`):                          {"rules[0].limits[0].requests.trusted: number_trusted"},
		limit(`"jwt":{"provider":"a","claim":"b"},"default":3,"max":2`):                                         {"rules[0].limits[0].requests.default: number_default"},
		limit(`"jwt":{"provider":"a","claim":"b"},"max":2`):                                                     {"rules[0].limits[0].requests.default: missing_field"},
		limit(`"jwt":{"provider":"a","claim":"b"},"default":3`):                                                 {"rules[0].limits[0].requests.max: missing_field"},
		limit(`"jwt":{"provider":"a","claim":"b"},"default":0,"max":0`):                                         {"rules[0].limits[0].requests.max: wrong_value"},
		limit(`"cookie":"n","default":1,"max":2`):                                                               {"rules[0].limits[0].requests.cookie: unknown_field"},
		`"limits":[{"requests":["7"],"per":"1m"}]`:                                                              {"rules[0].limits[0].requests: wrong_value"},
		`"algorithm":"token_bucket",` + limit(`"jwt":{"provider":"a","claim":"b"},"default":1,"max":2`):         {"rules[0].limits[0].requests: number_of_bucket"},
		`"algorithm":"sliding_window_log",` + limit(`"jwt":{"provider":"a","claim":"b"},"default":1,"max":513`): {"rules[0].limits[0].requests.max: log_too_long"},
		`"limits":["1/1m"],"overrides":[{"key":["a"],` + limit(`"jwt":{"provider":"a","claim":"b"},"default":1,"max":2`) + `}]`: {
			"rules[0].overrides[0].limits[0].requests: number_of_override",
		},
	} {
		_, problems := read(rule)
		require.Equal(t, want, append([]string{}, problems...), rule)
	}
}

// Rules that spend the same leased units have the same limit for each request.
func TestLeasedLimitsFromTheRequestAreTheSame(t *testing.T) {
	read := func(a, b string) []string {
		rule := func(name, from string) string {
			return `{"name":"` + name + `","counter":"c","scope":"cluster","key":["host"],"limits":[{"requests":` + from + `,"per":"1m"}]}`
		}
		_, problems := policy.Read(parse(t, `{"version":1,"rules":[`+rule("a", a)+`,`+rule("b", b)+`]}`))
		return messages(problems)
	}
	const own = `{"jwt":{"provider":"p","claim":"c"},"default":5,"max":9}`
	require.Empty(t, read(own, own))
	for _, other := range []string{
		`5`, `{"jwt":{"provider":"p","claim":"d"},"default":5,"max":9}`, `{"jwt":{"provider":"q","claim":"c"},"default":5,"max":9}`,
		`{"jwt":{"provider":"p","claim":"c"},"default":5,"max":8}`, `{"header":"c","trusted":true,"default":5,"max":9}`,
	} {
		require.Equal(t, []string{"rules[1].limits: counter_limits"}, read(own, other), other)
		require.Equal(t, []string{"rules[1].limits: counter_limits"}, read(other, own), other)
	}
}
