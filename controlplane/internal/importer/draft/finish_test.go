package draft_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/source"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// finish makes a policy of one limit.
func finish(numbers draft.Numbers, key ...request.Part) (draft.Imported, error) {
	d := draft.New("a limiter", "limits.yaml", policy.ScopeProxy)
	at := source.Place{File: "limits.yaml", Line: 3}
	limit := &draft.Limit{Numbers: numbers, At: at}
	limit.Comment("There it counts in UTC.")
	d.Add(draft.NewRule(draft.Terms{At: at, Limit: limit, Key: key}))
	return d.Finish()
}

// There is no policy if it is not valid. The error tells a fault of the file from one of the import.
func TestAPolicyThatIsNotValid(t *testing.T) {
	made, err := finish(draft.Windowed(5, "fortnight"))
	require.ErrorIs(t, err, draft.ErrFault)
	require.Empty(t, made.Policy)
	require.Equal(t, "limits.yaml:3: rule: There it counts in UTC.", made.Notes[0].String())

	made, err = finish(draft.Windowed(5, "minute"), make([]request.Part, 100)...)
	require.ErrorContains(t, err, "rule is beyond what a policy may have: key: ")
	require.NotErrorIs(t, err, draft.ErrFault)
	require.Empty(t, made.Policy)
}

// The notes come by their files, also where there is no policy.
func TestNotesWithoutAPolicy(t *testing.T) {
	d := draft.New("a limiter", "a.yaml", policy.ScopeProxy)
	d.Note(source.Place{File: "b.yaml"}, "ignored: b")
	d.Note(source.Place{File: "a.yaml"}, "ignored: a")
	made, err := d.Finish()
	require.ErrorIs(t, err, draft.ErrNothing)
	require.Equal(t, "a.yaml", made.Notes[0].File)
	require.Equal(t, "b.yaml", made.Notes[1].File)
}

// A rule exempts more paths than it may have exemptions, as one exemption has a list of them. What no list says takes
// an exemption each: of too many the rule has the first, and is off.
func TestExemptionsByOnePartAreOne(t *testing.T) {
	const more = policy.MaxExempt + 1
	paths, withMethod := make([]request.Match, more), make([]request.Match, more)
	for i := range more {
		path := request.FullPath.Value().Fitting(request.Exact("/" + strconv.Itoa(i)))
		paths[i], _ = path.Match()
		path.Require(request.Method.Value(), request.Exact("GET"))
		withMethod[i], _ = path.Match()
	}
	for _, tc := range []struct {
		exempt      []request.Match
		items, off  int
		itsFirstOne string
	}{
		{paths, 1, 0, "{paths: [/0, /1, /2, "},
		{withMethod, policy.MaxExempt, 1, "{methods: [GET], paths: [/0]}"},
	} {
		d := draft.New("a limiter", "limits.yaml", policy.ScopeProxy)
		limit := &draft.Limit{Numbers: draft.Windowed(5, "minute")}
		var requests request.Selection
		requests.ExemptMatches(tc.exempt...)
		d.Add(draft.NewRule(draft.Terms{Name: "most", Limit: limit, Requests: requests}))
		made, err := d.Finish()
		require.NoError(t, err)
		text := string(made.Policy)
		require.Equal(t, tc.items, strings.Count(text, "      - {"), text)
		require.Contains(t, text, "exempt:\n      - "+tc.itsFirstOne)
		isOff := "# Off: It should exempt 101 matches, and a rule has at most 100."
		require.Equal(t, tc.off, strings.Count(text, isOff), text)
	}
}

// Denied requests count at a cost that the window may not have room for. At cost 1 it is full where it denies.
func TestDeniedRequestsCountAtACost(t *testing.T) {
	for cost, want := range map[uint64]int{0: 0, 1: 0, 2: 1} {
		d := draft.New("a limiter", "limits.yaml", policy.ScopeProxy)
		limit := &draft.Limit{Numbers: draft.Windowed(5, "minute")}
		d.Add(draft.NewRule(draft.Terms{Limit: limit, Cost: cost}))
		made, err := d.Finish()
		require.NoError(t, err)
		require.Equal(t, want, strings.Count(string(made.Policy), "count_denied: true"), cost)
	}
}

// A rule says once what is so of several routes.
func TestARemarkOfARuleIsSaidOnce(t *testing.T) {
	var requests request.Selection
	for range 2 {
		requests.Comment("It leaves out a route.")
		requests.TurnOff("Another route is unknown.")
	}
	d := draft.New("a limiter", "limits.yaml", policy.ScopeProxy)
	limit := &draft.Limit{Numbers: draft.Windowed(5, "minute")}
	d.Add(draft.NewRule(draft.Terms{Name: "routes", Limit: limit, Requests: requests}))
	made, err := d.Finish()
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(made.Policy), "# It leaves out a route."), string(made.Policy))
	require.Equal(t, 1, strings.Count(string(made.Policy), "# Off: Another route is unknown."), string(made.Policy))
}

// Which requests a rule limits is known if a match can ask for the parts of its key. None asks for a query parameter, a
// cookie or a property, and all requests have a connection.
func TestRequestsThatARuleLimits(t *testing.T) {
	header := request.Part{Kind: request.KindHeader, Name: "x-user"}
	has, _ := header.Value().Fitting(request.Present).Match()
	for _, tc := range []struct {
		key     request.Part
		isKnown bool
		limited request.Match // of all requests nil
	}{
		{key: request.ClientIP, isKnown: true},
		{key: request.FullPath, isKnown: true},
		{key: request.ConnectionID, isKnown: true},
		{key: header, isKnown: true, limited: has},
		{key: request.Part{Kind: request.KindQuery, Name: "user"}},
		{key: request.Part{Kind: request.KindCookie, Name: "user"}},
		{key: request.Property("xds", "cluster_name")},
	} {
		limit := &draft.Limit{Numbers: draft.Windowed(5, "minute")}
		r := draft.NewRule(draft.Terms{Limit: limit, Key: []request.Part{tc.key}})
		var others draft.Terms
		hasAny := others.ExemptLimited([]*draft.Rule{r}, true)
		require.Equal(t, tc.isKnown, !others.Requests.IsOff(), tc.key)
		require.Equal(t, !tc.isKnown || tc.limited != nil, hasAny, tc.key)
		require.Equal(t, tc.limited != nil, others.Requests.HasExempt(tc.limited), tc.key)
	}
}
