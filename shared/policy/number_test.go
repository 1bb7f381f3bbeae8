package policy_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// TestNumbersOfAStruct: a number that went through floating point, as in Istio,
// is the one that was written, in whatever notation it comes out.
func TestNumbersOfAStruct(t *testing.T) {
	for text, want := range map[string]uint32{
		"1000000": 1000000, "1e+06": 1000000, "1E6": 1000000, "1.0e+06": 1000000, "1000000.0": 1000000, "4.294967295e+09": 4294967295,
		"4294967295": 4294967295, "10.00": 10, "1.2e1": 12, "0.5e1": 5, "500e-2": 5,
	} {
		doc := parse(t, fmt.Sprintf(`{"version":1.0,"rules":[{"name":"a","limits":[{"requests":%s,"per":"1m"}]}]}`, text))
		p, problems := policy.ReadPushed(doc)
		require.Empty(t, problems, text)
		require.Equal(t, want, p.Rules[0].Limits[0].Limit, text)
	}
	// The largest number there may be is far below 2^53, where doubles stop
	// being exact: one that was rounded is refused.
	for _, text := range []string{"4294967296", "4.294967296e+09", "9007199254740993", "9007199254740992", "1e19", "1.5", "1e-1", "12345.6e0", "1.5e-99999999999999999999", "1e99999999999999999999"} {
		doc := parse(t, fmt.Sprintf(`{"version":1,"rules":[{"name":"a","limits":[{"requests":%s,"per":"1m"}]}]}`, text))
		_, problems := policy.ReadPushed(doc)
		require.Len(t, problems, 1, text)
		require.Equal(t, policy.WrongValue, problems[0].Code)
	}
}
