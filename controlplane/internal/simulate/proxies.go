package simulate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"sort"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// proxies are proxies with a policy, and the quota service that they ask, all at one time.
type proxies struct {
	hosts   []*sim.Host
	cluster *cluster
	policy  *policy.Policy // in force
	leases  bool           // some rule of it has scope cluster
	now     int64

	byLines     map[string]*sim.Exchange // requests whose answers are on lines still to come, by id
	timed       []openRequest            // open requests that end at a time, the first to end first
	activeUntil int64                    // proxies have something to do until then, even if nothing is open
	interrupted func() error             // of the context: the user wants no more
}

// The properties by which the filter is told how to report, and in which it does.
const (
	traceProperty = "sluice.trace"
	traceReport   = "1"
	traceBrief    = "brief"

	reportState  = "sluice.report"  // a verdict
	briefState   = "sluice.brief"   // a verdict in brief
	settledState = "sluice.settled" // what was charged for an answer
)

// The path and token by which operations reach the filter.
const (
	managePath  = "/.sluice-simulate/"
	manageToken = "simulate"
)

// policyFile is a valid policy and the JSON that the filter reads.
type policyFile struct {
	policy *policy.Policy
	json   []byte
}

// readPolicy checks a policy file. The JSON of the policy gets the management path by which
// operations reach the filter.
func readPolicy(file string, data []byte) (*policyFile, error) {
	p, node, _, err := policyfile.Read(file, data)
	if err != nil {
		return nil, err
	}
	_, doc := policy.SplitPlacement(node)
	doc.Fields = slices.DeleteFunc(doc.Fields, func(f policy.Field) bool { return f.Name == "manage" })
	text := policy.AppendJSON(nil, doc)
	text = append(text[:len(text)-1], `,"manage":`+manageJSON()+`}`...)
	return &policyFile{p, text}, nil
}

func manageJSON() string {
	sum := sha256.Sum256([]byte(manageToken))
	return `{"path":"` + managePath + `","token_sha256":"` + hex.EncodeToString(sum[:]) + `"}`
}

// start makes the proxies with a policy, at a time.
func (p *proxies) start(ctx context.Context, o *Options, trace string, first *policyFile, ns int64) (err error) {
	p.now = ns
	p.interrupted = ctx.Err
	p.byLines = map[string]*sim.Exchange{}
	p.cluster, err = newCluster(ctx, func() int64 { return p.now })
	if err != nil {
		return err
	}
	for i := range max(o.Proxies, 1) {
		if err := p.addProxy(ctx, o, uint64(i), trace); err != nil {
			return err
		}
	}
	return p.configure(first)
}

func (p *proxies) addProxy(ctx context.Context, o *Options, number uint64, trace string) error {
	host, err := sim.New(ctx, sim.Options{
		Wasm: o.Wasm, Workers: o.Workers, VMID: "sluice", PluginName: "sluice", Seed: o.Seed + number<<32,
		CacheDir:   o.CacheDir,
		Now:        func() int64 { return p.now },
		Properties: map[string][]byte{traceProperty: []byte(trace)},
		Dial:       p.cluster.dial,
		LogLevel:   sim.Warn,
		Log: func(_ sim.Level, vm int, message string) {
			if vm != sim.Trial {
				o.Log(message)
			}
		},
	})
	if err != nil {
		return err
	}
	p.hosts = append(p.hosts, host)
	return nil
}

func (p *proxies) close() {
	for _, host := range p.hosts {
		host.Close()
	}
}

// configure gives all proxies a policy.
func (p *proxies) configure(f *policyFile) error {
	for _, host := range p.hosts {
		if err := host.Configure(f.json); err != nil {
			return err
		}
	}
	isOfCluster := func(r policy.Rule) bool { return r.Scope == policy.ScopeCluster }
	p.policy = f.policy
	p.leases = slices.ContainsFunc(f.policy.Rules, isOfCluster)
	return nil
}

// bring takes a request to the upstream, unless the proxy answers it. While the request waits
// for the quota service, time passes.
func (p *proxies) bring(host *sim.Host, worker int, r *sim.Request) (*sim.Exchange, error) {
	x, err := host.Start(worker, r)
	if err != nil {
		return nil, err
	}
	for x.Paused() {
		next, ok := p.nextDue()
		if !ok {
			return nil, errors.New("a request waits for what never happens")
		}
		p.now = max(p.now, next)
		p.doDue()
	}
	return x, nil
}

// How long a proxy may have something to do after its last request, to return what it has
// leased, and after its last answer.
const (
	longestLeaseNs  = int64(12 * time.Second)
	longestLingerNs = int64(time.Minute + 2*time.Second)
)

// pass lets time pass until ns. Proxies that lease, or whose requests are open, have ticks
// meanwhile.
func (p *proxies) pass(ns int64) {
	busyUntil := p.activeUntil
	if p.leases {
		busyUntil = max(busyUntil, p.now+longestLeaseNs)
	}
	for p.interrupted() == nil {
		until := busyUntil
		if p.openRequests() > 0 {
			until = ns
		}
		next, ok := p.nextDue()
		if !ok || next > min(ns, until) {
			break
		}
		p.now = max(p.now, next)
		p.doDue()
	}
	p.now = ns
}

// nextDue returns when something happens next without a request.
func (p *proxies) nextDue() (ns int64, ok bool) {
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
func (p *proxies) doDue() {
	p.cluster.doDue()
	for _, host := range p.hosts {
		host.TickDue()
	}
	for len(p.timed) > 0 && p.timed[0].untilNs <= p.now {
		_ = p.timed[0].end() // a request that has ended stays as it is
		p.timed = p.timed[1:]
		p.activeUntil = max(p.activeUntil, p.now+longestLingerNs)
	}
}

// maxOpen bounds the requests that are open.
const maxOpen = 100_000

// openRequests is how many requests are open.
func (p *proxies) openRequests() int { return len(p.byLines) + len(p.timed) }

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
func (p *proxies) keepUntil(o openRequest) {
	at := sort.Search(len(p.timed), func(i int) bool { return p.timed[i].untilNs > o.untilNs })
	p.timed = slices.Insert(p.timed, at, o)
}
