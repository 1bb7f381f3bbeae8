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

var clusterPolicies = flag.Int("cluster-policies", 20, "how many random policies are compared")

// decision is the part of a line that says what becomes of the request, and why.
var decision = regexp.MustCompile(`"allowed":(true,"status":\d+|false,"status":\d+,"denied_by":"\w+")`)

// all is the whole line.
var all = regexp.MustCompile(`.*`)

// userHeader begins the headers of a line.
var userHeader = regexp.MustCompile(`"u":`)

// randomRules are one to three rules, some of which share a counter.
func randomRules(dice *rand.Rand) (rules []string) {
	pick := func(of ...string) string { return of[dice.IntN(len(of))] }
	window := func(digit string) string { // before those of the period
		n, per := 3+dice.IntN(20), digit+pick("1s", "2s", "10s")
		how := pick("fixed_window", "fixed_window_per_key", "sliding_window_log", "sliding_window_counter",
			fmt.Sprint("token_bucket, burst: ", 1+dice.IntN(n)))
		requests := fmt.Sprint(n)
		if dice.IntN(3) == 0 && !strings.HasPrefix(how, "token_bucket") {
			requests = fmt.Sprintf("{header: l, trusted: true, default: %d, max: 22}", n)
		}
		return fmt.Sprintf("{requests: %s, per: %s, algorithm: %s}", requests, per, how)
	}
	shared := fmt.Sprintf("counter: c, key: [{header: u}], limits: [%d/10s]", 3+dice.IntN(20))
	override := `, overrides: [{key: ["1"], limits: ["2/10s"]}, {key: ["2"], unlimited: true}]`
	for i := range 1 + dice.IntN(3) {
		rule := fmt.Sprintf("name: r%d, %s", i, shared)
		if dice.IntN(3) > 0 {
			limits := window("")
			if dice.IntN(2) > 0 {
				limits += ", " + window("3")
			}
			rule = fmt.Sprintf("name: r%d, key: [%s], limits: [%s]", i, pick("{header: u}", "{header: u}, {header: v}", "{header: v}"), limits)
			rule += pick("", "", "", ", enforce_percent: 50", ", mode: shadow", pick("", ", count_denied: true", ", mode: shadow, count_denied: true"))
			if strings.Contains(rule, "token_bucket") {
				rule = strings.TrimSuffix(rule, ", count_denied: true")
			}
		}
		if rule == fmt.Sprintf("name: r%d, %s", i, shared) {
			rule += pick("", override)
		}
		rules = append(rules, rule+pick("", ", cost: {header: x-cost, max: 5}"))
	}
	return rules
}

// Without leases, three proxies decide by any rules as one proxy does: the same words,
// and of rules that share a counter the same decision. Their waits differ: the service
// knows one rule's alone.
func TestRandomRulesWithoutALease(t *testing.T) {
	denied := 0
	for seed := range uint64(*clusterPolicies) {
		dice := rand.New(rand.NewPCG(seed, 3))
		rules := randomRules(dice)
		lines := userHeader.ReplaceAllStringFunc(randomLines(seed, 300), func(string) string {
			return fmt.Sprintf(`"v":"1","l":"%d","u":`, 5+dice.IntN(20))
		})
		words := all
		if strings.Count(policyOf(rules, ""), "counter: c") > 1 {
			words = decision
		}
		denied += asOneProxy(t, rules, ", scope: cluster, lease: off", lines, words)
	}
	require.Greater(t, denied, 30**clusterPolicies)
}
