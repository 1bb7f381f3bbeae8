package fleet

import (
	"context"
	"errors"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// briefCounts are what Proxies count that serve the requests of a log.
type briefCounts struct {
	unticked int // requests since the last tick
	hurried  int // requests whose answers came early, because too many ran at once
}

// usageDetails are the details of the filter's answer to a client that asks for its usage.
const usageDetails = "sluice_usage"

// requestsPerTick is how many requests go without the tick that collects garbage and
// publishes metrics. In a log of a day nearly each request would have one of its own.
const requestsPerTick = 1 << 12

// NewBrief starts proxies with one worker each, for Serve, with a policy at an instant.
func NewBrief(ctx context.Context, o Options, name string, text []byte, ns int64) (*Proxies, error) {
	p, node, _, err := policyfile.Read(name, text)
	if err != nil {
		return nil, err
	}
	o.Workers = 1
	return start(ctx, o, traceBrief, &Policy{p, policy.PushedJSON(node)}, ns)
}

// Hurried is how many answers came early, because too many requests ran at once.
func (p *Proxies) Hurried() int { return p.brief.hurried }

// Counted returns what the proxies together have counted of a rule's metric.
func (p *Proxies) Counted(rule, metric string) (n uint64, err error) {
	for _, host := range p.hosts {
		if err := host.Tick(0); err != nil { // publishes
			return 0, err
		}
		n += host.Metrics()[counterName(rule, metric)]
	}
	return n, nil
}

// counterName is the filter's name of a rule's counter, such as
//
//	rule=.=per-user;.;rate_limit_evicted_total
//
// Envoy makes the part before ;.; a label.
func counterName(rule, metric string) string {
	return "rule=.=" + rule + ";.;rate_limit_" + metric + "_total"
}

// Serve takes a request through the next proxy in turn. It happens at ns, or at the time of the request
// before it if that is later. Once tookNs are over, the upstream gives the answer; if there is none, the
// client leaves. The briefs are what result.CutBrief reads. They are empty if no rule matched.
func (p *Proxies) Serve(
	ns int64, r *sim.Request, answer *sim.Response, tookNs int64,
) (briefs string, isDenied bool, err error) {
	p.Pass(max(ns, p.now))
	p.brief.unticked++
	if p.brief.unticked == requestsPerTick {
		p.brief.unticked = 0
		p.doDue()
	}
	host := p.hosts[inTurn(nil, &p.turn, len(p.hosts))]
	x, err := p.bring(host, 0, r)
	if err != nil {
		return "", false, err
	}
	o := openRequest{x, p.now + tookNs, answer}
	briefs = x.State()[briefState]
	if tookNs > 0 && briefs != "" && !x.Ended() {
		p.keepOrHurry(o)
		return briefs, false, host.Failed(0)
	}
	return finish(host, &o)
}

// keepOrHurry keeps a request open. If too many are open, the first of them to end ends early.
func (p *Proxies) keepOrHurry(o openRequest) {
	if len(p.timed) == MaxOpen { // Serve alone keeps requests open here
		_ = p.timed[0].end()
		p.timed = p.timed[1:]
		p.brief.hurried++
	}
	p.keepUntil(o)
}

// finish ends a request now, and returns what the filter said of it.
func finish(host *sim.Host, o *openRequest) (briefs string, isDenied bool, err error) {
	ended := o.x.Ended() // the proxy answered it
	if err := o.end(); err != nil {
		return "", false, err
	}
	response, err := o.x.Finish()
	if err != nil {
		return "", false, err
	}
	if err := host.Failed(0); err != nil {
		return "", false, err
	}
	briefs, isReported := response.State[briefState]
	if ended && !isReported && strings.HasPrefix(response.Details, "rate_limited") {
		return "", false, errors.New("this filter cannot report in brief: it is older than this program")
	}
	return briefs, ended && isReported && response.Details != usageDetails, nil
}
