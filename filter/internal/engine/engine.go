// Package engine puts a policy's rooms together: it finds the rules that a request matches
// (package rules), has them decide (package decide) by their sources of units (packages
// local and lease), and carries out operations on counters.
//
// Its invariant: a call leaves nothing behind but counters in shared data and metrics. It
// knows the proxy as the small Host interface only. It must never import the proxy-wasm
// SDK, unsafe, or a clock.
//
// This file has the life of an engine and of a request in it, operate.go the operations, denials.go which
// keys are denied most, metrics.go what is counted, and surveyor.go what tables take.
package engine

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/denials"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/filter/internal/local"
	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/filter/internal/rules"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Host is what the engine needs of the proxy while it handles one request.
// Strings and bytes it returns are valid until the request's callback ends.
type Host interface {
	state.Store
	request.Source

	// Monotonic returns nanoseconds of a clock that no one sets, from any instant on.
	Monotonic() int64
	// Counted returns what all workers have counted of a rule's metric, as of the last time each
	// published its metrics.
	Counted(domain, rule, metric string) uint64
}

// Identity identifies a configuration's counters, together with the policy.
type Identity struct {
	Owner        uint64       // of the tables; see state.OwnerID
	SplitOwner   uint64       // of the tables once Split has found another policy under the filter's name
	ConfiguredNs int64        // when the configuration was made
	Random       func([]byte) // fills in unguessable bytes
}

// Engine decides requests under one policy. It serves one worker: a call
// overwrites what the call before it returned.
type Engine struct {
	host   Host
	id     Identity
	policy *policy.Policy
	rules  *rules.Rules
	tables *state.Tables

	verdict *decide.Verdict
	idle    []*decide.Verdict
	looked  decide.Subject // memory for AppendUsage
	scratch state.Scratch

	// Cluster is what the rules of scope cluster have in common. The host makes a talk.Client
	// of it, which writes its Service.
	Cluster *lease.Worker

	denials *denials.Worker

	surveyor surveyor
}

// New compiles a policy. It neither reads nor writes shared data.
func New(p *policy.Policy, host Host, id Identity) *Engine {
	tables := state.NewTables(host, id.Random, id.Owner, id.ConfiguredNs)
	tables.SetSplitOwner(id.SplitOwner)
	return compile(p, host, id, tables)
}

func compile(p *policy.Policy, host Host, id Identity, tables *state.Tables) *Engine {
	e := &Engine{
		host: host, id: id, policy: p, rules: rules.New(p, host), tables: tables, verdict: &decide.Verdict{},
		Cluster: lease.NewWorker(host, tables, p.Domain),
	}
	e.denials = e.newDenialWorker()
	for i := range e.rules.List {
		r := &e.rules.List[i].Rule
		r.Denials, r.DenialWorker = e.newDenials(r.Policy), e.denials
		e.addSource(r)
	}
	e.surveyor = newSurveyor(host, tables, e.rules.List)
	return e
}

// Clone returns an engine for another host that decides as e does. It shares
// nothing with e that a decision changes.
func (e *Engine) Clone(host Host) *Engine {
	c := compile(e.policy, host, e.id, e.tables.On(host))
	c.Cluster.DecideLike(e.Cluster)
	return c
}

// Policy returns the policy that the engine decides by.
func (e *Engine) Policy() *policy.Policy { return e.policy }

// Heartbeat keeps the engine's tables registered; call it on a tick.
func (e *Engine) Heartbeat() { e.tables.Heartbeat(e.host.Now()) }

// HeldNow reads the holds' clock, by which they are renewed.
func (e *Engine) HeldNow() state.HoldTime { return e.tables.HoldClock() }

// HasConflict reports whether another configuration of the owner has taken a counter
// or a window away from this one, by the last Heartbeat.
func (e *Engine) HasConflict() bool { return e.tables.HasConflict() }

// Split gives the tables to the owner Identity.SplitOwner.
func (e *Engine) Split() { e.tables.Split() }

