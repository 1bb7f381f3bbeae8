package respond

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Whichever of two sources' fields a client reads, it learns of no more than
// both grant.
func TestReconcile(t *testing.T) {
	const epoch = 1_800_000_000
	for _, c := range []struct {
		name   string
		ours   []Field // after a call: what is sent
		theirs map[string]string
		want   []string
	}{
		{
			"lists follow theirs",
			[]Field{{"ratelimit-policy", `"r";q=9;w=60`}, {"ratelimit", `"r";r=3;t=7`}},
			map[string]string{"ratelimit": `"up";r=90`, "ratelimit-policy": `"up";q=100,"day";q=5`},
			[]string{`"up";q=100,"day";q=5, "r";q=9;w=60`, `"up";r=90, "r";r=3;t=7`},
		},
		{
			"only one of them",
			[]Field{{"ratelimit-policy", `"r";q=9;w=60`}, {"ratelimit", `"r";r=3;t=7`}},
			map[string]string{"ratelimit": `"up";r=90`},
			[]string{`"r";q=9;w=60`, `"up";r=90, "r";r=3;t=7`},
		},
		{
			"ours is tighter", xFields("9, 9;w=60", "3"),
			map[string]string{"x-ratelimit-limit": "100", "x-ratelimit-remaining": "90", "x-ratelimit-reset": "3000"},
			[]string{"9, 9;w=60, 100", "3", "7"},
		},
		{
			"theirs is tighter", xFields("9, 9;w=60, 50;w=3600", "3"),
			map[string]string{"x-ratelimit-limit": "5, 5;w=10", "x-ratelimit-remaining": "2", "x-ratelimit-reset": "1"},
			[]string{"5, 5;w=10, 9;w=60, 50;w=3600", "2", "1"},
		},
		{
			"the later of equals: theirs", xFields("9, 9;w=60", "0"),
			map[string]string{"x-ratelimit-limit": "5", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "80"},
			[]string{"5, 9;w=60", "0", "80"},
		},
		{
			"the later of equals: ours", xFields("9, 9;w=60", "0"),
			map[string]string{"x-ratelimit-limit": "5", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "6"},
			[]string{"9, 9;w=60, 5", "0", "7"},
		},
		{
			"several lines of theirs", xFields("9, 9;w=60", "3"),
			map[string]string{"x-ratelimit-remaining": "90,2", "x-ratelimit-reset": "10, 20"},
			[]string{"9;w=60", "2", "20"},
		},
		{
			"nothing but their limit", xFields("9, 9;w=60", "3"),
			map[string]string{"x-ratelimit-limit": "2"},
			[]string{"9, 9;w=60, 2", "3", "7"},
		},
		{
			"nothing but their rest", xFields("9, 9;w=60", "3"),
			map[string]string{"x-ratelimit-remaining": "1"},
			[]string{"9;w=60", "1", "7"},
		},
		{
			"their reset is a moment, ours is tighter", xFields("9, 9;w=60", "3"),
			map[string]string{"x-ratelimit-remaining": "90", "x-ratelimit-reset": "1800000100"},
			[]string{"9, 9;w=60", "3", "1800000007"},
		},
		{
			"their reset is a moment, and later", xFields("9, 9;w=60", "3"),
			map[string]string{"x-ratelimit-remaining": "3", "x-ratelimit-reset": "1800000100"},
			[]string{"9;w=60", "3", "1800000100"},
		},
		{
			"no number", xFields("9, 9;w=60", "3"),
			map[string]string{"x-ratelimit-limit": "none", "x-ratelimit-remaining": "unlimited", "x-ratelimit-reset": "5"},
			[]string{"9, 9;w=60", "3", "7"},
		},
		{
			"a date, ours is tighter", xFields("9, 9;w=60", "3"),
			map[string]string{"x-ratelimit-remaining": "5", "x-ratelimit-reset": "Fri, 15 Jan 2027 08:00:00 GMT"},
			[]string{"9, 9;w=60", "3", "7"},
		},
		{
			"a date, theirs is tighter", xFields("9, 9;w=60", "3"),
			map[string]string{"x-ratelimit-limit": "40", "x-ratelimit-remaining": "1", "x-ratelimit-reset": "2027-01-15T08:00:00Z"},
			[]string{"40, 9;w=60", "1", "7"},
		},
		{
			"fractions", xFields("9, 9;w=60", "3"),
			map[string]string{"x-ratelimit-limit": "600.0", "x-ratelimit-remaining": "1.9", "x-ratelimit-reset": "3.2"},
			[]string{"600, 9;w=60", "1", "4"},
		},
		{
			"below zero", xFields("9, 9;w=60", "3"),
			map[string]string{"x-ratelimit-remaining": "-2", "x-ratelimit-reset": "-0.5"},
			[]string{"9;w=60", "0", "0"},
		},
		{
			"a moment with a fraction, theirs is tighter", xFields("9, 9;w=60", "3"),
			map[string]string{"x-ratelimit-limit": "5", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "1800000009.123"},
			[]string{"5, 9;w=60", "0", "1800000010"},
		},
		{
			"milliseconds, ours is tighter", xFields("9, 9;w=60", "3"),
			map[string]string{"x-ratelimit-limit": "100", "x-ratelimit-remaining": "50", "x-ratelimit-reset": "1800000030000"},
			[]string{"9, 9;w=60, 100", "3", "1800000007000"},
		},
		{
			"milliseconds, theirs is tighter", xFields("9, 9;w=60", "3"),
			map[string]string{"x-ratelimit-limit": "100", "x-ratelimit-remaining": "1", "x-ratelimit-reset": "1800000030000"},
			[]string{"100, 9;w=60", "1", "1800000030000"},
		},
		{
			"draft 7",
			[]Field{{"ratelimit-policy", `"r";q=9;w=60`}, {"ratelimit", `"r";r=3;t=7`}},
			map[string]string{"ratelimit": "limit=100, reset=5, remaining=50", "ratelimit-policy": `100;w=60, 1000;w=3600;comment="an hour"`},
			[]string{`"upstream";q=100;w=60, "upstream-2";q=1000;w=3600, "r";q=9;w=60`, `"upstream";r=50;t=5, "r";r=3;t=7`},
		},
		{
			"draft 7 without a reset, and what no draft has",
			[]Field{{"ratelimit-policy", `"r";q=9;w=60`}, {"ratelimit", `"r";r=3;t=7`}},
			map[string]string{"ratelimit": "remaining=0", "ratelimit-policy": "plenty"},
			[]string{`"r";q=9;w=60`, `"upstream";r=0, "r";r=3;t=7`},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			theirs := make([]string, len(c.ours))
			for i, f := range c.ours {
				theirs[i] = c.theirs[f.Name]
			}
			Reconcile(c.ours, theirs, epoch*1e9)
			for i, f := range c.ours {
				require.Equal(t, c.want[i], f.Value, f.Name)
			}
		})
	}
}

func xFields(limit, remaining string) []Field {
	return []Field{{"x-ratelimit-limit", limit}, {"x-ratelimit-remaining", remaining}, {"x-ratelimit-reset", "7"}}
}
