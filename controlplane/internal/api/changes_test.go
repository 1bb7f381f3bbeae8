package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policydiff"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

func TestAppliedTellsWhatBecomesOfCounters(t *testing.T) {
	f := newFixture(t, "")
	apply := func(path, text string) []Change {
		t.Helper()
		var a Applied
		f.json("POST", path, text, 201, &a)
		return a.Changes
	}
	require.Nil(t, apply("/v1/policies", good), "nothing was before")
	require.Equal(t, []Change{{
		Counter: "per-user", Fate: policydiff.Kept, Keeps: true, Text: `counter "per-user": kept`,
		Windows: []WindowChange{{Per: "1m", Fate: policydiff.Kept}},
	}}, apply("/v1/policies", strings.Replace(good, "10/1m", "20/1m", 1)))

	layered := apply("/v1/policies", strings.Replace(good, `"10/1m"`, `"10/1s", "10/1h"`, 1))
	require.Equal(t, []WindowChange{{"1s", policydiff.New}, {"1h", policydiff.New}, {"1m", policydiff.Dropped}}, layered[0].Windows)
	require.False(t, layered[0].Keeps)

	restarted := apply("/v1/policies", strings.Replace(good, "missing_key: deny", "missing_key: deny\n    capacity: 8", 1))
	require.Equal(t, policydiff.Restarted, restarted[0].Fate)
	require.Equal(t, "capacity 65536 → 8", restarted[0].Why)
	require.Equal(t, `counter "per-user": capacity 65536 → 8: its counters restart`, restarted[0].Text)

	require.Equal(t, policydiff.Vanished, apply("/v1/policies", "version: 1\ndomain: shop\nrules: []\n")[0].Fate)
	require.Equal(t, policydiff.New, apply("/v1/rollback/1", "")[0].Fate, "a rollback is an apply")
	require.Equal(t, policydiff.Restarted, apply("/v1/policies", strings.Replace(good, "shop", "market", 1))[0].Fate)
}

// A revision of an older version may be none today: it is replaced all the same.
func TestApplyOverAPolicyThatCannotBeRead(t *testing.T) {
	f := newFixture(t, "")
	_, err := f.store.Append(t.Context(), store.Draft{File: "old.yaml", YAML: []byte("version: 0\n"), JSON: []byte(`{}`)})
	require.NoError(t, err)
	var a Applied
	f.json("POST", "/v1/policies", good, 201, &a)
	require.Equal(t, uint64(2), a.Number)
	require.Nil(t, a.Changes)
}
