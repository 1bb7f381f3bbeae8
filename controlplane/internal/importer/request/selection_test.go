package request

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A copy of a selection shares its lists, also where they have room for more. To change one leaves the other as it is.
func TestCopiesOfASelectionDoNotChangeEachOther(t *testing.T) {
	post := Method.Value().Fitting(Exact("POST")).match
	get := Method.Value().Fitting(Exact("GET")).match
	all := Selection{exempt: make([]Match, 0, 8)}
	all.comments = make([]string, 0, 8)
	all.whyOff = make([]WhyOff, 0, 8)

	one := all
	one.ExemptMatches(post)
	one.Comment("one")
	one.TurnOff("one")
	other := all
	other.ExemptMatches(get)
	other.ExemptFitting(Host.Value(), Exact("a.example"))
	other.Comment("other")
	other.TurnOff("other")
	both := all
	both.NarrowTo(other)
	both.AddAll(one.Remarks)

	require.Empty(t, all.exempt)
	require.Equal(t, Selection{exempt: []Match{post}, Remarks: Remarks{[]string{"one"}, []WhyOff{"one"}}}, one)
	require.Equal(t, []Match{get, Host.Value().Fitting(Exact("a.example")).match}, other.exempt)
	require.Equal(t, Remarks{[]string{"other"}, []WhyOff{"other"}}, other.Remarks)
	require.Equal(t, Remarks{[]string{"other", "one"}, []WhyOff{"other", "one"}}, both.Remarks)
}

// Several patterns are a list, of a header an expression. If no match can say one of them, the others make none.
func TestRequestsThatFitOneOfSeveralPatterns(t *testing.T) {
	header := Header("x-plan")
	require.Equal(t, []Pattern{Exact("GET"), Exact("PUT")},
		Method.Value().Fitting(Exact("GET"), Exact("PUT"), Exact("GET")).Of(Method))
	require.Equal(t, []Pattern{Expression("(?:a)|(?:b.*)")},
		header.Fitting(Exact("a"), Prefix("b", false)).Of(header.Part))
	require.Equal(t, ToHosts([]string{"*.a.example"}), Host.Value().Fitting(Suffix(".a.example", false)))
	for _, s := range []Selection{
		Method.Value().Fitting(Exact("GET"), Exact("put")),
		header.Fitting(Exact("a"), Absent),
		header.Fitting(), // nothing fits one of none
		ToHosts(nil),
		ToHosts([]string{"a.example", "a.*"}),
	} {
		require.Empty(t, s.match)
		require.Len(t, s.WhyOff(), 1)
	}
	require.Empty(t, header.Fitting(Exact("a"), Anything))
}

// A pattern that was forgotten is no condition that all requests meet.
func TestTheZeroPatternIsNoCondition(t *testing.T) {
	require.False(t, Pattern{}.Matches(""))
	for _, v := range []Value{PathWithQuery, FullPath.Value(), Header("x"), Method.Value(), Host.Value(), ClientNetwork} {
		require.True(t, v.Fitting(Pattern{}).IsOff(), v)
	}
}

// What becomes of two conditions on one part.
func TestJoinsOfSelections(t *testing.T) {
	of := func(p Part, v Pattern) Selection { return p.Value().Fitting(v) }
	wide := of(FullPath, Prefix("/a", false))
	narrow := of(FullPath, Exact("/a/b"))
	joined := func(s, other Selection) Selection {
		s.NarrowTo(other)
		return s
	}
	require.Equal(t, narrow, joined(wide, narrow))
	names, _ := HostPattern("*.example")
	hosts := of(Host, names)
	host := of(Host, Exact("a.example"))
	require.Equal(t, host, joined(hosts, host))
	wide.Require(FullPath.Value(), Exact("/a/b"))
	require.Equal(t, narrow, wide)

	other := of(Host, Exact("b.example"))
	require.False(t, hosts.IsApart(host))
	require.True(t, host.IsApart(other))
	require.Equal(t, []WhyOff{"No match can select its requests: they have two conditions on host."},
		joined(host, other).whyOff)
	begun := of(FullPath, Prefix("/a", false))
	expression := of(FullPath, Expression("/.*b")) // an import cannot tell which values fit both
	require.False(t, begun.IsApart(expression))
	require.NotEmpty(t, joined(begun, expression).whyOff)
}

// An exemption of every request would end the limit without a word.
func TestNothingExemptsEveryRequest(t *testing.T) {
	post := Method.Value().Fitting(Exact("POST")).match
	for name, exempt := range map[string]func(s *Selection){
		"ExemptMatches": func(s *Selection) { s.ExemptMatches(Match{}, post) },
		"ExemptSelected": func(s *Selection) {
			s.ExemptSelected([]Selection{{}, {match: post}}, func(int, WhyOff) WhyOff { return "" })
		},
		"NarrowTo": func(s *Selection) { s.NarrowTo(Selection{exempt: []Match{{}, post}}) },
		"ExemptFitting": func(s *Selection) {
			s.ExemptFitting(Host.Value(), Anything)
			s.ExemptFitting(Method.Value(), Exact("POST"))
		},
	} {
		var s Selection
		exempt(&s)
		require.Equal(t, []Match{post}, s.exempt, name)
		require.Equal(t, []WhyOff{"It should exempt every request."}, s.whyOff, name)
	}
}

// A match can ask for each path that a request may have: it begins with a /, or is the * of OPTIONS.
func TestPathsThatRequestsHave(t *testing.T) {
	path := FullPath.Value()
	for _, p := range []Pattern{Exact("/a"), Exact("*"), Wildcard("*.js"), Expression("a"), Anything} {
		require.False(t, path.IsNever(p), p)
		require.False(t, path.Fitting(p).IsOff(), p)
	}
	for _, p := range []Pattern{Exact("a"), Wildcard("a*"), Absent} {
		require.True(t, path.IsNever(p), p)
		require.True(t, path.Fitting(p).IsOff(), p)
	}
	require.True(t, path.Fitting(Exact("/a?b")).IsOff())
}
