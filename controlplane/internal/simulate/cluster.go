package simulate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/counters"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// failQuota is the fault of a line during which the quota service cannot be
// reached.
const failQuota = "quota"

// cluster is the quota service that all simulated proxies ask. It has a store in
// memory, and its clock is the simulation's, so it answers at once.
type cluster struct {
	service *quotaservice.Service
	now     func() int64
	timers  []timer
	cut     bool // the service cannot be reached
}

type timer struct {
	ns int64
	do func()
}

func newCluster(ctx context.Context, now func() int64) (*cluster, error) {
	c := &cluster{now: now}
	secret := make([]byte, 32) // nobody reads the store
	service, err := quotaservice.NewService(ctx, quotaservice.Options{Store: quotaservice.NewMemory(now).Aged(), Clock: c, Secret: secret})
	c.service = service
	return c, err
}

// NowNs implements quota.Clock.
func (c *cluster) NowNs() int64 { return c.now() }

// AfterFunc implements quota.Clock.
func (c *cluster) AfterFunc(ns int64, f func()) { c.timers = append(c.timers, timer{c.now() + ns, f}) }

// due runs the timers that are over.
func (c *cluster) due() {
	for i := 0; i < len(c.timers); {
		if t := c.timers[i]; t.ns <= c.now() {
			c.timers = slices.Delete(c.timers, i, i+1)
			t.do()
			continue
		}
		i++
	}
}

// next returns when the first timer is over.
func (c *cluster) next() (ns int64, ok bool) {
	for _, t := range c.timers {
		if !ok || t.ns < ns {
			ns, ok = t.ns, true
		}
	}
	return ns, ok
}

// caller is a filter's stream to the service.
type caller struct {
	cluster *cluster
	inbox   *sim.Inbox
	stream  *quotaservice.Stream
}

func (c *cluster) dial(_ sim.Call, in *sim.Inbox) (sim.Peer, error) {
	p := &caller{cluster: c, inbox: in}
	if c.cut {
		p.lost()
		return p, nil
	}
	var err error
	p.stream, err = c.service.Open(quotaservice.Peer{Address: "simulated"}, p.answer)
	return p, err
}

// lost ends the stream as a broken connection does.
func (p *caller) lost() {
	const unavailable = 14
	p.inbox.Close(0, unavailable)
}

// answer brings what the service has said.
func (p *caller) answer() {
	for {
		message, ok := p.stream.Next()
		if !ok {
			return
		}
		p.inbox.Message(0, message)
	}
}

func (p *caller) Send(message []byte) {
	if p.stream == nil {
		return
	}
	if p.cluster.cut {
		p.lost()
		p.Cancel()
		return
	}
	if err := p.stream.Receive(message); err != nil {
		p.inbox.Close(0, uint32(status.Code(err)))
		p.Cancel()
	}
}

func (p *caller) CloseSend() { p.Cancel() }

func (p *caller) Cancel() {
	if p.stream != nil {
		p.stream.Close()
		p.stream = nil
	}
}

// operate has the quota service do an operation, and asks the line's proxy, or all,
// what they hold of the key.
func (s *simulation) operate(l *line, on counters.Operation, o *output) error {
	if l.Fail != "" {
		return fmt.Errorf("fail: rule %q has scope cluster: no proxy is between op %s and the quota service", on.Rule, l.Op)
	}
	prepared, err := counters.Prepare(s.policy, on)
	if err != nil {
		return fmt.Errorf("op %s: %w", l.Op, err)
	}
	if o.answer, err = prepared.Do(context.Background(), s.cluster.service); err != nil {
		return fmt.Errorf("op %s: %w", l.Op, err)
	}
	o.leased = new(int64)
	for i, host := range s.hosts {
		if l.Proxy != nil && *l.Proxy != i {
			continue
		}
		asked := line{Op: manage.Leased.Wire, Rule: on.Rule, Key: on.Key}
		response, err := host.Serve(0, asked.toRequest())
		if err != nil {
			return err
		}
		held, ok := manage.ReadAnswer(manage.Leased, response.Body)
		if !ok {
			return fmt.Errorf("op %s: %s", asked.Op, response.Body)
		}
		*o.leased += *held.Value
	}
	return nil
}

// longestLeaseNs is how long a proxy may have something to do after its last
// request: to return what it has leased.
const longestLeaseNs = 12_000_000_000

// pass lets time pass until ns. Proxies that lease, or whose requests wait for answers,
// have ticks meanwhile.
func (s *simulation) pass(ns int64) {
	busy := s.activeUntil
	if s.leases {
		busy = max(busy, s.now+longestLeaseNs)
	}
	for s.interrupted() == nil {
		until := busy
		if len(s.open)+len(s.holding) > 0 {
			until = ns
		}
		next, ok := s.next()
		if !ok || next > min(ns, until) {
			break
		}
		s.now = max(s.now, next)
		s.happen()
	}
	s.now = ns
}

// next returns when something happens next without a request.
func (s *simulation) next() (ns int64, ok bool) {
	ns, ok = s.cluster.next()
	earlier := func(at int64, has bool) {
		if has && (!ok || at < ns) {
			ns, ok = at, true
		}
	}
	if len(s.holding) > 0 {
		earlier(s.holding[0].untilNs, true)
	}
	for _, host := range s.hosts {
		earlier(host.Next())
	}
	return ns, ok
}

// happen does what is due.
func (s *simulation) happen() {
	s.cluster.due()
	for _, host := range s.hosts {
		host.TickDue()
	}
	s.release()
}

// begin takes a request to the upstream, unless the proxy answers. While it waits for the
// quota service, time passes.
func (s *simulation) begin(host *sim.Host, worker int, r *sim.Request) (*sim.Exchange, error) {
	x, err := host.Start(worker, r)
	if err != nil {
		return nil, err
	}
	for x.Paused() {
		next, ok := s.next()
		if !ok {
			return nil, errors.New("a request waits for what never happens")
		}
		s.now = max(s.now, next)
		s.happen()
	}
	return x, nil
}
