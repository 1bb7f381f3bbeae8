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

// unlimited is the limit of a user that has none.
const unlimited = 1 << 30

// clusterFields are what a rule may have beside its limits, which are 5/1s.
var clusterFields = map[string]struct {
	fields         string
	limits         map[string]int // by user, where it is not 5
	costs, shadows bool
}{
	"alone":           {},
	"cost":            {fields: `, cost: {header: x-cost, max: 5}`, costs: true},
	"override":        {fields: `, overrides: [{key: ["1"], limits: ["2/1s"]}, {key: ["2"], unlimited: true}]`, limits: map[string]int{"1": 2, "2": unlimited}},
	"cost, override":  {fields: `, cost: {header: x-cost, max: 5}, overrides: [{key: ["1"], limits: ["2/1s"]}]`, limits: map[string]int{"1": 2}, costs: true},
	"shadow":          {fields: `, mode: shadow`, shadows: true},
	"enforce_percent": {fields: `, enforce_percent: 40`, shadows: true},
}

// With leases no user of three proxies gets more than the limit that holds for it.
func TestLeasesStayWithinTheLimit(t *testing.T) {
	for name, c := range clusterFields {
		t.Run(name, func(t *testing.T) {
			rule := "version: 1\nheaders: both\nrules:\n  - {name: r, key: [{header: u}], scope: cluster, limits: [5/1s]" + c.fields + "}\n"
			lines := randomLines(3, *clusterLines)
			admitted, shadowed := map[string]int{}, 0
			for i, text := range simulateLines(t, rule, 3, lines) {
				var l struct {
					AtMs    int64 `json:"at_ms"`
					Allowed bool
					Rules   []struct {
						Key  []string
						Mode string
					}
				}
				require.NoError(t, json.Unmarshal([]byte(text), &l), text)
				user, limit, cost := l.Rules[0].Key[0], 5, 1
				if l.Rules[0].Mode == "shadow" {
					require.True(t, l.Allowed)
					shadowed++
					continue
				}
				if own, has := c.limits[user]; has {
					limit = own
				}
				if c.costs {
					cost = costOf(t, lines, i)
				}
				if l.Allowed {
					window := fmt.Sprint(user, " ", l.AtMs/1000)
					admitted[window] += cost
					require.LessOrEqual(t, admitted[window], limit, window)
				}
			}
			require.Equal(t, c.shadows, shadowed > 0)
			require.Equal(t, name == "shadow", len(admitted) == 0)
		})
	}
}

func costOf(t *testing.T, lines string, i int) int {
	t.Helper()
	var l struct {
		Headers struct {
			Cost string `json:"x-cost"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(strings.Split(lines, "\n")[i]), &l))
	return int(l.Headers.Cost[0] - '0')
}
