package report

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/replay"
)

// rule is one that denied twice in three minutes.
func rule(name, client string) replay.Rule {
	return replay.Rule{
		Rule: name, Mode: "enforce", Key: []string{"client_ip"}, Requests: 8, Denied: 2, Clients: 2, DeniedClients: 1,
		Series: replay.Series{Allowed: []int64{3, 1, 2}, Denied: []int64{0, 2, 0}, Shadow: []int64{0, 0, 0}},
		Use: []replay.Use{{Limit: "0", Units: 2, Requests: 2, PeriodNs: int64(time.Minute), Distribution: replay.Distribution{
			Periods: 4, P50: 1, P90: 3, P99: 4, P999: 4, Max: 4,
		}}},
		Top: []replay.Client{{Key: []*string{&client}, Requests: 4, Denied: 2}},
	}
}

func result(rules ...replay.Rule) *replay.Report {
	start := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC).UnixNano()
	return &replay.Report{
		Log:      accesslog.Stats{Requests: 1234, FirstNs: start, LastNs: start + int64(3*time.Minute)},
		Proxies:  1,
		Timeline: replay.Timeline{StartNs: start, WidthNs: int64(time.Minute), Count: 3},
		Outcome:  replay.Outcome{Policy: "policy.yaml", Denied: 2, Rules: rules},
	}
}

func replayed(t *testing.T, r *replay.Report) string {
	t.Helper()
	var page bytes.Buffer
	require.NoError(t, Write(&page, r))
	return page.String()
}

func TestThePageOfAReplay(t *testing.T) {
	page := replayed(t, result(rule("per-client", "192.0.2.1")))
	for _, want := range []string{
		"1,234 requests from <time>2026-01-31 12:00:00Z</time> to <time>2026-01-31 12:03:00Z</time>",
		"Denies <strong>2</strong> of 1,234 requests (0.162%)",
		`<th scope="row"><bdi>192.0.2.1</bdi></th><td class="n">2</td><td class="n">4</td><td class="n">50%</td>`,
		"requests per 1m, time in UTC", "allowed: at most 3 per 1m, at 12:00:00", "denied: at most 2 per 1m, at 12:01:00",
		`<polyline class="allowed" points="0,0 500,667 1000,333"/>`,
		`<polyline class="denied" points="0,1000 500,333 1000,1000"/></svg>`,
		`<text x="100%" y="46.67" dy="-4" class="limit">limit of each key: 2 per 1m</text>`, "svg.chart {",
		`<th scope="row">1m</th><td class="n">1</td><td class="n">3</td><td class="n">4</td><td class="n">4</td>` +
			`<td class="n">4</td><td class="n">2</td>`,
	} {
		require.Contains(t, page, want)
	}
	require.NotContains(t, page, "<script")
	require.NotRegexp(t, `(src|href|srcset)=`, page, "it needs no other file")
}

// A log of one moment has no line to draw, and no empty figure in its place.
func TestNoChartOfAMoment(t *testing.T) {
	r := result(rule("per-client", "192.0.2.1"))
	require.Contains(t, replayed(t, r), "<figure>")
	r.Timeline.Count = 1
	require.NotContains(t, replayed(t, r), "<figure>")
}

// What another rule denies does not count as allowed, on the page and in text.
func TestDeniedByAnotherRule(t *testing.T) {
	for n, want := range map[int64]string{
		1:    "another rule denies 1 more request, which does not count here",
		1700: "other rules deny 1,700 more requests, which do not count here",
	} {
		r := result(rule("per-client", "192.0.2.1"), rule("masked", "192.0.2.1"))
		r.Rules[1].DeniedByOthers = n
		require.Equal(t, 1, strings.Count(replayed(t, r), "<p>Beside these, "+want+".</p>"))
		var text bytes.Buffer
		require.NoError(t, Text(&text, r))
		require.Contains(t, text.String(), "\nmasked: "+want+"\n")
	}
}

// Nothing that a client sends becomes markup.
func TestHostileNamesAreNoMarkup(t *testing.T) {
	page := replayed(t, result(rule(`<img src=x onerror=alert(1)>`, `"><script>alert(1)</script>`)))
	require.NotContains(t, page, "<script")
	require.NotContains(t, page, "<img src=x")
	page = replayed(t, result(rule("a", "a\u202eb\xff\x00c"+strings.Repeat("d", 1<<16))))
	require.NotContains(t, page, "\u202e", "it turns the text behind it round")
	require.Regexp(t, `<bdi>a·b`+"\uFFFD"+`·cd{50,80}…</bdi>`, page)
}

