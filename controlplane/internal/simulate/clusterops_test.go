package simulate_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOperationsNameTheKeyAsTheFilterDoes: the same counter, key and limits.
func TestOperationsNameTheKeyAsTheFilterDoes(t *testing.T) {
	long := strings.Repeat("x", 9000)
	cases := map[string]struct {
		rule  string // beside name and scope
		user  string // header u, empty = none
		key   string
		limit int
	}{
		"one part":        {`key: [{header: u}], limits: ["10/1h"]`, "a", `"a"`, 10},
		"no part":         {`limits: ["10/1h"]`, "", ``, 10},
		"two parts":       {`key: [{header: u}, {path: {segment: 1}}], limits: ["10/1h"]`, "a", `"a","x"`, 10},
		"a network":       {`key: [{client_ip: {v4_prefix: 24}}], limits: ["10/1h"]`, "", `"192.0.2.0/24"`, 10},
		"first_of":        {`key: [{first_of: [{header: u}, {client_ip: {}}]}], limits: ["10/1h"]`, "", `"client_ip=192.0.2.7"`, 10},
		"windows":         {`key: [{header: u}], limits: ["50/1d", "10/1h"]`, "a", `"a"`, 50},
		"jitter":          {`key: [{header: u}], limits: [{requests: 10, per: 1h, jitter: 50%}]`, "a", `"a"`, 10},
		"counter":         {`counter: shared, key: [{header: u}], limits: ["10/1h"]`, "a", `"a"`, 10},
		"override":        {`key: [{header: u}], limits: ["10/1h"], overrides: [{key: [b], limits: ["7/1h"]}, {key: ["a*"], limits: ["20/1h"]}]`, "ab", `"ab"`, 20},
		"end":             {`key: [{header: u}], limits: ["10/1h"], overrides: [{key: ["*b"], limits: ["20/1h"]}]`, "ab", `"ab"`, 20},
		"expression":      {`key: [{header: u}], limits: ["10/1h"], overrides: [{key: ["~a+b"], limits: ["20/1h"]}]`, "aab", `"aab"`, 20},
		"too long, less":  {`key: [{header: u}], limits: ["10/1h"], overrides: [{key: ["~a+b"], limits: ["2/1h"]}]`, long, `"` + long + `"`, 2},
		"too long, more":  {`key: [{header: u}], limits: ["10/1h"], overrides: [{key: ["~a+b"], limits: ["20/1h"]}]`, long, `"` + long + `"`, 10},
		"override of two": {`key: [{header: u}, {method: {}}], limits: ["10/1h"], overrides: [{key: ["a", "*"], limits: ["20/1h"]}]`, "a", `"a","GET"`, 20},
	}
	policy, lines := "version: 1\ndomain: d\nrules:\n", []string{}
	names := slices.Sorted(maps.Keys(cases))
	for _, name := range names {
		c := cases[name]
		policy += fmt.Sprintf("  - {name: %q, match: {headers: {x-rule: %q}}, scope: cluster, lease: off, %s}\n", name, name, c.rule)
		headers := fmt.Sprintf(`{"x-rule":%q,"u":%q}`, name, c.user)
		if c.user == "" {
			headers = fmt.Sprintf(`{"x-rule":%q}`, name)
		}
		request := fmt.Sprintf(`{"at_ms":1,"client_ip":"192.0.2.7","path":"/x/y","headers":%s}`, headers)
		lines = append(lines, request, request, fmt.Sprintf(`{"at_ms":1,"op":"get","rule":%q,"key":[%s]}`, name, c.key))
	}
	out := simulateLines(t, policy, 1, strings.Join(lines, "\n"))
	for i, name := range names {
		require.Contains(t, out[3*i+2], `"value":2,`, name)
		require.Contains(t, out[3*i+2], fmt.Sprintf(`"limit":%d,`, cases[name].limit), name)
		require.Contains(t, out[3*i+1], fmt.Sprintf(`"limit":%d,`, cases[name].limit), "%s: as the filter has it", name)
	}
}

// With leases no user of three proxies gets more than the limit that holds for it.
func TestLeasesStayWithinTheLimit(t *testing.T) {
	const cost = `, cost: {header: x-cost, max: 5}`
	for fields, limits := range map[string]map[string]int{ // by user, where it is not 5
		"": {}, cost: {},
		`, overrides: [{key: ["1"], limits: ["2/1s"]}, {key: ["2"], unlimited: true}]`: {"1": 2, "2": 1 << 30},
		cost + `, overrides: [{key: ["1"], limits: ["2/1s"]}]`:                         {"1": 2},
	} {
		t.Run(fields, func(t *testing.T) {
			rule := "name: r, key: [{header: u}], scope: cluster, limits: [5/1s]" + fields
			lines := randomLines(3, *clusterLines)
			requests, admitted := strings.Split(lines, "\n"), map[string]int{}
			for i, text := range simulateLines(t, policyOf([]string{rule}, ""), 3, lines) {
				var l struct {
					AtMs    int64 `json:"at_ms"`
					Allowed bool
					Headers map[string]string
				}
				require.NoError(t, json.Unmarshal([]byte(text), &l), text)
				if !l.Allowed {
					continue
				}
				require.NoError(t, json.Unmarshal([]byte(requests[i]), &l), requests[i])
				user, limit, units := l.Headers["u"], 5, 1
				if own, has := limits[user]; has {
					limit = own
				}
				if strings.HasPrefix(fields, cost) {
					units = int(l.Headers["x-cost"][0] - '0')
				}
				window := fmt.Sprint(user, " ", l.AtMs/1000)
				admitted[window] += units
				require.LessOrEqual(t, admitted[window], limit, window)
			}
			require.NotEmpty(t, admitted)
		})
	}
}
