package request

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// textsOf are all texts of some characters that have at most size of them.
func textsOf(characters string, size int) []string {
	list := []string{""}
	longest := list
	for range size {
		var longer []string
		for _, text := range longest {
			for _, c := range characters {
				longer = append(longer, text+string(c))
			}
		}
		list = append(list, longer...)
		longest = longer
	}
	return list
}

// Where a pattern is said to be within another one, or apart from it, no text says otherwise. Some are of each.
func TestWithinAndApartAreSure(t *testing.T) {
	patterns := []Pattern{Anything, Absent, Present, Expression("a.*"), Expression("(a|/a)/?")}
	for _, text := range textsOf("a/", 3) {
		patterns = append(patterns, Exact(text))
		if text != "" { // no path is empty
			patterns = append(patterns, OrBelow(text, false))
		}
	}
	for _, text := range textsOf("aA/", 2) {
		patterns = append(patterns, Text(text, true))
	}
	for _, text := range textsOf("a/*", 3) {
		if strings.Contains(text, "*") {
			patterns = append(patterns, Wildcard(text))
		}
	}
	texts := textsOf("aAb/", 4)
	fits := map[Pattern][]bool{}
	for _, p := range patterns {
		for _, text := range texts {
			fits[p] = append(fits[p], p.Matches(text))
		}
	}
	within, apart := 0, 0
	for _, p := range patterns {
		for _, q := range patterns {
			isWithin := p.Within(q)
			isApart := p.Apart(q)
			for i, text := range texts {
				require.False(t, isWithin && fits[p][i] && !fits[q][i], "%v within %v: %q", p, q, text)
				require.False(t, isApart && fits[p][i] && fits[q][i], "%v apart from %v: %q", p, q, text)
			}
			if isWithin {
				within++
			}
			if isApart {
				apart++
			}
		}
	}
	require.Greater(t, within, len(patterns))
	require.Greater(t, apart, len(patterns))
}

// Two texts in any case are apart as texts are, though each is an expression.
func TestTextsInAnyCaseAreApart(t *testing.T) {
	require.True(t, Text("gold", true).Apart(Text("staff", true)))
	require.True(t, Text("a.b", true).Apart(Text("axb", true)))
	require.False(t, Text("gold", true).Apart(Text("GOLD", true)))
	require.False(t, Text("gold", true).Apart(Expression("(?i)gol.")))
}

// A pattern of :path with its query is one of the path alone, or of none.
func TestPatternsOfPathsWithQuery(t *testing.T) {
	for _, tc := range []struct {
		of, path Pattern
		use      queryUse
	}{
		{of: Exact("/a"), path: Exact("/a"), use: meetsQuery},
		{of: Exact("/a?b"), use: asksForQuery},
		{of: Prefix("/a", false), path: Wildcard("/a*")},
		{of: OrBelow("/a", false), path: OrBelow("/a", false)},
		{of: Expression(`/a(\?.*)?`), path: Expression("/a")},
		{of: Expression(`/a|/b(\?.*)?`), path: Expression("/a|/b"), use: meetsQuery},
		{of: Expression(`(/a|/b)(\?.*)?`), path: Expression("(/a|/b)")},
		{of: Expression(`/a$`), path: Expression("/a"), use: meetsQuery},
		{of: Expression(`^$`), path: Expression("(?:)"), use: meetsQuery}, // a policy has no empty expression
		{of: Expression(`/a\$`), path: Expression(`/a\$`), use: meetsQuery},
		{of: Expression(`/a\\$`), path: Expression(`/a\\`), use: meetsQuery},
		{of: Expression(`/a\.*`), path: Expression(`/a\.*`), use: meetsQuery},
		{of: Expression(`/a(/.*|\?.*|#.*|;.*|$)`), path: OrBelow("/a", false)},
		{of: Expression(`/a[/?].*`), use: asksForQuery},
		{of: Expression(`^?/a`), path: Expression(`^?/a`), use: meetsQuery},
		{of: Expression(`/a[[:punct:]]b`), use: asksForQuery},
		{of: Expression(`/a\x3fb.*`), use: asksForQuery},
		{of: Expression(`/a.*b`), use: asksForQuery},
		{of: Expression(`/a.{2,}b`), use: asksForQuery},
		{of: Expression(`/a(.)+b`), use: asksForQuery},
		{of: Expression(`/a.{2}b`), path: Expression(`/a.{2}b`), use: meetsQuery},
		{of: Expression(`/a[^/].*`), path: Expression(`/a[^/].*`), use: meetsQuery},
		{of: Expression(`/a[^?].*`), path: Expression(`/a[^?].*`)},
	} {
		path, use := tc.of.ofPath()
		require.Equal(t, tc.use, use, tc.of)
		if use != asksForQuery {
			require.Equal(t, tc.path, path)
		}
	}
}

// Where an expression of :path is said to ignore queries, no text says otherwise. Some do.
func TestIgnoringQueriesIsSure(t *testing.T) {
	parts := []string{"", "/a", ".", "[^/]", "[/?]", `\W`, `\b`, `\?`, ".*", "|", "$", "(/|$)", `(\?.*)?`,
		`(/.*|\?.*|#.*|;.*|$)`}
	same := 0
	for _, begin := range parts {
		for _, middle := range parts {
			for _, end := range parts {
				p := Expression(begin + middle + end)
				path, use := p.ofPath()
				if use != ignoresQuery {
					continue
				}
				same++
				for _, text := range textsOf("a/?", 3) {
					before, _, _ := strings.Cut("/"+text, "?")
					require.Equal(t, p.Matches("/"+text), path.Matches(before), "%v: /%s", p, text)
				}
			}
		}
	}
	require.Greater(t, same, len(parts))
}

