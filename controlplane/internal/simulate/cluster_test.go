package simulate_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

var clusterLines = flag.Int("cluster-lines", 500, "how many random requests are compared for each algorithm")

// simulateLines runs lines over proxies and returns what each came to.
func simulateLines(t *testing.T, policy string, proxies int, lines string) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(file, []byte(policy), 0o600))
	var out bytes.Buffer
	require.NoError(t, simulate.Run(t.Context(), simulate.Options{
		Wasm: compiled(t), Policy: file, Requests: strings.NewReader(lines), Workers: 1, Proxies: proxies, Seed: 1,
		CacheDir: buildtest.CacheDir(), Log: func(m string) { t.Log(m) },
	}, &out))
	return strings.Split(strings.TrimSpace(out.String()), "\n")
}

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

// clusterRules are the rules that are compared, without key and scope.
var clusterRules = map[string][]string{
	"fixed_window":           {`limits: ["20/1s", "60/10s"]`},
	"fixed_window_per_key":   {`algorithm: fixed_window_per_key, limits: ["20/1s", "60/10s"]`},
	"sliding_window_log":     {`algorithm: sliding_window_log, limits: ["20/1s", "60/10s"]`},
	"sliding_window_counter": {`algorithm: sliding_window_counter, limits: ["20/1s", "60/10s"]`},
	"token_bucket":           {`algorithm: token_bucket, limits: [{requests: 7, per: 1s, burst: 20}]`},
	"mixed":                  {`limits: ["20/1s", {requests: 50, per: 10s, algorithm: sliding_window_log}, {requests: 300, per: 1m, algorithm: token_bucket, burst: 40}]`},
	"one counter":            {`counter: c, limits: ["20/1s"]`, `counter: c, limits: ["20/1s"]`},
}

// policyOf is a policy of the rules, each with the same scope.
func policyOf(rules []string, scope string) string {
	return "version: 1\nheaders: both\nrules:\n  - {" + strings.Join(rules, scope+"}\n  - {") + scope + "}\n"
}

// Without a lease, three proxies decide as one proxy alone does with the same rules.
func TestWithoutALeaseACountIsOne(t *testing.T) {
	for name, rules := range clusterRules {
		t.Run(name, func(t *testing.T) {
			var named []string
			for i, rule := range rules {
				named = append(named, fmt.Sprintf("name: r%d, key: [{header: u}], cost: {header: x-cost, max: 5}, %s", i, rule))
			}
			lines := randomLines(1, *clusterLines)
			want := simulateLines(t, policyOf(named, ""), 1, lines)
			got := simulateLines(t, policyOf(named, ", scope: cluster, lease: off"), 3, lines)
			denied := 0
			for i := range want {
				require.Equal(t, want[i], got[i], "line %d", i+1)
				denied += strings.Count(want[i], `"allowed":false,"status"`)
			}
			require.Greater(t, denied, len(want)/10)
			require.Less(t, denied, len(want)*9/10)
		})
	}
}

// With leases, three proxies together admit no more than the limit.
func TestLeasesStayWithinTheLimit(t *testing.T) {
	const limit, windowMs = 40, 1000
	policy := fmt.Sprintf("version: 1\nrules:\n  - {name: r, scope: cluster, key: [{header: u}], limits: [%d/%dms]}\n", limit, windowMs)
	total := 0
	for seed := range uint64(2) { // one simulation takes a million lines at most
		admitted := map[string]int{}
		for _, line := range simulateLines(t, policy, 3, randomLines(2+seed, 2**clusterLines)) {
			var l struct {
				AtMs    int64 `json:"at_ms"`
				Allowed bool
				Rules   []struct{ Key []string }
			}
			require.NoError(t, json.Unmarshal([]byte(line), &l))
			if l.Allowed {
				window := fmt.Sprint(l.Rules[0].Key[0], " ", l.AtMs/windowMs)
				admitted[window]++
				total++
				require.LessOrEqual(t, admitted[window], limit, window)
			}
		}
	}
	require.Greater(t, total, *clusterLines)
}
