package quotaservice

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Calls of the front count units under keys. A call goes this way:
//
//	begin          an operation for each of its hits; over.go may know the total of one without the store
//	operationDone  the store has done one: charge, or Hit for a call with keep (operation.go), or addUp (sum.go)
//	conclude       all are done: their totals, and undo for what keep does not keep

// Counter is what calls count in: windows, under keys of a domain. Many calls use one at a time.
type Counter struct {
	domain     string
	definition *definition
}

// NewCounter returns a counter of a domain. What two counters of one name have counted under a key
// they share, in those windows that both have.
func NewCounter(domain string, name [16]byte, windows []limit.Window) (*Counter, error) {
	d, err := newDefinition(domain, &quota.Definition{Counter: name, Windows: windows, Lease: quota.LeaseOff})
	switch {
	case err != nil:
		return nil, err
	case d.holdLimit != nil:
		return nil, errors.New("a call cannot hold units: nobody says when it ends")
	case len(windows) == 0:
		return nil, errors.New("there is no window to count in")
	}
	return &Counter{domain, d}, nil
}

// Windows are those that it counts in.
func (c *Counter) Windows() []limit.Window { return c.definition.Windows }

// Hits are what a call counts under one key.
type Hits struct {
	Counter *Counter
	Key     []byte
	Units   uint32 // 0 = only look
}

// Total is how the key of some hits stands after them.
type Total struct {
	// Over says that fewer units were left than the hits have. Of a look it says that a fixed
	// window is over its limit, or that another has nothing left.
	Over   bool
	WaitNs int64 // if Over: until they would pass if nobody else calls; limit.Never
	// Remembered says that a fixed window was known to be over its limit until it ends. The hits
	// count nowhere then, and Windows say nothing of the others.
	Remembered bool
	Windows    []quota.Standing
}

// Count counts all hits of a call in one go, also those that are too many.
//
// With keep, hits that are too many count nowhere, and keep says from the totals whether the
// others stay counted. It must not wait. In a counter of one aligned window, calls with keep and
// calls without do not see each other.
func (s *Service) Count(ctx context.Context, hits []Hits, keep func([]Total) bool) ([]Total, error) {
	c := &call{service: s, keep: keep, done: make(chan struct{})}
	if err := c.begin(hits); err != nil {
		return nil, err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the quota store: %w", context.Cause(ctx))
	}
	if c.err != nil {
		return nil, fmt.Errorf("ask the quota store: %w", c.err)
	}
	return c.totals, nil
}

// call is a call that is counted: an operation for each of its hits.
type call struct {
	service    *Service
	keep       func([]Total) bool
	operations []operation
	totals     []Total
	left       int // operations that are not done
	isUndoing  bool
	err        error
	done       chan struct{}
}

// begin makes the operations, and lets them wait for their keys.
func (c *call) begin(hits []Hits) error {
	s := c.service
	c.operations, c.totals = make([]operation, len(hits)), make([]Total, len(hits))
	h := s.hashers.of(s.secret.Load())
	for i := range hits {
		c.operations[i] = c.operation(&hits[i], h.hasher)
	}
	s.hashers.pool.Put(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ctx.Err() != nil:
		return errClosed
	case s.apart.Load():
		return errOtherSecret
	}
	storeNs := s.storeNow()
	for i := range c.operations {
		o := &c.operations[i]
		if o.what == addUp {
			o.setSpan(storeNs)
		}
		if c.keep == nil && s.over.recall(o, storeNs, &c.totals[i]) {
			continue
		}
		c.left++
		s.keys.add(o)
	}
	if c.left == 0 {
		close(c.done)
		return nil
	}
	s.pump()
	return nil
}

func (c *call) operation(hits *Hits, h *hasher) operation {
	d := hits.Counter.definition
	o := operation{
		what: charge, definition: d, shifted: d.Windows, n: hits.Units,
		key: h.key(d.prefix, hits.Key), domain: hits.Counter.domain, owner: c,
	}
	switch {
	case c.keep != nil && hits.Units > 0:
		o.what, o.part.Cost = Hit, hits.Units
	case c.keep == nil && hits.Counter.isSum():
		o.what, o.span.key = addUp, o.key
	}
	return o
}

// operationDone is called for each operation that is done.
func (c *call) operationDone(o *operation) {
	if errors.Is(o.err, errEnded) && o.span.restarts < maxLate {
		o.span.restarts++
		o.err = nil
		o.setSpan(c.service.storeNow())
		c.service.keys.add(o)
		return
	}
	if o.err != nil {
		c.err = o.err
	}
	c.left--
	if c.left > 0 {
		return
	}
	if !c.isUndoing {
		c.conclude()
	}
	if c.left == 0 {
		close(c.done)
	}
}

// conclude makes the totals, and undoes what is not kept.
func (c *call) conclude() {
	for i := range c.operations {
		o := &c.operations[i]
		if c.totals[i].Remembered {
			continue
		}
		c.totals[i] = Total{Over: o.denied, WaitNs: o.waitNs, Windows: o.standings}
		c.service.over.note(o)
	}
	if c.keep == nil || c.err == nil && c.keep(c.totals) {
		return
	}
	c.isUndoing = true
	for i := range c.operations {
		if o := &c.operations[i]; o.err == nil && o.units > 0 {
			o.what, o.back = undo, o.units
			c.left++
			c.service.keys.add(o)
		}
	}
}
