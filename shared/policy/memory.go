package policy

import (
	"github.com/sluice-ratelimit/sluice/shared/automaton"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Memory is how many keys a policy counts at a time, and the most memory that
// takes in one Envoy.
type Memory struct {
	Counters int    // counters of rules that are not off
	Keys     uint64 // live keys at which a newcomer still finds a slot
	Slots    uint64 // keys that fit at the very most
	Bytes    uint64 // of all tables full
	// VanishedBytes is what tables of counters that no policy has any more may
	// take beside them until their windows have ended, after renames.
	VanishedBytes uint64
	// ExpressionBytes is what the tables of regular expressions take in each
	// worker, beside.
	ExpressionBytes uint64
}

// warnBytes is how much memory a policy may use in one Envoy before Read warns.
const warnBytes = 64 << 20

// expressionBytes is the most that a worker's memory grows by for the regular
// expressions: their tables as often as the garbage collector lets memory outgrow
// what is used, and what it takes to make them, until that is collected.
func (p *Policy) expressionBytes() uint64 {
	seen, tables := map[*automaton.Automaton]bool{nil: true}, 0
	add := func(p Pattern) {
		if !seen[p.Automaton] {
			seen[p.Automaton] = true
			tables += p.Automaton.Bytes()
		}
	}
	for i := range p.Rules {
		r := &p.Rules[i]
		for _, m := range append([]Match{r.Match}, r.Exempt...) {
			for _, path := range m.Paths {
				add(path)
			}
			for _, h := range m.Headers {
				add(h.Value)
			}
		}
		for _, o := range r.Overrides {
			for _, part := range o.Key {
				add(part)
			}
		}
	}
	const making, collected = 256 << 10, 8 << 20
	return uint64(3*tables + min((len(seen)-1)*making, collected))
}

func (m *Memory) warning() string {
	return "counters for " + itoa(int64(m.Keys)) + " live keys take up to " + itoa(int64(m.Bytes>>20)) +
		" MiB in each Envoy: lower capacity if fewer keys are live at a time"
}

// Memory returns what the policy's counters take.
func (p *Policy) Memory() Memory {
	var m Memory
	largest := uint64(0)
	seen := map[string]bool{}
	for i := range p.Rules {
		r := &p.Rules[i]
		if r.Mode == ModeOff || len(r.Limits) == 0 || seen[r.Counter] {
			continue
		}
		seen[r.Counter] = true
		windows := r.Windows()
		bytes := state.HostBytes(windows, r.Capacity)
		m.Counters++
		m.Keys += uint64(r.Capacity)
		m.Slots += state.GeometryFor(windows, r.Capacity).TotalSlots()
		m.Bytes += bytes
		largest = max(largest, bytes)
	}
	m.ExpressionBytes = p.expressionBytes()
	m.VanishedBytes = state.WaitingTables * largest
	return m
}
