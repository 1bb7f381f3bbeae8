// Package fleet is simulated proxies with the compiled filter and the quota service that they
// ask, all on one clock that the caller sets.
//
// Its invariant: nothing happens but what the caller does and what is due while time passes, so
// the same calls give the same verdicts. It decides nothing: every verdict is the filter's. It
// must never import the filter or the engine.
//
// proxies.go lets time pass and brings requests to proxies, cluster.go has the quota service,
// operation.go does operations on counters, and brief.go serves the requests of a log.
package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// Options say what Proxies are made of.
type Options struct {
	Wasm     []byte
	Proxies  int    // 0 = 1
	Workers  int    // of each proxy, 0 = 1
	Seed     uint64 // of the table's hash
	CacheDir string // keeps the compiled filter; empty = compile anew
	Log      func(string)
	Quiet    bool // verdicts are not reported
}

// Proxies are proxies with a policy, and the quota service that they ask, all at one time. Only
// one goroutine may use them.
type Proxies struct {
	hosts   []*sim.Host
	cluster *cluster
	policy  *policy.Policy // in force
	leases  bool           // some rule of it has scope cluster
	now     int64
	turn    int   // of the proxies, for requests that name none
	turns   []int // of each proxy's workers

	running     map[*sim.Exchange]bool // open requests that the caller ends
	timed       []openRequest          // open requests that end at a time, the first to end first
	activeUntil int64                  // proxies have something to do until then, even if nothing is open
	interrupted func() error           // of the context: the user wants no more

	brief
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

// Policy is a valid policy, and the JSON of it that the filter reads.
type Policy struct {
	*policy.Policy
	json []byte
}

// ReadPolicy checks a policy file. The JSON of the policy gets the management path by which
// operations reach the filter.
func ReadPolicy(file string, data []byte) (*Policy, error) {
	p, node, _, err := policyfile.Read(file, data)
	if err != nil {
		return nil, err
	}
	_, doc := policy.SplitPlacement(node)
	doc.Fields = slices.DeleteFunc(doc.Fields, func(f policy.Field) bool { return f.Name == "manage" })
	text := policy.AppendJSON(nil, doc)
	text = append(text[:len(text)-1], `,"manage":`+manageJSON()+`}`...)
	return &Policy{p, text}, nil
}

func manageJSON() string {
	sum := sha256.Sum256([]byte(manageToken))
	return `{"path":"` + managePath + `","token_sha256":"` + hex.EncodeToString(sum[:]) + `"}`
}

// New starts proxies with a policy, at a time.
func New(ctx context.Context, o Options, first *Policy, ns int64) (*Proxies, error) {
	trace := traceReport
	if o.Quiet {
		trace = ""
	}
	return start(ctx, o, trace, first, ns)
}

func start(ctx context.Context, o Options, trace string, first *Policy, ns int64) (*Proxies, error) {
	o.Proxies, o.Workers = max(o.Proxies, 1), max(o.Workers, 1)
	p := &Proxies{
		now: ns, interrupted: ctx.Err, turns: make([]int, o.Proxies), running: map[*sim.Exchange]bool{},
	}
	var err error
	p.cluster, err = newCluster(ctx, p.Now)
	for i := 0; err == nil && i < o.Proxies; i++ {
		err = p.addProxy(ctx, &o, uint64(i), trace)
	}
	if err == nil {
		err = p.Configure(first)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (p *Proxies) addProxy(ctx context.Context, o *Options, number uint64, trace string) error {
	host, err := sim.New(ctx, sim.Options{
		Wasm: o.Wasm, Workers: o.Workers, VMID: "sluice", PluginName: "sluice", Seed: o.Seed + number<<32,
		CacheDir:   o.CacheDir,
		Now:        p.Now,
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

// Close ends the proxies.
func (p *Proxies) Close() {
	for _, host := range p.hosts {
		host.Close()
	}
}

// LastYear is the last that the proxies' clock may show. It leaves the longest window room below
// the end of 63-bit nanoseconds.
const LastYear = 2200

// IsTime reports whether the proxies' clock may show a time.
func IsTime(t time.Time) bool { return !t.Before(time.Unix(0, 0)) && t.UTC().Year() <= LastYear }

// Now is the time of the proxies, in nanoseconds since the epoch.
func (p *Proxies) Now() int64 { return p.now }

// Policy is the policy in force.
func (p *Proxies) Policy() *policy.Policy { return p.policy }

// Configure gives all proxies a policy.
func (p *Proxies) Configure(f *Policy) error {
	for _, host := range p.hosts {
		if err := host.Configure(f.json); err != nil {
			return err
		}
	}
	isOfCluster := func(r policy.Rule) bool { return r.Scope == policy.ScopeCluster }
	p.policy = f.Policy
	p.leases = slices.ContainsFunc(f.Rules, isOfCluster)
	return nil
}

// At is where a request or an operation goes.
type At struct {
	Proxy, Worker *int // from 0; nil: the next one in turn
	QuotaCut      bool // meanwhile the quota service cannot be reached
}

// Begin brings a request to the proxy and the worker that are named or whose turn it is, and on to
// the upstream, unless the proxy answers it.
func (p *Proxies) Begin(at At, r *sim.Request) (*sim.Exchange, error) {
	host, worker := p.choose(at)
	p.cluster.isCut = at.QuotaCut
	defer func() { p.cluster.isCut = false }()
	return p.bring(host, worker, r)
}

func (p *Proxies) choose(at At) (host *sim.Host, worker int) {
	proxy := inTurn(at.Proxy, &p.turn, len(p.hosts))
	host = p.hosts[proxy]
	return host, inTurn(at.Worker, &p.turns[proxy], host.Workers())
}

// inTurn is what the caller names, or the next of so many.
func inTurn(named, turn *int, of int) int {
	if named != nil {
		return *named
	}
	next := *turn
	*turn = (next + 1) % of
	return next
}

// bring takes a request to the upstream, unless the proxy answers it. While the request waits
// for the quota service, time passes.
func (p *Proxies) bring(host *sim.Host, worker int, r *sim.Request) (*sim.Exchange, error) {
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

// Pass lets time pass until ns. Proxies that lease, or whose requests are open, have ticks
// meanwhile. The time may also step back.
func (p *Proxies) Pass(ns int64) {
	busyUntil := p.activeUntil
	if p.leases {
		busyUntil = max(busyUntil, p.now+longestLeaseNs)
	}
	for p.interrupted() == nil {
		until := busyUntil
		if p.Open() > 0 {
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
		p.activeUntil = max(p.activeUntil, p.now+longestLingerNs)
	}
}

// MaxOpen bounds the requests that are open.
const MaxOpen = 100_000

// Open is how many requests are open.
func (p *Proxies) Open() int { return len(p.running) + len(p.timed) }

// Run has a request stay open until Done.
func (p *Proxies) Run(x *sim.Exchange) { p.running[x] = true }

// Done is told that the last part of the answer to a request is out, or that the request was reset.
func (p *Proxies) Done(x *sim.Exchange) {
	delete(p.running, x)
	p.activeUntil = max(p.activeUntil, p.now+longestLingerNs)
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

// Report is what the filter says of a request, for ReadVerdict.
func Report(x *sim.Exchange) []byte { return []byte(x.State()[reportState]) }

// ReportIn is Report of a request that has ended, from its response.
func ReportIn(response *sim.Response) []byte { return []byte(response.State[reportState]) }

// ReadVerdict reads what the filter said of a request or an operation, beside its response.
func ReadVerdict(report []byte, response *sim.Response) (result.Result, error) {
	var verdict result.Result
	err := json.Unmarshal(report, &verdict)
	isDecision := verdict.Allowed != nil && (*verdict.Allowed || verdict.RetryNs != nil)
	if err != nil || !isDecision && verdict.Value == nil {
		return verdict, fmt.Errorf("the filter gave no verdict, status %d: %s", response.Status, response.Details)
	}
	return verdict, nil
}

// Settled is what the filter charged for the answer to a request that has ended, as it says it:
// a list of result.Settled in JSON. It is empty if nothing was settled.
func Settled(x *sim.Exchange) (string, error) {
	settled := x.State()[settledState]
	switch {
	case settled != "" && !json.Valid([]byte(settled)):
		return "", errors.New("the filter does not say how it settled the answer: " + settled)
	case settled == "[]": // what lingers after its client has left is not settled yet
		return "", nil
	}
	return settled, nil
}

// ReadSettled reads what Settled returns.
func ReadSettled(text string) (list []result.Settled, err error) {
	err = json.Unmarshal([]byte(text), &list)
	return list, err
}

// CacheDir is where commands keep compiled filters between runs; empty if there is no such place.
func CacheDir() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	dir := filepath.Join(cache, "sluice", "compiled")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return ""
	}
	return dir
}
