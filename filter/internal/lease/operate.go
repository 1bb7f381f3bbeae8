package lease

import (
	"errors"
	"strconv"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Leased returns how many units of the subject's key this proxy held when it was checked,
// and how long until the last of them end. leases is false for a rule that leases nothing.
func Leased(s *decide.Subject) (units uint32, endsNs int64, leases bool) {
	switch e := s.Lease; {
	case s.Rule.Policy.Scope != policy.ScopeCluster || s.Unlimited:
		return 0, 0, false
	case e == nil: // it was not checked
		return 0, 0, true
	default:
		for i := range e.Grants {
			if g := &e.Grants[i]; g.Units > 0 && g.EndNs > e.NowNs {
				endsNs = max(endsNs, g.EndNs-e.NowNs)
			}
		}
		return e.Left(e.NowNs), endsNs, true
	}
}

// Refusal refuses all but leased.
func (c *Source) Refusal(name string) error {
	if name == "leased" {
		return nil
	}
	return errors.New("rule " + strconv.Quote(c.rule.Policy.Name) +
		" has scope cluster: its counters are the quota service's, which sluice counters asks without --proxy")
}

// Operate says how many units of the key this proxy may still spend.
func (c *Source) Operate(s *decide.Subject, _ string, _ int, _ uint32, now int64) (value int64, err error) {
	if s.Unlimited {
		return 0, nil
	}
	e, nowNs := &c.worker.entry, c.worker.host.Monotonic()
	if c.table.Read(e, s.Key.Bytes, now, nowNs) != state.OK {
		return 0, local.ErrStore
	}
	return int64(e.Left(nowNs)), nil
}

// Clean frees what counts nothing: where a lease holds nothing, too.
func (c *Source) Clean(now int64) (freed uint64, status state.Status) {
	if c.local != nil {
		if freed, status = c.local.Clean(now); status != state.OK {
			return freed, status
		}
	}
	leased, status := c.table.Clean(&c.worker.entry, now, c.worker.host.Monotonic())
	return freed + leased, status
}

// Stats counts the keys of the leases, and the pages of both tables: those that count here
// while the service is silent are among the leases.
func (c *Source) Stats(now int64) (s state.Stats, status state.Status) {
	var without state.Stats
	if c.local != nil {
		if without, status = c.local.Stats(now); status != state.OK {
			return s, status
		}
	}
	s, status = c.table.Stats(&c.worker.entry, now, c.worker.host.Monotonic())
	s.Pages += without.Pages
	s.Bytes += without.Bytes
	return s, status
}

// Tables are what the source leases in, and what counts in the place of a silent service,
// once it is used.
func (c *Source) Tables() []*state.Table {
	if c.local != nil && c.local.Table.Known() {
		return []*state.Table{c.table.Table(), c.local.Table}
	}
	return []*state.Table{c.table.Table()}
}

// Live counts the leases of a page that hold something, as in Stats.
func (c *Source) Live(t *state.Table, now int64, page []byte) uint64 {
	if t != c.table.Table() {
		return 0
	}
	return c.table.Live(&c.worker.entry, now, c.worker.host.Monotonic(), page)
}
