package quotaservice

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

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
	case d.hold != nil:
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
	now := s.storeNow()
	for i := range c.operations {
		o := &c.operations[i]
		if o.what == addUp {
			o.setSpan(now)
		}
		if c.keep == nil && s.over.recall(o, now, &c.totals[i]) {
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

// charge counts units, whatever is left. No bucket or sliding window counts more of one call than
// countClaimed lets it, so that a wrong number does not close it for long. A fixed window ends anyway.
func (o *operation) charge(s *quota.State) (changed bool) {
	if o.n == 0 {
		o.look(s)
		return false
	}
	o.judge(s, o.n)
	for i := range s.Windows {
		if s.Windows[i].IsFixed() {
			add(s, i, o.n)
			continue
		}
		one := s.Some(i, i+1)
		countClaimed(&one, o.n)
	}
	return true
}

// look finds out whether a window is over its limit, or one that cannot be has nothing left.
func (o *operation) look(s *quota.State) {
	for i := range s.Windows {
		w, of := &s.Windows[i], s.Some(i, i+1)
		isOver := of.Left(quota.Unleased) == 0
		if w.IsFixed() {
			isOver = isOver && s.StandingOf(i).Used > w.Limit
		}
		if isOver {
			o.denied, o.waitNs = true, s.WaitNs(1)
		}
	}
}

// maxOver bounds the keys that are remembered as over their limits.
const maxOver = 1 << 16

// overKeys are keys of calls that are over the limit of a fixed window. The window counts no less
// until it ends: nobody sets or resets the keys of calls.
type overKeys map[[16]byte]fullWindow

// fullWindow is the window that ends last, and when by the store's clock.
type fullWindow struct {
	limit.Window
	endNs int64
}

// recall makes the total of an operation whose key is over the limit of one of its windows.
func (k overKeys) recall(o *operation, now int64, total *Total) bool {
	over, ok := k[o.key]
	i := slices.Index(o.shifted, over.Window)
	if !ok || i < 0 || over.endNs <= now { // or the limit is another one now
		return false
	}
	left := over.endNs - now
	if left > over.LengthNs(now) { // the store's clock was set back
		return false
	}
	*total = Total{Over: true, WaitNs: left, Remembered: true, Windows: make([]quota.Standing, len(o.shifted))}
	total.Windows[i] = quota.Standing{Used: over.Limit, ResetNs: left}
	return true
}

// note remembers the key of an operation that found a fixed window over its limit.
func (k overKeys) note(o *operation) {
	if o.what != charge && o.what != addUp || o.err != nil {
		return
	}
	var last fullWindow
	for i, now := range o.standings {
		w, endNs := o.shifted[i], o.nowNs+now.ResetNs
		if w.IsFixed() && !w.Elastic && !w.Unlimited && now.Used > w.Limit && endNs > last.endNs {
			last = fullWindow{w, endNs}
		}
	}
	if last.endNs == 0 {
		return
	}
	isFull := len(k) >= maxOver
	if isFull {
		maps.DeleteFunc(k, func(_ [16]byte, over fullWindow) bool { return over.endNs <= o.nowNs })
	}
	if isFull && len(k) > maxOver/2 { // the next look for what has ended would come too soon
		clear(k)
	}
	k[o.key] = last
}

// hashers are kept for the next calls: making one costs more than using it.
type hashers struct{ pool sync.Pool }

type keptHasher struct {
	*hasher
	secret *[]byte
}

func (hs *hashers) of(secret *[]byte) *keptHasher {
	if h, ok := hs.pool.Get().(*keptHasher); ok && h.secret == secret {
		return h
	}
	return &keptHasher{newHasher(*secret), secret}
}
