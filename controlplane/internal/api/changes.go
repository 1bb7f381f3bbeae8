package api

import (
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policydiff"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Change is what becomes of one counter, as policydiff finds it.
type Change struct {
	Counter string          `json:"counter"`
	Fate    policydiff.Fate `json:"fate"` // kept, restarted, new or vanished
	Why     string          `json:"why,omitempty"`
	Renamed string          `json:"renamed_from,omitempty"` // of a new one: what it probably was
	Windows []WindowChange  `json:"windows,omitempty"`      // of one that is kept
	Keeps   bool            `json:"keeps"`                  // all that was counted stays
	Text    string          `json:"text"`                   // the same in a line
}

// WindowChange is what becomes of one window of a counter that is kept.
type WindowChange struct {
	Per  string          `json:"per"`
	Fate policydiff.Fate `json:"fate"` // kept, new or dropped
}

// Changes compares two policies; before is nil where there was none.
func Changes(before, after *policy.Policy) []Change {
	changes := []Change{}
	for _, c := range policydiff.Between(before, after) {
		change := Change{
			Counter: c.Counter, Fate: c.Fate, Why: c.Why, Renamed: c.Renamed, Keeps: c.Keeps(), Text: c.String(),
		}
		for _, w := range c.Windows {
			change.Windows = append(change.Windows, WindowChange{Per: policy.PeriodOf(w.Window), Fate: w.Fate})
		}
		changes = append(changes, change)
	}
	return changes
}
