package policydiff_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policydiff"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const (
	second = int64(1_000_000_000)
	minute = 60 * second
	hour   = 60 * minute
)

// valid reads rules that must be valid.
func valid(t *testing.T, domain, rules string) *policy.Policy {
	t.Helper()
	doc, err := policy.ParseJSON([]byte(`{"version":1,"domain":"` + domain + `","rules":[` + rules + `]}`))
	require.NoError(t, err)
	p, problems := policy.Read(doc)
	require.Empty(t, problems)
	return p
}

// Each block of the file has a name, the rules before and after, and what becomes of each counter.
func TestBetween(t *testing.T) {
	text, err := os.ReadFile("testdata/comparisons.txt")
	require.NoError(t, err)
	for block := range strings.SplitSeq(strings.TrimSuffix(string(text), "\n"), "\n\n") {
		lines := strings.Split(block, "\n")
		t.Run(lines[0], func(t *testing.T) {
			before := strings.TrimPrefix(lines[1], "- ")
			after := strings.TrimPrefix(lines[2], "+ ")
			changes := policydiff.Between(valid(t, "d", before), valid(t, "d", after))
			got := []string{}
			for i := range changes {
				got = append(got, changes[i].Text)
				require.Equal(t, changes[i].Text == `counter "`+changes[i].Counter+`": kept`, changes[i].Keeps)
			}
			require.Equal(t, lines[3:], got)
		})
	}
}

const ruleA = `{"name":"a","key":["host"],"limits":["10/1s","9/1m"]}`

func TestChangesOfDomainAndWindows(t *testing.T) {
	before := valid(t, "d", ruleA+`,{"name":"b","limits":["1/1s"]}`)
	changes := policydiff.Between(before, valid(t, "e", ruleA+`,{"name":"c","limits":["1/1s"]}`))
	require.Equal(t, []policydiff.Change{
		{
			Counter: "a", Fate: policydiff.Restarted, Why: `domain "d" → "e"`,
			Text: `counter "a": domain "d" → "e": its counters restart`,
		},
		{Counter: "c", Fate: policydiff.New, Text: `counter "c": is new and starts empty`},
		{Counter: "b", Fate: policydiff.Vanished, Text: `counter "b": no rule has it any more: its counters vanish`},
	}, changes)

	changes = policydiff.Between(nil, valid(t, "d", ruleA))
	require.Equal(t, policydiff.New, changes[0].Fate)

	before = valid(t, "d", `{"name":"a","limits":["3/1h","1/1s"]}`)
	changes = policydiff.Between(before, valid(t, "d", `{"name":"a","limits":["2/1m","7/1s"]}`))
	window := func(n uint32, per int64) limit.Window {
		return limit.Window{Algorithm: limit.FixedWindow, Limit: n, PeriodNs: per}
	}
	require.Equal(t, []policydiff.WindowChange{
		{Per: "1m", Window: window(2, minute), Fate: policydiff.New},
		{Per: "1s", Window: window(7, second), Fate: policydiff.Kept},
		{Per: "1h", Window: window(3, hour), Fate: policydiff.Dropped},
	}, changes[0].Windows)
	require.False(t, changes[0].Keeps)
}
