// Package fleet is simulated proxies with the compiled filter and the quota service that they
// ask, all on one clock that the caller sets.
//
// Its invariant: nothing happens but what the caller does and what is due while time passes, so
// the same calls give the same verdicts. It decides nothing: every verdict is the filter's. It
// must never import the filter or the engine.
//
// There are two ways in. New, Begin and Operate are for callers that read each verdict and end requests
// themselves. NewBrief and Serve are for logs: a request and its answer in one call, reported in a few bytes.
//
// proxies.go starts proxies and brings requests to them. time.go lets time pass and ends open
// requests, report.go reads what the filter says of a request, and cluster.go has the quota service.
// operation.go does operations on counters, and brief.go serves the requests of a log.
package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Options say what Proxies are made of.
type Options struct {
	Wasm     []byte
	Proxies  int          // 0 = 1
	Workers  int          // of each proxy, 0 = 1
	Seed     uint64       // of the table's hash
	CacheDir string       // keeps the compiled filter; empty = compile anew
	Log      func(string) // gets warnings; nil: nobody does
	Quiet    bool         // verdicts are not reported
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

// Proxies are proxies with a policy, and the quota service that they ask, all at one time. Only
// one goroutine may use them.
type Proxies struct {
	hosts   []*sim.Host
	cluster *cluster

	policy *policy.Policy // in force
	leases bool           // some rule of it has scope cluster

	turn  int   // of the proxies, for requests that name none
	turns []int // of each proxy's workers

	now         int64
	lingerUntil int64        // what proxies do after the last answer has ended by then
	interrupted func() error // of the context: the user wants no more

	running map[*sim.Exchange]bool // open requests that the caller ends, see Open
	timed   []openRequest          // open requests that end at a time, the first to end first

	brief briefCounts
}

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
	if o.Log == nil {
		o.Log = func(string) {}
	}
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