// nginx searches a text for an expression, and a policy matches the whole text.
func TestSearchedExpressions(t *testing.T) {
	for text, want := range map[string]string{
		"^/a": "/a.*", "a$": ".*a", "^/a$": "/a", "a": ".*a.*", `a\$`: `.*a\$.*`, `a\\$`: `.*a\\`,
		"a|b$": ".*(?:a|b$).*", "(a|b)$": ".*(a|b)",
		`[](]|b`: `.*(?:[](]|b).*`, `[^](]|b`: `.*(?:[^](]|b).*`, "[[:alpha:](]|b": ".*(?:[[:alpha:](]|b).*",
		`[\](]|b`: `.*(?:[\](]|b).*`, "[[:]|b": ".*(?:[[:]|b).*", "[|]": ".*[|].*",
		"^?/a": ".*^?/a.*", "^*$": ".*^*", "^{2}/a": ".*^{2}/a.*", // not always at the begin
		`\Qa|b`: `.*a\|b.*`, `\Q.\E$`: `.*(?-m:\.$).*`, `\\Qa`: `.*\\Qa.*`,
	} {
		p, ok := Searched(text, false)
		require.True(t, ok)
		require.Equal(t, Expression(want), p, text)
	}
	p, _ := Searched("^/a", true)
	require.Equal(t, Expression("(?i)/a.*"), p)
	_, ok := Searched("(?=a)", false)
	require.False(t, ok)
}

// An expression may quote a text without an end. What an import puts behind it is no part of that text.
func TestExpressionsThatQuoteAText(t *testing.T) {
	p, err := ParseExpression(`/a\Q.b|c`)
	require.NoError(t, err)
	require.True(t, p.Matches("/a.b|c"))
	require.False(t, p.Apart(Exact("/a.b|c")))
	p, err = ParseExpression(`/a\Q(\E|/b.*`)
	require.NoError(t, err)
	_, use := p.ofPath()
	require.NotEqual(t, ignoresQuery, use) // as of /a|/b.*
}

// A long class is read in a moment, though each ] of it may be the last.
func TestLongClassIsReadInAMoment(t *testing.T) {
	begin := time.Now()
	long := "[" + strings.Repeat(`\]`, 30_000) + "]"
	require.False(t, hasBranches(long))
	require.True(t, hasBranches(long+"|b"))
	require.Less(t, time.Since(begin), time.Second)
}

// A match has the names of hosts that a policy takes: IPv6 addresses in brackets, too.
func TestHostsOfAMatch(t *testing.T) {
	for name, isThere := range map[string]bool{
		"a.example": true, "*.A.example": true, "[::1]": true, "[0:0::1]": true, "": false, "*": false, ".a": false,
		"::1": false, "*.[::1]": false, "[127.0.0.1]": false, "[]": false, "[a]": false,
	} {
		_, ok := HostPattern(name)
		require.Equal(t, isThere, ok, name)
	}
}

// To a limiter that compares texts, a host or a network is apart from all others.
func TestTextsOfHostsAndNetworksAreApart(t *testing.T) {
	require.True(t, Exact("10.0.0.0/8").Apart(Exact("10.0.0.1")))
	require.True(t, Exact("a.example").Apart(Exact("A.example")))
}

// In a match a name or network is within another one, or apart from it, as the hosts and addresses that fit them are.
func TestHostsAndNetworksWithinAndApart(t *testing.T) {
	patternOf := func(text string) Pattern {
		if strings.Contains(text, "*") {
			return Wildcard(text)
		}
		return Exact(text)
	}
	for _, tc := range []struct {
		of            Part
		p, q          string
		within, apart bool
	}{
		{of: Host, p: "a.example", q: "A.example", within: true},
		{of: Host, p: "x.a.example", q: "*.A.example", within: true},
		{of: Host, p: "*.X.a.example", q: "*.a.example", within: true},
		{of: Host, p: "*.a.example", q: "x.a.example"},
		{of: Host, p: "*.a.example", q: "*.x.a.example"},
		{of: Host, p: "a.example", q: "*.a.example", apart: true},
		{of: Host, p: "xa.example", q: "*.a.example", apart: true},
		{of: Host, p: "a.example", q: "b.example", apart: true},
		{of: ClientIP, p: "10.1.0.1", q: "10.0.0.0/8", within: true},
		{of: ClientIP, p: "10.0.0.0/8", q: "10.1.0.0/16"},
		{of: ClientIP, p: "10.0.0.0/16", q: "10.1.0.0/16", apart: true},
		{of: ClientIP, p: "10.0.0.1", q: "::ffff:10.0.0.1", within: true},
		{of: FullPath, p: "/*.a", q: "/*x.a"},
	} {
		id := tc.of.id()
		p, q := patternOf(tc.p), patternOf(tc.q)
		require.True(t, tc.of.takes(p) && tc.of.takes(q), "%v", tc)
		require.Equal(t, tc.within, id.within(p, q), "%v", tc)
		require.Equal(t, tc.apart, id.apart(p, q), "%v", tc)
		require.Equal(t, tc.apart, id.apart(q, p), "%v", tc)
	}
}
