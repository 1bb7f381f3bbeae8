package simulate_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMonths: the calendar's windows in the compiled filter, of records and of the quota
// service alike, around a leap day and after the clock is set back.
func TestMonths(t *testing.T) {
	const policy = `
version: 1
headers: ietf
rules:
  - name: r
    key: [{header: u}]
    limits: [2/month, {requests: 4, per: year, offset: 14d, utc_offset: "+08:00"}]
    scope: %s
`
	const day = 86_400
	steps := []struct {
		at     string
		policy string // the RateLimit-Policy
		used   [2]int
		resets [2]int // seconds
		retry  string // the Retry-After
	}{
		{"2027-12-31T23:59:59Z", `"r/0";q=2;w=2678400, "r/1";q=4;w=31536000`, [2]int{1, 1}, [2]int{1, 13*day + 16*3600 + 1}, ""},
		{"2028-01-14T16:00:00Z", `"r/0";q=2;w=2678400, "r/1";q=4;w=31622400`, [2]int{1, 1}, [2]int{17*day + 8*3600, 366 * day}, ""},
		{"2028-01-31T23:59:59Z", `"r/0";q=2;w=2678400, "r/1";q=4;w=31622400`, [2]int{2, 2}, [2]int{1, 348*day + 16*3600 + 1}, ""},
		{"2028-01-31T23:59:59Z", `"r/0";q=2;w=2678400, "r/1";q=4;w=31622400`, [2]int{2, 2}, [2]int{1, 348*day + 16*3600 + 1}, "1"},
		{"2028-02-01T00:00:00Z", `"r/0";q=2;w=2505600, "r/1";q=4;w=31622400`, [2]int{1, 3}, [2]int{29 * day, 348*day + 16*3600}, ""},
		{"2028-02-29T23:59:59Z", `"r/0";q=2;w=2505600, "r/1";q=4;w=31622400`, [2]int{2, 4}, [2]int{1, 319*day + 16*3600 + 1}, ""},
		{"2028-03-01T00:00:00Z", `"r/0";q=2;w=2678400, "r/1";q=4;w=31622400`, [2]int{0, 4}, [2]int{31 * day, 319*day + 16*3600}, "27619200"},
		{"2029-01-14T15:59:59Z", `"r/0";q=2;w=2678400, "r/1";q=4;w=31622400`, [2]int{0, 4}, [2]int{17*day + 8*3600 + 1, 1}, "1"},
		{"2029-01-14T16:00:00Z", `"r/0";q=2;w=2678400, "r/1";q=4;w=31536000`, [2]int{1, 1}, [2]int{17*day + 8*3600, 365 * day}, ""},
		{"2028-12-31T00:00:00Z", `"r/0";q=2;w=2678400, "r/1";q=4;w=31622400`, [2]int{2, 2}, [2]int{day, 14*day + 16*3600}, ""},
	}
	var lines strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&lines, `{"at":"%s","headers":{"u":"a"}}`+"\n", s.at)
	}
	for _, scope := range []string{"proxy", "cluster\n    lease: off"} {
		for i, line := range simulateLines(t, fmt.Sprintf(policy, scope), 1, lines.String()) {
			var got struct {
				Allowed bool
				Rules   []struct {
					Windows []struct {
						Months, Used int
						ResetMs      int `json:"reset_ms"`
					}
				}
				Headers map[string]string
			}
			require.NoError(t, json.Unmarshal([]byte(line), &got))
			require.Equal(t, steps[i].retry, got.Headers["retry-after"], line)
			require.Equal(t, steps[i].retry == "", got.Allowed, line)
			require.Equal(t, steps[i].policy, got.Headers["ratelimit-policy"], line)
			for j, w := range got.Rules[0].Windows {
				require.Equal(t, []int{[]int{1, 12}[j], steps[i].used[j], steps[i].resets[j] * 1000}, []int{w.Months, w.Used, w.ResetMs}, line)
			}
		}
	}
}
