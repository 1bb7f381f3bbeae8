package main_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// An ambiguous or unknown parameter is refused, as in the API of serve.
func TestManagementQuery(t *testing.T) {
	b := start(t)
	require.NoError(t, b.Configure([]byte(widePolicy)))
	for _, tc := range []struct {
		query string
		want  string // error, "" if there is none
	}{
		{"rule=wide&key=a&n=1&window=slow", ""},
		{"&rule=wide&&key=a&", ""},
		{"rule=wide&rule=wide&key=a", "rule is given twice"},
		{"rule=&rule=wide&key=a", "rule is given twice"},
		{"rule=wide&key=a&n=1&n=2", "n is given twice"},
		{"rule=wide&key=a&window=slow&window=0", "window is given twice"},
		{"rule=wide&key=a&%77indow=slow&window=0", "window is given twice"},
		{"rule=wide&key=a%20b&key=%C3%A9+%25", "has 1 part, not 2"},
		{"rule=%zz", `invalid escape "%zz": a "%" is written %25`},
		{"rule=%+1", `invalid escape "%+1": a "%" is written %25`},
		{"rule=a%2", `invalid escape "%2": a "%" is written %25`},
		{"rule=%41%", `invalid escape "%": a "%" is written %25`},
		{"rule=r;key=a", `parameters are separated by "&"; a ";" in one is written %3B`},
		{"rule=wide&keys=a", `unknown parameter "keys": there are rule, key, n, limit and window`},
		{"rule=wide&key=a&=1", `unknown parameter "": there are rule, key, n, limit and window`},
		{"rule=wide&key=a&" + strings.Repeat("x", 50_000), `unknown parameter "` + strings.Repeat("x", 40) + `"`},
	} {
		res := b.serve(t, 0, &sim.Request{
			Method: "POST", Path: "/.sluice/counters/inc?" + tc.query, Headers: [][2]string{{"authorization", "Bearer test"}},
		})
		if tc.want == "" {
			require.Equal(t, 200, res.Status, "%.80s: %s", tc.query, res.Body)
			continue
		}
		require.Equal(t, 400, res.Status, "%.80s: %.200s", tc.query, res.Body)
		require.Contains(t, strings.ReplaceAll(string(res.Body), `\"`, `"`), tc.want)
	}
}
