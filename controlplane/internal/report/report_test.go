package report

import (
	"bytes"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"strconv"
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
		Use: []replay.Use{{Limit: "0", Units: 2, PeriodNs: int64(time.Minute), Distribution: replay.Distribution{
			Periods: 4, P50: 1, P90: 3, P99: 4, P999: 4, Max: 4,
		}}},
		Top: []replay.Client{{Key: []*string{&client}, Requests: 4, Denied: 2, Strip: []int64{0, 2, 0}}},
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

var picture = regexp.MustCompile(`(?:src|srcset)="data:image/svg(?:\+|&#43;)xml;base64,([^"]*)"`)

// pictures returns the charts of a page, each in both themes.
func pictures(t *testing.T, page string) (list []string) {
	t.Helper()
	for _, found := range picture.FindAllStringSubmatch(page, -1) {
		svg, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(found[1], "&#43;", "+"))
		require.NoError(t, err)
		decoder := xml.NewDecoder(bytes.NewReader(svg))
		for {
			_, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
		}
		list = append(list, string(svg))
	}
	return list
}

func TestReplay(t *testing.T) {
	page := replayed(t, result(rule("per-client", "192.0.2.1")))
	for _, want := range []string{
		"1,234 requests from <time>2026-01-31 12:00:00Z</time> to <time>2026-01-31 12:03:00Z</time>",
		"Denies <strong>2</strong> of 1,234 requests (0.162%)",
		`<th scope="row"><bdi>192.0.2.1</bdi></th><td class="n">2</td><td class="n">4</td><td class="n">50%</td>`,
		`alt="At most 3 allowed, at 12:00. At most 2 denied, at 12:01. "`,
		"Requests per minute", "never more than 4. The limit is 2.",
	} {
		require.Contains(t, page, want)
	}
	charts := pictures(t, page)
	require.Len(t, charts, 2*3, "over time, use, denials, in two themes")
	require.Contains(t, charts[0], "fill:rgb(22,27,34)", "dark")
	require.NotContains(t, charts[1], "fill:rgb(22,27,34)")
	require.NotContains(t, page, "<script")
	require.NotRegexp(t, `(src|href|srcset)="(http|//)`, page, "it needs no other file")
}

// TestHostileNames: nothing that a client sends becomes markup.
func TestHostileNames(t *testing.T) {
	page := replayed(t, result(rule(`<img src=x onerror=alert(1)>`, `"><script>alert(1)</script>`)))
	require.NotContains(t, page, "<script")
	require.NotContains(t, page, "<img src=x")
	pictures(t, page)
	page = replayed(t, result(rule("a", "a\u202eb\xff\x00c"+strings.Repeat("d", 1<<16))))
	require.NotContains(t, page, "\u202e", "it turns the text behind it round")
	require.Regexp(t, `<bdi>a·b`+"\uFFFD"+`·cd{100,200}…</bdi>`, page)
}

// What is left out, and what is denied in shadow alone, is said.
func TestLeftOut(t *testing.T) {
	r := result(rule("a", "192.0.2.1"))
	r.Log.NoHTTP, r.Log.Refused, r.Log.Unended, r.Shadow = 1200, 3, 2, 617
	r.Against = &replay.Outcome{Policy: "other.yaml", ShadowAlone: 45, Rules: []replay.Rule{rule("b", "192.0.2.2")}}
	r.Against.Rules[0].ShadowAlone.Top = r.Against.Rules[0].Top
	page := replayed(t, r)
	for _, want := range []string{
		"1,200 lines of connections", "3 lines with a path", "2 last lines without an end", "would deny <strong>617</strong> more (50%)",
		"Newly denied in shadow: 45 requests.", "<caption>Newly denied in shadow</caption>",
	} {
		require.Contains(t, page, want)
	}
}

func TestManyRules(t *testing.T) {
	var rules []replay.Rule
	for i := range maxDrawn + 3 {
		rules = append(rules, rule("r"+strconv.Itoa(i), "c"))
	}
	rules = append(rules, replay.Rule{Rule: "unused"})
	page := replayed(t, result(rules...))
	require.Contains(t, page, "Charts are left out of the last 4 rules.")
	require.Contains(t, page, `<th scope="row">unused</th>`)
	require.Len(t, pictures(t, page), 2*3*maxDrawn)
}

func TestAgainst(t *testing.T) {
	r := result(rule("a", "192.0.2.1"))
	other := replay.Outcome{Policy: "other.yaml", Denied: 5, Alone: 3, Rules: []replay.Rule{rule("b", "192.0.2.2")}}
	other.Rules[0].Alone.Top = other.Rules[0].Top
	r.Against = &other
	page := replayed(t, r)
	require.Contains(t, page, "No longer denied by other.yaml: 0 requests.")
	require.Contains(t, page, "Newly denied: 3 requests.")
	require.Contains(t, page, "<caption>Newly denied</caption>")
}

// TestLongTimes: charts of any length of time are drawn.
func TestLongTimes(t *testing.T) {
	for _, c := range []struct {
		count int
		width time.Duration
		want  string
	}{
		{1, time.Second, "per second"}, {240, 5 * time.Second, "per 5 seconds"}, {240, 12 * time.Hour, "per 12 hours"}, {240, 24 * time.Hour, "per day"},
	} {
		r := result(rule("a", "b"))
		r.Timeline.WidthNs, r.Timeline.Count = int64(c.width), c.count
		series := make([]int64, c.count)
		series[c.count-1] = 7
		r.Rules[0].Series = replay.Series{Allowed: series, Denied: series, Shadow: series}
		r.Rules[0].Top[0].Strip = series
		page := replayed(t, r)
		require.Contains(t, page, "Requests "+c.want)
		pictures(t, page)
	}
}

func TestNumbers(t *testing.T) {
	for want, of := range map[string][2]int64{
		"0%": {0, 0}, "100%": {5, 5}, "50%": {1, 2}, "1%": {1, 100}, "0.162%": {2, 1234}, "0.0001%": {1, 1_000_000}, "33.3%": {1, 3},
	} {
		require.Equal(t, want, share(of[0], of[1]))
	}
	require.Equal(t, []string{"1", "999", "1,000", "1,234,567"}, []string{grouped(1), grouped(999), grouped(1000), grouped(uint32(1_234_567))})
	require.Equal(t, []string{"1 line", "0 lines", "1,000 lines"}, []string{count(1, "line"), count(0, "line"), count(1000, "line")})
}

// A suggestion says which clients set no limit.
func TestSuggestionSaysWhoIsApart(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, Policy(&out, &replay.Suggestion{
		Clients: 41, Replay: result(rule("per-client-ip", "192.0.2.1")),
		Limits: []replay.LimitFor{{Per: "1m", Apart: &replay.Apart{Clients: 1, Least: 1200, Others: 12}}, {Per: "1h"}},
	}))
	require.Contains(t, out.String(), "\n# apart: 1 client with 1,200 or more in a 1m, where no other has more than 12: only the others set the limit\n")
	require.Equal(t, 1, strings.Count(out.String(), "apart"))
}