// What is left out, and what is denied in shadow alone, is said.
func TestWhatIsLeftOutIsSaid(t *testing.T) {
	r := result(rule("a", "192.0.2.1"))
	r.Log.NoHTTP, r.Log.Refused = 1200, 3
	r.Log.Unended = 2
	r.Shadow = 617
	r.Against = &replay.Outcome{Policy: "other.yaml", ShadowOnlyHere: 45, Rules: []replay.Rule{rule("b", "192.0.2.2")}}
	r.Against.Rules[0].ShadowOnlyHere = replay.OnlyHere{Requests: 45, Clients: 1, Top: r.Against.Rules[0].Top}
	page := replayed(t, r)
	for _, want := range []string{
		"1,200 lines of connections", "3 lines with a path", "2 last lines without an end",
		"would deny <strong>617</strong> more (50%)", "newly denied in shadow by other.yaml: 45 requests",
		"no longer denied in shadow by other.yaml: 0 requests", "<caption>b</caption>",
	} {
		require.Contains(t, page, want)
	}
}

func TestSharesAndNumbersAsPeopleReadThem(t *testing.T) {
	for want, of := range map[string][2]int64{
		"0%": {0, 0}, "100%": {5, 5}, "50%": {1, 2}, "1%": {1, 100}, "0.162%": {2, 1234}, "0.0001%": {1, 1_000_000},
		"33.3%": {1, 3},
	} {
		require.Equal(t, want, share(of[0], of[1]))
	}
	for want, n := range map[string]uint32{"1": 1, "999": 999, "1,000": 1000, "1,234,567": 1_234_567} {
		require.Equal(t, want, grouped(n))
	}
	for want, n := range map[string]int64{"1 line": 1, "0 lines": 0, "1,000 lines": 1000} {
		require.Equal(t, want, count(n, "line"))
	}
}

// A suggestion says which clients set no limit, and names them.
func TestSuggestionSaysWhoIsApart(t *testing.T) {
	abuser := "198.51.100.7"
	var out bytes.Buffer
	require.NoError(t, Policy(&out, &replay.Suggestion{
		Clients: 41, Replay: result(rule("per-client-ip", "192.0.2.1")),
		Limits: []replay.LimitFor{
			{Per: "1m", Outliers: &replay.Outliers{Clients: 1, Least: 1200, Others: 12}}, {Per: "1h"},
		},
		Outliers: []replay.Client{{Key: []*string{&abuser}, Requests: 1500, Denied: 1488}},
	}))
	require.Contains(t, out.String(), `
# apart: 1 client with 1,200 or more in 1m, where no other has more than 12: only the others set the limit
# set apart; a customer among them needs a rule of its own
# CLIENT_IP     DENIED  REQUESTS  SHARE
# 198.51.100.7  1,488   1,500     99.2%
`)
	require.Equal(t, 1, strings.Count(out.String(), "CLIENT_IP"))
}

// A client whose key has the ends of lines writes nothing into the policy that is suggested.
func TestHostileNamesStayInComments(t *testing.T) {
	hostile := "a\nrules: []\rrules: []\u2028rules: []\u2029rules: []\u0085rules: []"
	var out bytes.Buffer
	require.NoError(t, Policy(&out, &replay.Suggestion{
		Replay: result(rule("per-client-ip", hostile)), Policy: "version: 1\n",
		Limits:   []replay.LimitFor{{Per: "1m", Outliers: &replay.Outliers{Clients: 1, Least: 1200, Others: 12}}},
		Outliers: []replay.Client{{Key: []*string{&hostile}, Requests: 1500, Denied: 1488}},
	}))
	comments, ok := strings.CutSuffix(out.String(), "\nversion: 1\n")
	require.True(t, ok)
	for line := range strings.Lines(comments) {
		require.Regexp(t, "^#", line)
		require.NotRegexp(t, "[\r\u0085\u2028\u2029]", line, "also an end of a line in YAML")
	}
	require.Contains(t, comments, "rules: []·rules: []")
}
