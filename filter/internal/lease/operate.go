package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/shared/result"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Of is what this proxy knew of the subject's key when it was checked; nil for a rule that
// leases nothing.
func Of(s *decide.Subject) *result.Lease {
	if s.Unlimited {
		return nil
	}
	h := &result.Lease{}
	if c, states := s.Rule.Source.(*Stated); states {
		if c.isSilent(s) {
			h.Silent = string(s.Rule.Policy.OnUnavailable)
		}
		return h
	}
	c, leases := s.Rule.Source.(*Source)
	if !leases {
		return nil
	}
	if e := s.Lease; e != nil { // it was checked
		for i := range e.Grants {
			if g := &e.Grants[i]; g.Units > 0 && g.EndNs > e.NowNs {
				h.EndsNs = max(h.EndsNs, g.EndNs-e.NowNs)
			}
		}
		if h.Units = e.Left(e.NowNs); c.isSilent(e) {
			h.Silent = string(s.Rule.Policy.OnUnavailable)
		}
	}
	return h
}

// Operate says how many units of the key this proxy may still spend. While the service is
// silent, the subject has what this proxy has counted by itself.
func (c *Source) Operate(s *decide.Subject, _ string, _ int, _ uint32, now int64) (value int64, err error) {
	if s.Unlimited {
		return 0, nil
	}
	e := new(state.LeaseEntry)
	s.Lease, e.NowNs = e, c.worker.host.Monotonic()
	if c.table.Read(e, c.keyOf(s), now, e.NowNs) != state.OK {
		return 0, local.ErrStore
	}
	if c.isSilent(e) && c.checkLocal(s, now) == decide.Failed {
		return 0, local.ErrStore
	}
	return int64(e.Left(e.NowNs)) + c.leftSaid(s, now), nil
}

// Tables are what the source leases in, and what counts in the place of a silent service: of keys
// that are among the leases.
func (c *Source) Tables() []decide.Table {
	t := c.table.Table()
	return append([]decide.Table{{Table: t, Rule: t.Windows(), Entry: &c.worker.visitor}}, c.asking.Tables()...)
}
