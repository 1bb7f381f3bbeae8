// Package policydiff says what becomes of counters when one policy takes the
// place of another.
//
// Its invariant: it says that a counter or a window is kept only where the filter, or the quota
// service, keeps it. It only compares: it must never import the store or a server.
package policydiff

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Fate is what becomes of a counter, or of a window in it, when one policy
// takes the place of another.
type Fate string

// What may become of a counter or a window.
const (
	Kept      Fate = "kept"
	Restarted Fate = "restarted" // counters only: of the same name, counted in another way
	New       Fate = "new"
	Vanished  Fate = "vanished" // counters only: no rule has it any more
	Dropped   Fate = "dropped"  // windows only: in a counter that is kept
)

// Change is what becomes of one counter.
type Change struct {
	Counter string         `json:"counter"`
	Fate    Fate           `json:"fate"`
	Why     string         `json:"why,omitempty"`     // of Restarted: what of its identity changed
	Windows []WindowChange `json:"windows,omitempty"` // of Kept: the new policy's windows, then the dropped ones
	Keeps   bool           `json:"keeps"`             // all that was counted stays and nothing starts empty
	Text    string         `json:"text"`              // in a line: `counter "a": capacity 9 → 8: its counters restart`

	endsBlocks bool // of Kept: only the old policy blocks keys
}

// WindowChange is what becomes of one window of a counter that is kept: Kept
// with its usage, New and empty, or Dropped.
type WindowChange struct {
	Per    string       `json:"per"`
	Fate   Fate         `json:"fate"`
	Window limit.Window `json:"-"`
}

// describe says in words what becomes of the counter and its windows.
func (c *Change) describe() {
	text := map[Fate]string{
		Kept: "kept", Restarted: c.Why + ": its counters restart", New: "is new and starts empty",
		Vanished: "no rule has it any more: its counters vanish",
	}[c.Fate]
	c.Keeps = c.Fate == Kept
	for _, w := range c.Windows {
		if w.Fate != Kept {
			c.Keeps = false
			becomes := map[Fate]string{New: " is new and starts empty", Dropped: " is dropped"}
			text += "; " + message.Window(w.Window) + becomes[w.Fate]
		}
	}
	if c.endsBlocks {
		c.Keeps = false
		text += "; its blocks end"
	}
	c.Text = fmt.Sprintf("counter %q: %s", c.Counter, text)
}

// Between compares what two policies count: the counters of the new one in
// its order, then those that vanish in the old one's. A counter is kept as long
// as its domain, name, scope and key parts stay, and the capacity of one of scope
// proxy: the store of the quota service has none. A window in it is kept as long as
// limit.Window.Same holds. Rules that are off keep their counters. An old
// policy of nil had none.
func Between(before, after *policy.Policy) []Change {
	if before == nil {
		before = &policy.Policy{}
	}
	old, was := counters(before)
	now, is := counters(after)
	changes := []Change{}
	for _, r := range now {
		c := Change{Counter: r.Counter, Fate: New}
		if other := was[r.Counter]; other != nil {
			c.Fate, c.Why = Kept, identityChange(before, other, after, r)
			if c.Why != "" {
				c.Fate = Restarted
			} else {
				c.Windows, c.endsBlocks = windowChanges(other, r), other.Block != nil && r.Block == nil
			}
		}
		changes = append(changes, c)
	}
	for _, r := range old {
		if is[r.Counter] == nil {
			changes = append(changes, Change{Counter: r.Counter, Fate: Vanished})
		}
	}
	for i := range changes {
		changes[i].describe()
	}
	return changes
}

// counters returns one rule for each counter, in order and by its name: all rules that share it
// define it the same way. A rule without limits counts nothing.
func counters(p *policy.Policy) (list []*policy.Rule, of map[string]*policy.Rule) {
	of = map[string]*policy.Rule{}
	for i := range p.Rules {
		if r := &p.Rules[i]; len(r.Limits) > 0 && of[r.Counter] == nil {
			of[r.Counter] = r
			list = append(list, r)
		}
	}
	return list, of
}

// identityChange says in words why a counter is not the one it was, or nothing.
func identityChange(before *policy.Policy, old *policy.Rule, after *policy.Policy, r *policy.Rule) string {
	var why []string
	if before.Domain != after.Domain {
		why = append(why, fmt.Sprintf("domain %q → %q", before.Domain, after.Domain))
	}
	if old.Scope != r.Scope {
		why = append(why, fmt.Sprintf("scope %s → %s", old.Scope, r.Scope))
	}
	if old.KeyDefinition() != r.KeyDefinition() {
		why = append(why, "its key has other parts")
	}
	if old.Capacity != r.Capacity && r.Scope != policy.ScopeCluster {
		why = append(why, fmt.Sprintf("capacity %d → %d", old.Capacity, r.Capacity))
	}
	return strings.Join(why, ", ")
}

func windowChanges(old, r *policy.Rule) []WindowChange {
	var list []WindowChange
	for _, w := range r.Windows() {
		fate := New
		if slices.ContainsFunc(old.Windows(), w.Same) {
			fate = Kept
		}
		list = append(list, WindowChange{policy.PeriodOf(w), fate, w})
	}
	for _, w := range old.Windows() {
		if !slices.ContainsFunc(r.Windows(), w.Same) {
			list = append(list, WindowChange{policy.PeriodOf(w), Dropped, w})
		}
	}
	return list
}
