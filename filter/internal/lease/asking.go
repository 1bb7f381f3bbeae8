package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// asking is what the sources of rules that ask the service have in common.
type asking struct {
	worker *Worker
	rule   *decide.Rule
	local  *local.Source // counts while the service is silent, if on_unavailable is local
	first  uint32        // the definition of the rule's own limits; those of its overrides follow

	// Of the subject that was checked last:
	from from
	got  *Part // what the service has said to its request, if that has waited

	key    []byte         // of keyOf
	shares []limit.Window // this proxy's share of the limits
}

// asks is a source of a rule that asks the service.
type asks interface {
	decide.Source
	part(s *decide.Subject, cost uint32) Part
}

// from says where a subject takes its units.
type from uint8

const (
	nowhere from = iota
	ownGrant
	leaseTable
	localTable
)

// alone decides a request without the service. none is for one that nothing decides, and while the
// quota store is starting also for one that waits for this proxy's share.
func (c *asking) alone(s *decide.Subject, now int64, none decide.Outcome) decide.Outcome {
	found := c.checkLocal(s, now)
	switch {
	case found == decide.Silent, found == decide.HeldBack && none == decide.Starting:
		return none
	case c.from == localTable:
		c.rule.Metrics.Unavailable++
	}
	return found
}

// forNothing decides about a cost of 0, which asks for nothing: only a limit of 0 denies it.
func forNothing(s *decide.Subject, now int64) decide.Outcome {
	if limit.Shut(s.Windows) {
		s.PassNs = limit.Never
		return decide.Denied
	}
	s.PassNs = now
	return decide.Granted
}

// checkLocal decides by what this proxy has counted while the service was silent.
func (c *asking) checkLocal(s *decide.Subject, now int64) decide.Outcome {
	if c.local == nil {
		return decide.Silent
	}
	s.Limits.Windows = c.share(s)
	found := c.local.Check(s, now)
	if found != decide.Failed {
		c.from = localTable
	}
	return found
}

// share is what one proxy may admit without the service: the limits, divided by
// the number of proxies.
func (c *asking) share(s *decide.Subject) []limit.Window {
	proxies := max(c.worker.tables.Proxies(), 1)
	c.shares = append(c.shares[:0], s.Windows...)
	for i := range c.shares {
		w := &c.shares[i]
		if w.Limit > 0 {
			w.Limit = max(1, w.Limit/proxies)
		}
		if w.Burst > 0 {
			w.Burst = max(1, w.Burst/proxies)
		}
	}
	return c.shares
}

// Persist does nothing: what is held has no record, and a lease of another epoch of the clock is
// dropped where it is read.
func (*asking) Persist(*decide.Subject) {}

// Tables are where the proxy counts without the service.
func (c *asking) Tables() []decide.Table {
	if c.local == nil {
		return nil
	}
	return c.local.Tables()
}
