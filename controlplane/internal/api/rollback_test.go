package api

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// A rollback goes to the newest that was accepted, or else the one before. One after a
// rollback goes further back, and not to what was rolled back.
func TestRollbackToPrevious(t *testing.T) {
	f := newFixture(t, "")
	var a Applied
	accepted := func(number uint64) {
		require.NoError(t, f.store.SaveReply(t.Context(), store.Reply{Node: "e1", Revision: number, Accepted: true}))
	}
	apply := func() { f.json("POST", "/v1/policies", good, 201, &a) }
	back := func(want uint64) {
		t.Helper()
		f.json("POST", "/v1/rollback/previous", "", 201, &a)
		require.Equal(t, want, a.RollbackOf)
	}
	apply()
	apply()
	apply()
	back(2) // revision 4: nobody has accepted any
	for n := range a.Number {
		accepted(n + 1)
	}
	apply()
	accepted(a.Number)
	back(4)
	accepted(a.Number)
	back(1) // revision 4 is 2
	f.as("", "POST /v1/rollback/previous", "", 404, "none before revision 1, whose policy the current one repeats: name a revision")
}

// A rollback of a revision that is no longer kept may be one of any: nothing is guessed.
func TestRollbackAfterPruning(t *testing.T) {
	f := newFixture(t, "")
	var a Applied
	for _, path := range []string{"policies", "policies", "rollback/previous", "policies", "rollback/previous"} { // 3 is 1, 5 is 3
		body := ""
		if path == "policies" {
			body = good
		}
		f.json("POST", "/v1/"+path, body, 201, &a)
		require.NoError(t, f.store.SaveReply(t.Context(), store.Reply{Node: "e1", Revision: a.Number, Accepted: true}))
	}
	require.NoError(t, f.store.Drop(t.Context(), []uint64{1, 3})) // a proxy still runs 2
	f.as("", "POST /v1/rollback/previous", "", 404, "repeats revision 3, which is gone or damaged: name a revision")
	f.as("", "POST /v1/rollback/2", "", 201)
}

// Damage of all that came before is said, and no rollback is spoken of where none was.
func TestNothingWholeBefore(t *testing.T) {
	_, err := before([]store.Summary{{Number: 3}, {Number: 2, Damaged: true}, {Number: 1, Damaged: true}})
	require.ErrorContains(t, err, "there is none before the current one that is whole")
}
