package simulate_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var clusterLines = flag.Int("cluster-lines", 500, "how many random requests are compared for each algorithm")

// randomLines are requests of three users over three proxies, which come in bursts.
func randomLines(seed uint64, n int) string {
	dice := rand.New(rand.NewPCG(seed, 1))
	var b strings.Builder
	at := int64(1_700_000_000_000)
	for range n {
		if dice.IntN(4) == 0 {
			at += dice.Int64N(400)
		}
		if dice.IntN(100) == 0 {
			at += dice.Int64N(5000)
		}
		fmt.Fprintf(&b, `{"at_ms":%d,"headers":{"u":"%d","x-cost":"%d"}}`+"\n", at, dice.IntN(3), 1+dice.IntN(3))
	}
	return b.String()
}

// policyOf is a policy of the rules, each with the same scope.
func policyOf(rules []string, scope string) string {
	return "version: 1\nheaders: both\nrules:\n  - {" + strings.Join(rules, scope+"}\n  - {") + scope + "}\n"
}

// asOneProxy compares what lines come to over three proxies, by rules with a scope, with what one
// proxy makes of them, and returns how many are denied.
func asOneProxy(t *testing.T, rules []string, scope, lines string, words *regexp.Regexp) (denied int) {
	t.Helper()
	one, three := simulateLines(t, policyOf(rules, ""), 1, lines), simulateLines(t, policyOf(rules, scope), 3, lines)
	require.Len(t, three, len(one))
	for i := range one {
		require.Equal(t, words.FindAllString(one[i], -1), words.FindAllString(three[i], -1),
			"line %d by %q:\n%s\n%s", i+1, rules, one[i], three[i])
		denied += strings.Count(one[i], `"allowed":false,"status"`)
	}
	return denied
}
