package simulate_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
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
