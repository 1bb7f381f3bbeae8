package api

import (
	"context"
	"errors"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Change is what becomes of one counter, as policy.Restarts finds it.
type Change struct {
	Counter string         `json:"counter"`
	Fate    policy.Fate    `json:"fate"` // kept, restarted, new or vanished
	Why     string         `json:"why,omitempty"`
	Renamed string         `json:"renamed_from,omitempty"` // of a new one: what it probably was
	Windows []WindowChange `json:"windows,omitempty"`      // of one that is kept
	Keeps   bool           `json:"keeps"`                  // all that was counted stays
	Text    string         `json:"text"`                   // the same in a line
}

// WindowChange is what becomes of one window of a counter that is kept.
type WindowChange struct {
	Per  string      `json:"per"`
	Fate policy.Fate `json:"fate"` // kept, new or dropped
}

// Changes compares two policies; before is nil where there was none.
func Changes(before, after *policy.Policy) []Change {
	changes := []Change{}
	for _, c := range policy.Restarts(before, after) {
		change := Change{
			Counter: c.Counter, Fate: c.Fate, Why: c.Why, Renamed: c.Renamed, Keeps: c.Keeps(), Text: c.String(),
		}
		for _, w := range c.Windows {
			change.Windows = append(change.Windows, WindowChange{Per: policy.FormatDuration(w.Window.PeriodNs), Fate: w.Fate})
		}
		changes = append(changes, change)
	}
	return changes
}

// changes compares a revision with the one before it, which this one replaced
// whatever else was applied at the same time. The revision is stored already:
// what cannot be told is no reason to fail.
func (s *server) changes(ctx context.Context, number uint64, after *policy.Policy) []Change {
	old, err := s.store.Get(ctx, number-1)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	var before *policy.Policy
	if err == nil {
		before, _, _, err = policyfile.Read(old.File, old.YAML)
	}
	if err != nil {
		s.log.Warn("compare with the revision before", "revision", number, "error", err)
		return nil
	}
	return Changes(before, after)
}
