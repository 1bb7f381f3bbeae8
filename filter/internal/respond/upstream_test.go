package respond

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whichever of two sources' fields a client reads, it learns of no more than both grant. Of a row
// that begins with a quote, the fields are those of RateLimit-Policy and RateLimit, else
// X-RateLimit-Limit, -Remaining and -Reset.
func TestReconciledFieldsAllowNoMoreThanBoth(t *testing.T) {
	const epoch = 1_800_000_000
	const ours, tight, lists = "9, 9;w=60|3|7", "9, 9;w=60|0|7", `"r";q=9;w=60|"r";r=3;t=7`
	for name, c := range map[string]struct{ ours, theirs, want string }{
		"lists follow theirs": {
			ours:   lists,
			theirs: `"up";q=100,"day";q=5|"up";r=90`,
			want:   `"up";q=100,"day";q=5, "r";q=9;w=60|"up";r=90, "r";r=3;t=7`,
		},
		"only one of them": {lists, `|"up";r=90`, `"r";q=9;w=60|"up";r=90, "r";r=3;t=7`},
		"draft 7": {
			lists, `100;w=60, 1000;w=3600;comment="an hour"|limit=100, reset=5, remaining=50`,
			`"upstream";q=100;w=60, "upstream-2";q=1000;w=3600, "r";q=9;w=60|"upstream";r=50;t=5, "r";r=3;t=7`,
		},
		"draft 7 without a reset, and what no draft has": {
			ours:   lists,
			theirs: "plenty|remaining=0",
			want:   `"r";q=9;w=60|"upstream";r=0, "r";r=3;t=7`,
		},

		"ours is tighter":             {ours, "100|90|3000", "9, 9;w=60, 100|3|7"},
		"theirs is tighter":           {"9, 9;w=60, 50;w=3600|3|7", "5, 5;w=10|2|1", "5, 5;w=10, 9;w=60, 50;w=3600|2|1"},
		"the later of equals: theirs": {tight, "5|0|80", "5, 9;w=60|0|80"},
		"the later of equals: ours":   {tight, "5|0|6", "9, 9;w=60, 5|0|7"},
		"several lines of theirs":     {ours, "|90,2|10, 20", "9;w=60|2|20"},
		"nothing but their limit":     {ours, "2||", "9, 9;w=60, 2|3|7"},
		"nothing but their rest":      {ours, "|1|", "9;w=60|1|7"},
		"no number":                   {ours, "none|unlimited|5", "9, 9;w=60|3|7"},
		"fractions":                   {ours, "600.0|1.9|3.2", "600, 9;w=60|1|4"},
		"below zero":                  {ours, "|-2|-0.5", "9;w=60|0|0"},

		"their reset is a moment, ours is tighter":    {ours, "|90|1800000100", "9, 9;w=60|3|1800000007"},
		"their reset is a moment, and later":          {ours, "|3|1800000100", "9;w=60|3|1800000100"},
		"a moment with a fraction, theirs is tighter": {ours, "5|0|1800000009.123", "5, 9;w=60|0|1800000010"},
		"milliseconds, ours is tighter":               {ours, "100|50|1800000030000", "9, 9;w=60, 100|3|1800000007000"},
		"milliseconds, theirs is tighter":             {ours, "100|1|1800000030000", "100, 9;w=60|1|1800000030000"},
		"a date, ours is tighter":                     {ours, "|5|Fri, 15 Jan 2027 08:00:00 GMT", "9, 9;w=60|3|7"},
		"a date, theirs is tighter":                   {ours, "40|1|2027-01-15T08:00:00Z", "40, 9;w=60|1|7"},
	} {
		t.Run(name, func(t *testing.T) {
			names := []string{"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"}
			if c.ours[0] == '"' {
				names = []string{"ratelimit-policy", "ratelimit"}
			}
			var fields []Field
			for i, value := range strings.Split(c.ours, "|") {
				fields = append(fields, Field{names[i], value})
			}
			Reconcile(fields, strings.Split(c.theirs, "|"), epoch*1e9)
			for i, want := range strings.Split(c.want, "|") {
				require.Equal(t, want, fields[i].Value, names[i])
			}
		})
	}
}
