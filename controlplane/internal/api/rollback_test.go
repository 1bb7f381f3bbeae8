package api

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

func TestRollbackToPrevious(t *testing.T) {
	f := newFixture(t, "")
	var e Error
	var a Applied
	f.json("POST", "/v1/policies", good, 201, &a)
	f.json("POST", "/v1/rollback/previous", "", 404, &e)
	require.Contains(t, e.Error, "none before the current one")
	f.json("POST", "/v1/policies", good, 201, &a)
	f.json("POST", "/v1/policies", good, 201, &a)
	f.json("POST", "/v1/rollback/previous", "", 201, &a)
	require.Equal(t, uint64(2), a.RollbackOf, "nobody has accepted any: the one before")
	require.NoError(t, f.store.SaveReply(t.Context(), store.Reply{Node: "e1", Revision: 1, Accepted: true}))
	f.json("POST", "/v1/rollback/previous", "", 201, &a)
	require.Equal(t, uint64(1), a.RollbackOf, "the newest accepted")
}

// A rollback after a rollback goes further back, and not to what was rolled back.
func TestRollbackTwice(t *testing.T) {
	f := newFixture(t, "")
	var a Applied
	accepted := func() {
		require.NoError(t, f.store.SaveReply(t.Context(), store.Reply{Node: "e1", Revision: a.Number, Accepted: true}))
	}
	back := func(want uint64) {
		t.Helper()
		f.json("POST", "/v1/rollback/previous", "", 201, &a)
		require.Equal(t, want, a.RollbackOf)
		accepted()
	}
	for range 3 {
		f.json("POST", "/v1/policies", good, 201, &a)
		accepted()
	}
	back(2) // revision 4
	f.json("POST", "/v1/policies", good, 201, &a)
	accepted()
	back(4)
	back(1) // revision 4 is 2
	var e Error
	f.json("POST", "/v1/rollback/previous", "", 404, &e)
	require.Contains(t, e.Error, "none before revision 1, whose policy the current one repeats: name a revision")
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
	var e Error
	f.json("POST", "/v1/rollback/previous", "", 404, &e)
	require.Contains(t, e.Error, "repeats revision 3, which is gone or damaged: name a revision")
	f.json("POST", "/v1/rollback/2", "", 201, &a)
}
