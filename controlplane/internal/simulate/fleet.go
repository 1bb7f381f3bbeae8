package simulate

import (
	"context"
	"errors"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Fleet is a number of proxies with one worker each, and the quota service that they
// ask, all at the time of the newest request. Only one goroutine may use it.
type Fleet struct {
	proxies
	turn     int // of the proxies
	unticked int // requests since the last tick

	Hurried int // requests whose answers came early, because too many ran at once
}

// requestsPerTick is how many requests go without the tick that collects garbage and
// publishes metrics. In a log of a day nearly each request would have one of its own.
const requestsPerTick = 1 << 12

// NewFleet starts proxies with a policy at an instant. Of the options it needs Wasm,
// Proxies, Seed, CacheDir and Log.
func NewFleet(ctx context.Context, o Options, name string, text []byte, ns int64) (*Fleet, error) {
	p, node, _, err := policyfile.Read(name, text)
	if err != nil {
		return nil, err
	}
	f := &Fleet{}
	o.Workers = 1
	if err := f.start(ctx, &o, traceBrief, &policyFile{p, policy.PushedJSON(node)}, ns); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Close ends the proxies.
func (f *Fleet) Close() { f.close() }

// Counted returns what the proxies together have counted of a rule's metric.
func (f *Fleet) Counted(rule, metric string) (n uint64, err error) {
	for _, host := range f.hosts {
		if err := host.Tick(0); err != nil { // publishes
			return 0, err
		}
		n += host.Metrics()["rule=.="+rule+";.;rate_limit_"+metric+"_total"]
	}
	return n, nil
}

// Serve takes a request through the next proxy in turn. It happens at ns, or at the time of the request
// before it if that is later. Once tookNs are over, the upstream gives the answer; if there is none, the
// client leaves. The briefs are what result.CutBrief reads. They are empty if no rule matched.
func (f *Fleet) Serve(
	ns int64, r *sim.Request, answer *sim.Response, tookNs int64,
) (briefs string, isDenied bool, err error) {
	f.pass(max(ns, f.now))
	f.unticked++
	if f.unticked == requestsPerTick {
		f.unticked = 0
		f.doDue()
	}
	host := f.hosts[f.turn]
	f.turn = (f.turn + 1) % len(f.hosts)
	x, err := f.bring(host, 0, r)
	if err != nil {
		return "", false, err
	}
	o := openRequest{x, f.now + tookNs, answer}
	briefs = x.State()[briefState]
	if tookNs > 0 && briefs != "" && !x.Ended() {
		f.keepOrHurry(o)
		return briefs, false, host.Failed(0)
	}
	return finish(host, &o)
}

// keepOrHurry keeps a request open. If too many are open, the first of them to end ends early.
func (f *Fleet) keepOrHurry(o openRequest) {
	if len(f.timed) == maxOpen {
		_ = f.timed[0].end()
		f.timed = f.timed[1:]
		f.Hurried++
	}
	f.keepUntil(o)
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
	return briefs, ended && isReported, nil
}
