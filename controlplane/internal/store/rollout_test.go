package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A rollout is kept with its revision, changes with the audit log, and ends once.
func rollouts(t *testing.T, open opener) {
	b, ctx := open(), t.Context()
	appendAll(t, b, "first")
	begun := Rollout{Percent: 10, Except: []string{"edge-3"}, PromoteAfter: 5 * time.Minute, MaxDenied: 2, Who: "token ci", State: Canary}
	d := of("default", "second")
	d.Rollout = &begun
	second, err := add(ctx, b, d)
	require.NoError(t, err)
	require.Equal(t, &begun, second.Rollout)
	step := func(state RolloutState, why string) error {
		_, err := b.Append(ctx, Change{Last: 2, Steps: []Step{{Revision: 2, State: state, Why: why, Audit: Entry{Action: string(state), Text: why}}}})
		return err
	}
	stands := func() *Rollout {
		require.NoError(t, b.Close())
		b = open()
		list, err := b.History(ctx, DefaultPolicy, 1)
		require.NoError(t, err)
		return list[0].Rollout
	}
	require.Equal(t, &begun, stands())

	appended := b.Appended()
	require.NoError(t, step(Stalled, "edge-3 refused it"))
	<-appended
	want := begun
	want.State, want.Why = Stalled, "edge-3 refused it"
	require.Equal(t, &want, stands())
	require.True(t, want.Lasts())

	_, err = b.Append(ctx, Change{Last: 1, Steps: []Step{{Revision: 2, State: Promoted}}})
	require.ErrorIs(t, err, ErrConflict)
	require.NoError(t, b.SaveReply(ctx, Reply{Node: "edge-3", Revision: 2}))
	require.Eventually(t, b.Leads, 20*time.Second, time.Millisecond)
	_, err = b.Append(ctx, Change{Last: 2, Leads: true, Steps: []Step{{Revision: 2, State: Promoted}}})
	require.ErrorIs(t, err, ErrConflict, "a proxy has refused it")
	require.Equal(t, &want, stands())
	require.NoError(t, step(Aborted, ""))
	want.State, want.Why = Aborted, ""
	require.Equal(t, &want, stands())
	require.True(t, !want.Lasts() && want.IsAborted())
	require.ErrorIs(t, step(Promoted, ""), ErrConflict, "it has ended")
	require.Equal(t, &want, stands())

	entries, err := b.Audit(ctx, DefaultPolicy, 2, 0)
	require.NoError(t, err)
	require.Equal(t, []string{"aborted", "stalled"}, []string{entries[0].Action, entries[1].Action}, "what is refused is not in the log")
	require.Equal(t, []uint64{2, 2}, []uint64{entries[0].Revision, entries[1].Revision})
	_, err = b.Append(ctx, Change{Last: 2, Steps: []Step{{Revision: 1, State: Promoted}}})
	require.ErrorIs(t, err, ErrConflict, "it never was a canary")
	_, err = b.Append(ctx, Change{Last: 2, Steps: []Step{{Revision: 9, State: Promoted}}})
	require.ErrorIs(t, err, ErrNotFound)
}
