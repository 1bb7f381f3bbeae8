package fleet

import (
	"encoding/json"
	"slices"
	"sort"
	"time"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// LastYear is the last that the proxies' clock may show. It leaves the longest window room below
// the end of 63-bit nanoseconds.
const LastYear = 2200

// IsTime reports whether the proxies' clock may show a time.
func IsTime(t time.Time) bool { return !t.Before(time.Unix(0, 0)) && t.UTC().Year() <= LastYear }

// Now is the time of the proxies, in nanoseconds since the epoch.
func (p *Proxies) Now() int64 { return p.now }

// How long a proxy may still have something to do.
const (
	longestLeaseNs  = int64(12 * time.Second)            // after its last request: it returns what it has leased
	longestLingerNs = int64(time.Minute + 2*time.Second) // after its last answer
)

// Pass lets time pass until ns. Proxies that may have something to do have ticks meanwhile; while
// they have nothing to do, time jumps. It may also step back.
//
//	now                                              ns
//	|------------------------------------------------|  ticks while requests are open
//	|------ 12 s ------|                                ticks if rules lease: a request may have come just now
//	|------------ lingerUntil                           ticks until 62 s after the last answer
//	|                                                   no ticks: the proxies are idle
func (p *Proxies) Pass(ns int64) {
	idleFrom := p.lingerUntil
	if p.leases {
		idleFrom = max(idleFrom, p.now+longestLeaseNs)
	}
	for p.interrupted() == nil {
		ticksUntil := min(ns, idleFrom)
		if p.Open() > 0 {
			ticksUntil = ns
		}
		next, ok := p.nextDue()
		if !ok || next > ticksUntil {
			break
		}
		p.now = max(p.now, next)
		p.doDue()
	}
	p.now = ns
}

// nextDue returns when something happens next without a request.
func (p *Proxies) nextDue() (ns int64, ok bool) {
	ns, ok = p.cluster.nextDue()
	earlier := func(at int64, has bool) {
		if has && (!ok || at < ns) {
			ns = at
			ok = true
		}
	}
	if len(p.timed) > 0 {
		earlier(p.timed[0].untilNs, true)
	}
	for _, host := range p.hosts {
		earlier(host.Next())
	}
	return ns, ok
}

// doDue does what is due now.
func (p *Proxies) doDue() {
	p.cluster.doDue()
	for _, host := range p.hosts {
		host.TickDue()
	}
	for len(p.timed) > 0 && p.timed[0].untilNs <= p.now {
		_ = p.timed[0].end() // a request that has ended stays as it is
		p.timed = p.timed[1:]
		p.lingerUntil = max(p.lingerUntil, p.now+longestLingerNs)
	}
}

// MaxOpen is how many requests may be open. Serve keeps to it. For Run and RunForHold the caller compares
// Open with it: simulate does, package policytest lets a test have as many as it starts.
const MaxOpen = 100_000

// Open is how many requests are open. A request stays open in one of three ways:
//
//	by          its answer                 it ends                                    at MaxOpen
//	Run         the caller has it          when the caller ends it, and says Done     as the caller says
//	RunForHold  nobody knows it            when no rule holds units of it any more:   as the caller says
//	                                       then its client leaves
//	Serve       a log has it and its time  at that time                               the first to end ends early
func (p *Proxies) Open() int { return len(p.running) + len(p.timed) }

// Run has a request stay open until Done.
func (p *Proxies) Run(x *sim.Exchange) { p.running[x] = true }

// Done is told that the last part of the answer to a request is out, or that the request was reset.
func (p *Proxies) Done(x *sim.Exchange) {
	delete(p.running, x)
	p.lingerUntil = max(p.lingerUntil, p.now+longestLingerNs)
}

// openRequest is a request that ends at a time: the upstream answers it, or its client leaves.
type openRequest struct {
	x       *sim.Exchange
	untilNs int64
	answer  *sim.Response // nil: the client leaves
}

// end ends the request.
func (o *openRequest) end() error {
	if o.answer == nil {
		return o.x.Reset(sim.ClientGone)
	}
	_, err := o.x.Answer(o.answer, true)
	return err
}

// keepUntil keeps a request open until its time.
func (p *Proxies) keepUntil(o openRequest) {
	at := sort.Search(len(p.timed), func(i int) bool { return p.timed[i].untilNs > o.untilNs })
	p.timed = slices.Insert(p.timed, at, o)
}

// RunForHold keeps an open request for as long as rules hold units for it without a sign of life;
// its client leaves then. It reports whether any rule holds.
func (p *Proxies) RunForHold(x *sim.Exchange) bool {
	ns := p.holdOf(Report(x))
	if ns > 0 {
		p.keepUntil(openRequest{x: x, untilNs: p.now + ns})
	}
	return ns > 0
}

// holdOf is how long the rules of a verdict hold units.
func (p *Proxies) holdOf(report []byte) (ns int64) {
	var verdict result.Result
	if json.Unmarshal(report, &verdict) != nil {
		return 0 // ReadVerdict says so
	}
	for _, matched := range verdict.Rules {
		for i := range p.policy.Rules {
			if r := &p.policy.Rules[i]; r.Name == matched.Rule {
				ns = max(ns, r.HoldNs)
			}
		}
	}
	return ns
}
