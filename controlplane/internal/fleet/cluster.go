package fleet

import (
	"context"
	"slices"

	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// cluster is the quota service that all simulated proxies ask. It has a store in
// memory, and its clock is the simulation's, so it answers at once.
type cluster struct {
	service *quotaservice.Service
	now     func() int64
	timers  []timer
	isCut   bool // the service cannot be reached
}

type timer struct {
	ns int64
	do func()
}

func newCluster(ctx context.Context, now func() int64) (*cluster, error) {
	c := &cluster{now: now}
	secret := make([]byte, 32) // nobody reads the store
	var err error
	c.service, err = quotaservice.NewService(ctx, quotaservice.Options{
		Store: swapstore.NewMemory(now).Aged(), Clock: c, Secret: secret,
	})
	return c, err
}

// NowNs implements quotaservice.Clock.
func (c *cluster) NowNs() int64 { return c.now() }

// AfterFunc implements quotaservice.Clock.
func (c *cluster) AfterFunc(ns int64, f func()) { c.timers = append(c.timers, timer{c.now() + ns, f}) }

// doDue runs the timers that are over.
func (c *cluster) doDue() {
	for i := 0; i < len(c.timers); {
		if t := c.timers[i]; t.ns <= c.now() {
			c.timers = slices.Delete(c.timers, i, i+1)
			t.do()
			continue
		}
		i++
	}
}

// nextDue returns when the first timer is over.
func (c *cluster) nextDue() (ns int64, ok bool) {
	for _, t := range c.timers {
		if !ok || t.ns < ns {
			ns = t.ns
			ok = true
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
	if c.isCut {
		p.breakOff()
		return p, nil
	}
	var err error
	p.stream, err = c.service.Open(quotaservice.Peer{Address: "simulated"}, p.deliver)
	return p, err
}

// breakOff ends the stream as a broken connection does.
func (p *caller) breakOff() {
	const unavailable = 14
	p.inbox.Close(0, unavailable)
}

// deliver brings the filter what the service has said.
func (p *caller) deliver() {
	for {
		message, ok := p.stream.Next()
		if !ok {
			return
		}
		p.inbox.Message(0, message)
		p.stream.Sent()
	}
}

func (p *caller) Send(message []byte) {
	if p.stream == nil {
		return
	}
	if p.cluster.isCut {
		p.breakOff()
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