// Release ends the engine. It frees the tables that Split has given it and the denials that it has
// shared. It also clears its own references, so that the collector can free the rest even if a
// stray pointer keeps the Engine.
func (e *Engine) Release() {
	now := e.host.Now()
	e.tables.Release(now)
	e.denials.Release(now)
	clear(e.rules.List)
	e.tables.Clear()
}

// Decide decides the request that the host is at, and counts it. The verdict is
// valid until the next call.
func (e *Engine) Decide() *decide.Verdict {
	v := e.verdict
	if e.rules.Match(v); v.Matched() {
		v.Decide(e.host.Now())
	}
	return v
}

// Peek returns what each rule by itself makes of the request that the host is
// at, and counts nothing. The verdict is valid until the next call.
func (e *Engine) Peek() *decide.Verdict {
	v := e.verdict
	e.rules.Match(v)
	v.CheckEach(e.host.Now())
	return v
}

// LookAtQuota returns what the quota service has to be asked before AppendUsage, nil if nothing.
func (e *Engine) LookAtQuota() *lease.Look {
	if len(e.Cluster.Definitions()) == 0 {
		return nil
	}
	look := &lease.Look{}
	e.rules.EachShown(&e.looked, look.AddKey)
	if look.Size() == 0 {
		return nil
	}
	return look
}

// AppendUsage appends, as JSON of a result.Usage, how the rules stand that the client of the request that
// the host is at is shown. Of rules of scope cluster it has what the service has told the look; nil knows
// nothing of them. It leaves no trace in shared data and counts in no metric.
func (e *Engine) AppendUsage(b []byte, look *lease.Look) []byte {
	now := e.host.Now()
	e.tables.PrepareLooks(now) // without it, no table that is not registered is known
	b = append(b, `{"rules":[`...)
	e.rules.EachShown(&e.looked, func(s *decide.Subject) {
		if !s.Unlimited {
			s.Look(now, look.Told(s))
		}
		if b[len(b)-1] == '}' {
			b = append(b, ',')
		}
		b = respond.AppendUsage(b, s, now)
	})
	return append(b, `]}`...)
}

// Keep makes a verdict last until Free: its request waits, and Resume goes on with it. It clones
// the texts that the callback's end would take, and gives the next request another verdict.
func (e *Engine) Keep(v *decide.Verdict) {
	if v != e.verdict {
		return // it is kept
	}
	v.CloneTexts()
	e.verdict = &decide.Verdict{}
	if n := len(e.idle); n > 0 {
		e.verdict, e.idle = e.idle[n-1], e.idle[:n-1]
	}
}

// Resume goes on with a request that has waited, where it stopped: with the rules, keys and
// limits that were found.
func (e *Engine) Resume(v *decide.Verdict) { v.Decide(e.host.Now()) }

// maxIdle is how many verdicts are kept for requests to come: each takes kilobytes, and
// seldom many wait at once.
const maxIdle = 64

// Free takes a verdict back that Keep has kept.
func (e *Engine) Free(v *decide.Verdict) {
	if len(e.idle) < maxIdle {
		e.idle = append(e.idle, v)
	}
}

// addSource gives a rule its source of units.
func (e *Engine) addSource(r *decide.Rule) {
	switch {
	case len(r.Policy.Limits) == 0:
	case r.Policy.Scope != policy.ScopeCluster:
		table := e.table(r, "")
		r.SetSource(local.New(r, table, &e.scratch), table)
	case r.Policy.OnUnavailable == policy.UnavailableLocal:
		e.Cluster.AddRule(r, e.table(r, "\x00local"))
	default:
		e.Cluster.AddRule(r, nil)
	}
}

// table is the table of a rule's counter. A counter may have several tables, and each has a suffix
// of its own.
func (e *Engine) table(r *decide.Rule, suffix string) *state.Table {
	return e.tables.Table(state.Definition{
		Counter: r.Finder.Counter(suffix, r.Policy.Capacity), Windows: r.Finder.Windows, Capacity: r.Policy.Capacity,
	})
}
