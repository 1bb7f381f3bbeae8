package api

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// A rollback goes to the newest that was accepted, or else the one before. One after a
// rollback goes further back, and not to what was rolled back. What cannot be known is not guessed.
func TestPrevious(t *testing.T) {
	type list = []store.Summary
	good := func(number, repeats uint64) store.Summary {
		return store.Summary{Number: number, RollbackOf: repeats, Acked: true}
	}
	bad := store.Summary{Number: 2, Damaged: true}
	for name, tc := range map[string]struct {
		list list // newest first
		want uint64
		says string
	}{
		"nobody has accepted any":       {list{{Number: 3}, {Number: 2}, {Number: 1}}, 2, ""},
		"the newest that was accepted":  {list{{Number: 4}, {Number: 3}, good(2, 0), good(1, 0)}, 2, ""},
		"one that is damaged":           {list{{Number: 3}, bad, good(1, 0)}, 1, ""},
		"one that was a rollback":       {list{good(5, 0), good(4, 2), good(3, 0), good(2, 0)}, 4, ""},
		"after two rollbacks":           {list{good(6, 4), good(5, 0), good(4, 2), good(3, 0), good(2, 0), good(1, 0)}, 1, ""},
		"a rollback as far as there is": {list{good(2, 1), good(1, 0)}, 0, "none before revision 1, whose policy the current one repeats: name a revision"},
		"a rollback of one that is gone": {list{good(5, 3), good(4, 0), good(2, 0)}, 0,
			"repeats revision 3, which is gone or damaged: name a revision"},
		"a rollback of one that is damaged": {list{good(4, 2), good(3, 0), bad, good(1, 0)}, 0, "repeats revision 2, which is gone or damaged"},
		"nothing whole before":              {list{{Number: 3}, bad, {Number: 1, Damaged: true}}, 0, "there is none before the current one that is whole"},
	} {
		got, err := before(tc.list)
		require.Equal(t, tc.want, got, name)
		if tc.says != "" {
			require.ErrorContains(t, err, tc.says, name)
		} else {
			require.NoError(t, err, name)
		}
	}
}
