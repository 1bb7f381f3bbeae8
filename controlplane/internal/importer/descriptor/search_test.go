package descriptor

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/draft"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer/request"
)

// newLevel makes a level of pairs such as path=/login, with * for any value.
func newLevel(limit uint64, pairs ...string) *Level {
	l := &Level{Limit: &draft.Limit{Numbers: draft.Windowed(limit, "minute")}}
	for _, text := range pairs {
		key, value, _ := strings.Cut(text, "=")
		p := Pair{Key: key, Pattern: request.Exact(value)}
		switch {
		case value == "*":
			p.Pattern = request.Anything
		case strings.HasSuffix(value, "*"):
			p.Pattern = request.Prefix(strings.TrimSuffix(value, "*"), false)
		}
		l.Pairs = append(l.Pairs, p)
	}
	return l
}

// shown are the leaves as "/login alice 1", with * for any value, and - for those without a limit.
func shown(leaves []*leaf) (list []string) {
	for _, l := range leaves {
		var texts []string
		for _, v := range l.conditions {
			text := v.fits.Text()
			if v.fits.Kind() == request.AnyValue {
				text = "*"
			}
			texts = append(texts, text)
		}
		limit := "-"
		if l.level.Limit != nil {
			limit = strconv.FormatUint(l.level.Limit.Requests, 10)
		}
		list = append(list, strings.Join(append(texts, limit), " "))
	}
	return list
}

// Each limiter searches its levels in its own order: the service never goes back, the filter compares whole levels.
func TestLeavesInTheOrderOfTheSearch(t *testing.T) {
	header := request.Header("x-user")
	entries := []Entry{FromRequest("path", request.FullPath.Value()), FromRequest("user", header)}
	levels := []*Level{newLevel(1, "path=/login", "user=alice"), newLevel(2, "path=*", "user=bob")}
	require.Equal(t, []string{"/login alice 1", "/login * -", "* bob 2", "* * -"}, shown(serviceLeaves(levels, entries)))
	require.Equal(t, []string{"/login alice 1", "* bob 2", "* * -"}, shown(localLeaves(levels, entries)))

	// The exact value first, then wildcards in the order of the file, then any value.
	levels = []*Level{newLevel(1, "user=*"), newLevel(2, "user=a*"), newLevel(3, "user=alice")}
	require.Equal(t, []string{"alice 3", "a* 2", "* 1"}, shown(serviceLeaves(levels, entries[1:])))

	// A fixed text chooses its level when it is imported.
	anna := []Entry{Fixed("user", "anna")}
	require.Equal(t, []string{"2"}, shown(serviceLeaves(levels, anna)))
}

// A search ends without a limit where no level has exactly the pairs that it came by.
func TestSearchEndsWhereNoLevelIs(t *testing.T) {
	header := request.Header("x-user")
	entries := []Entry{FromRequest("user", header)}
	require.Equal(t, []string{"* -"}, shown(serviceLeaves(nil, entries)))
	below := []*Level{newLevel(1, "user=alice", "path=/login")}
	require.Equal(t, []string{"alice -", "* -"}, shown(serviceLeaves(below, entries)))
	require.Equal(t, []string{"-"}, shown(serviceLeaves(nil, nil)))
}
