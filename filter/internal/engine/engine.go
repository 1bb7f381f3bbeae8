// Package engine turns one request into one verdict: it finds the rules that the
// request matches (package match), and asks for each whether every window has
// room for the key. Package describe writes a verdict down.
//
// Its invariant: all rules decide or none counts. A denied request leaves the
// counters as if it had never come, and nothing a race does makes a later
// decision looser. It knows the proxy as the small Host interface only. It must
// never import the proxy-wasm SDK, unsafe, or a clock.
package engine

import (
	"math/bits"
	"slices"

	"github.com/sluice-ratelimit/sluice/filter/internal/denials"
	"github.com/sluice-ratelimit/sluice/filter/internal/match"
	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/quota"
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
	SplitOwner   uint64       // of the tables after Split
	ConfiguredNs int64        // when the configuration was made
	Random       func([]byte) // fills in unguessable bytes
}

// Engine decides requests under one policy. It serves one worker: a call
// overwrites what the call before it returned.
type Engine struct {
	host     Host
	policy   *policy.Policy
	exempt   []match.Match // of the whole policy
	rules    []rule
	index    match.Index
	tables   *state.Tables
	request  request.Request
	verdict  Verdict
	tooLong  bool       // a value of the request was too long for an expression in exempt
	attempts []*Attempt // as many as a request has needed: most policies have far more rules than a request matches

	// Quota is for rules of scope cluster.
	Quota       Quota
	definitions []quota.Definition
	hands       map[handKey]*hand
	held        []held
	lookNs      int64 // when to look at the first of them
	idleNs      int64 // the shortest time after which one is idle, 0 = none is held
	settling    state.LeaseEntry
	proxies     uint32 // as this worker has heard last

	owner   uint64
	random  func([]byte)
	denials *denials.Worker

	surveyed int // rules[surveyed] is the one whose memory is being added up
	survey   state.Survey
	peekAtNs int64 // see Survey
}

// New compiles a policy. It neither reads nor writes shared data.
func New(p *policy.Policy, host Host, id Identity) *Engine {
	e := &Engine{
		host:    host,
		policy:  p,
		request: request.New(host),
		tables:  state.NewTables(host, id.Random, id.Owner, id.ConfiguredNs),
		owner:   id.Owner,
		random:  id.Random,
	}
	e.denials = e.newWorker()
	e.tables.SetSplitOwner(id.SplitOwner)
	e.exempt = compileExempt(&e.request, p.Exempt)
	e.rules = make([]rule, 0, len(p.Rules))
	for i := range p.Rules {
		if p.Rules[i].Mode == policy.ModeOff {
			continue
		}
		e.rules = append(e.rules, e.compile(&p.Rules[i]))
	}
	e.lease()
	e.assignMemory()
	matches := make([]*match.Match, len(e.rules))
	for i := range e.rules {
		matches[i] = &e.rules[i].match
	}
	e.index = match.NewIndex(matches)
	return e
}

// Clone returns an engine for another host that decides as e does. It shares
// nothing with e that a decision changes, but for memory that the next decision
// writes anew.
func (e *Engine) Clone(host Host) *Engine {
	c := *e
	c.host, c.request = host, e.request.Clone(host)
	c.tables = e.tables.On(host)
	c.denials = c.newWorker()
	c.rules = slices.Clone(e.rules)
	for i := range c.rules {
		r := &c.rules[i]
		r.metrics, r.spikes, r.named = Metrics{}, spikes{}, slices.Clone(r.named)
		r.denials, r.worker = c.newDenials(r.policy), c.denials
		if r.table != nil {
			r.table = c.tables.Counterpart(r.table)
			r.counted = r.table
		}
		if r.leases == nil && r.table != nil {
			r.units = &records{r.table}
		}
	}
	c.attempts, c.definitions, c.hands, c.held = nil, nil, nil, nil
	c.lease()
	return &c
}

// Policy returns the policy that the engine decides by.
func (e *Engine) Policy() *policy.Policy { return e.policy }

// Heartbeat keeps the engine's tables registered; call it on a tick.
func (e *Engine) Heartbeat() { e.tables.Heartbeat(e.host.Now()) }

// HasConflict reports whether another configuration of the owner has taken a counter
// or a window away from this one, by the last Heartbeat.
func (e *Engine) HasConflict() bool { return e.tables.HasConflict() }

// Split gives the tables to the owner Identity.SplitOwner.
func (e *Engine) Split() { e.tables.Split() }

// Release gives up what the engine holds after Split, and what it shares of denials.
func (e *Engine) Release() {
	now := e.host.Now()
	e.tables.Release(now)
	e.denials.Release(now)
}

// Decide decides the request that the host is at, and counts it. The verdict is
// valid until the next call.
func (e *Engine) Decide() *Verdict {
	v := &e.verdict
	v.begin()
	e.request.Begin()
	if attempts := e.match(); len(attempts) > 0 {
		e.decide(attempts, e.host.Now())
	}
	return v
}

// Peek returns what each rule by itself makes of the request that the host is
// at, and counts nothing. The verdict is valid until the next call.
func (e *Engine) Peek() *Verdict {
	e.verdict.begin()
	e.request.Begin()
	return e.peek(e.match(), e.host.Now())
}

// match returns an attempt for each rule that the request is for.
func (e *Engine) match() []*Attempt {
	attempts := e.attempts[:0]
	if len(e.exempt) > 0 && e.isExempt() {
		return attempts
	}
	if set := e.index.Find(&e.request); set == nil {
		for i := range e.rules {
			attempts = e.attemptRule(attempts, i)
		}
	} else {
		for w, word := range set {
			for ; word != 0; word &= word - 1 {
				attempts = e.attemptRule(attempts, w*64+bits.TrailingZeros64(word))
			}
		}
	}
	return attempts
}

// isExempt reports whether the request is exempt from all rules. A value that was too
// long for that is counted with the rules that judge the request.
func (e *Engine) isExempt() bool {
	e.request.TooLong = false
	e.verdict.Exempt = isExempt(e.exempt, &e.request)
	e.tooLong = e.request.TooLong
	return e.verdict.Exempt
}

// attemptRule appends an attempt for the i-th rule if the request is for it.
func (e *Engine) attemptRule(attempts []*Attempt, i int) []*Attempt {
	r := &e.rules[i]
	n := len(attempts)
	e.request.TooLong = e.tooLong
	a := e.attempt(n)
	applies := (r.always || r.concerns(&e.request)) && a.begin(r, &e.request)
	if e.request.TooLong || applies && a.TooLong {
		r.metrics.TooLong++
	}
	if !applies {
		return attempts
	}
	a.TooLong = a.TooLong || e.request.TooLong
	return e.attempts[:n+1]
}

// attempt returns the memory of a request's i-th attempt; i is at most how many
// were needed so far.
func (e *Engine) attempt(i int) *Attempt {
	if i == len(e.attempts) {
		e.attempts = append(e.attempts, new(Attempt))
	}
	return e.attempts[i]
}
