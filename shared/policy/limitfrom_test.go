package policy_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// A limit that requests say has its default as its own number, and what counts by the most
// that any request may use counts by its max.
func TestALimitFromTheRequest(t *testing.T) {
	p := valid(t, "d", `{"name":"a","key":["host"],"algorithm":"sliding_window_log","limits":["7/1s",`+
		`{"requests":{"jwt":{"provider":"corp","claim":["plan","rpm"]},"default":3,"max":90},"per":"1m"},`+
		`{"requests":{"header":"X-Limit","trusted":true,"default":0,"max":1},"per":"1h","algorithm":"fixed_window"},`+
		`{"requests":{"property":["request","query"],"trusted":true,"default":2,"max":2},"per":"month","algorithm":"fixed_window"}],`+
		`"overrides":[{"key":["a"],"limits":["2/1m"]}],"settle":{}}`)
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
	require.Equal(t, uint32(math.MaxUint32), r.Settle.Max, "an answer may take more than any request may use")
	require.True(t, r.Overrides[0].Raises(r), "a request may say 0")
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
