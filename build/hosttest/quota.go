package hosttest

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Quota is a quota service whose store is a map, for tests.
type Quota struct {
	now    func() int64
	States map[[16]byte]*quota.State
	Old    bool // it is of a release that knows no levels

	asked       int
	definitions map[*QuotaStream]map[uint32]quota.Definition
	grants      map[*QuotaStream][]granted
}

type granted struct {
	state  *quota.State
	charge quota.Charge
	units  uint32
}

// QuotaStream is one stream of a worker: what the worker has sent, and what the
// service has answered.
type QuotaStream struct{ Asks, Answers [][]byte }

// NewQuota returns a service with that clock.
func NewQuota(now func() int64) *Quota {
	return &Quota{
		now: now, States: map[[16]byte]*quota.State{},
		definitions: map[*QuotaStream]map[uint32]quota.Definition{}, grants: map[*QuotaStream][]granted{},
	}
}

// Serve answers the first message of the stream.
func (s *Quota) Serve(t testing.TB, st *QuotaStream) {
	var m quota.Asks
	require.NoError(t, m.Decode(st.Asks[0]))
	st.Asks = st.Asks[1:]
	defs := s.definitions[st]
	if defs == nil {
		require.NotZero(t, m.Process, "the first message says who asks")
		defs = map[uint32]quota.Definition{}
		s.definitions[st] = defs
	}
	for _, d := range m.Definitions {
		d.Windows = slices.Clone(d.Windows)
		defs[d.ID] = d
	}
	for _, r := range m.Returns {
		g := &s.grants[st][r.Grant-1]
		back := min(r.Units, g.units)
		g.units -= back
		g.state.Roll(s.now())
		g.state.Refund(&g.charge, back, false)
	}
	answers := quota.Answers{Proxies: 2}
	s.asked += len(m.Asks)
	for _, a := range m.Asks {
		answer := quota.Answer{ID: a.ID, Result: quota.Granted}
		for _, p := range a.Parts {
			require.Contains(t, defs, p.Definition)
			if s.Old && holds(defs[p.Definition].Windows) {
				answer = quota.Answer{ID: a.ID, Result: quota.Unknown}
				break
			}
			g := s.grant(st, defs[p.Definition], p)
			if g.Denied && !p.Shadow {
				answer.Result = quota.Denied
			}
			answer.Grants = append(answer.Grants, g)
		}
		if answer.Result == quota.Denied {
			s.undo(st, &a, answer.Grants)
		}
		answers.Answers = append(answers.Answers, answer)
	}
	if len(m.Asks) > 0 {
		st.Answers = append(st.Answers, answers.Append(nil))
	}
}

// undo takes back what some parts of a denied ask were granted.
func (s *Quota) undo(st *QuotaStream, a *quota.Ask, grants []quota.Grant) {
	for i := range grants {
		g, p := &grants[i], &a.Parts[i]
		switch {
		case g.Units == 0:
			continue
		case g.Stated:
			g.Stated = s.States[p.Key].Rows.Unsay(&p.Level, g.Units)
		default:
			of := &s.grants[st][g.Number-1]
			of.state.Refund(&of.charge, of.units, true)
			of.units = 0
		}
		g.Units, g.Number, g.Leased = 0, 0, false
	}
}

func (s *Quota) grant(st *QuotaStream, d quota.Definition, p quota.Part) quota.Grant {
	if last := len(d.Windows) - 1; holds(d.Windows) {
		return s.hold(d.Windows[:last], &d.Windows[last], &p)
	}
	key := s.States[p.Key]
	if key == nil {
		fresh := quota.NewState(s.now(), d.Windows)
		key = &fresh
		s.States[p.Key] = key
	}
	key.Windows = d.Windows // those of the counter, with the limits that hold for this ask
	key.Roll(s.now())
	if p.Spent > 0 {
		key.Add(p.Spent, quota.Terms{})
	}
	units, terms, ok := key.Grant(d.Lease, &p)
	g := quota.Grant{ValidNs: key.ValidNs(terms)}
	switch {
	case p.Inspect:
	case !ok:
		g.Denied, g.WaitNs = true, max(key.WaitNs(p.Cost), terms.AgainNs-s.now())
	default:
		s.grants[st] = append(s.grants[st], granted{key, key.Add(units, terms), units})
		g.Units, g.Number, g.Leased = units, uint32(len(s.grants[st])), terms.EndNs != 0
	}
	for i := range d.Windows {
		g.Windows = append(g.Windows, key.Standing(i))
	}
	return g
}

func holds(windows []limit.Window) bool {
	return windows[len(windows)-1].Algorithm == limit.Concurrency
}

// hold notes what a worker states, and holds what it asks for.
func (s *Quota) hold(windows []limit.Window, slots *limit.Window, p *quota.Part) (g quota.Grant) {
	key := s.States[p.Key]
	if key == nil {
		fresh := quota.NewState(s.now(), windows)
		key = &fresh
		key.Rows = &quota.Rows{}
		s.States[p.Key] = key
	}
	key.Windows = windows
	key.Roll(s.now())
	if !p.Inspect {
		units, ok, _, err := key.Say(p, slots)
		if err != nil {
			return quota.Grant{Failed: true}
		}
		g.Stated, g.Units, g.ValidNs, g.Denied = true, units, slots.EighthNs(), !ok
		if !ok {
			g.WaitNs, g.Held = key.HeldWaitNs(p.Cost, slots)
		}
	}
	for i := range windows {
		g.Windows = append(g.Windows, key.Standing(i))
	}
	g.Windows = append(g.Windows, quota.Standing{Used: key.Rows.Held()})
	return g
}

// Granted is how many grants the stream got.
func (s *Quota) Granted(st *QuotaStream) int { return len(s.grants[st]) }

// Asked is how many asks the service has answered.
func (s *Quota) Asked() int { return s.asked }
