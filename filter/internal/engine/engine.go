// Package engine turns one request into one verdict: which rules match, which
// key each counts, whether every window of every rule has room.
//
// Its invariant: all rules decide or none counts. A denied request leaves the
// counters as if it had never come, and nothing a race does makes a later
// decision looser. It knows no proxy: what it needs of one is the small Host
// interface. It must never import the proxy-wasm SDK, unsafe, or a clock.
package engine

import (
	"math/bits"

	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Host is what the engine needs of the proxy while it handles one request.
// Strings and bytes it returns are valid until the request's callback ends.
type Host interface {
	state.Store

	// Now returns nanoseconds since the Unix epoch.
	Now() int64
	// Header returns the first value of a request header, pseudo headers
	// (":path") included; names are lower case.
	Header(name string) (value string, present bool)
	// JoinedHeader returns all values of a request header, joined with ",".
	JoinedHeader(name string) (value string, present bool)
	// AppendHeader appends each value of a request header.
	AppendHeader(values []string, name string) []string
	// ClientAddress returns the trusted address of the client, with port.
	ClientAddress() (address string, present bool)
	// Attribute returns an attribute of the request, as bytes whose type is the
	// attribute's own; the segments of its path are joined by zero bytes.
	Attribute(path string) (value string, present bool)
	// Counted returns what all workers have counted of a rule's metric, by the
	// last time each told.
	Counted(rule, metric string) uint64
}

// Identity is what a configuration's counters hang on beside the policy.
type Identity struct {
	Owner        uint64       // who holds the tables; see state.OwnerID
	SplitOwner   uint64       // who holds them after Split
	ConfiguredNs int64        // when the configuration was made
	Random       func([]byte) // fills bytes nobody can guess
}

// Engine decides requests under one policy. It serves one worker: a call
// re-uses what the call before it returned.
type Engine struct {
	host    Host
	policy  *policy.Policy
	rules   []rule
	index   index
	tables  *state.Tables
	request request
	verdict Verdict
	tries   []*attempt // as many as a request has needed: most policies have far more rules than a request matches
	text    [2][]byte  // where header values are put together

	surveyed int // rules[surveyed] is the one whose memory is being added up
	survey   state.Survey
}

// New compiles a policy. It neither reads nor writes shared data.
func New(p *policy.Policy, host Host, id Identity) *Engine {
	e := &Engine{
		host:   host,
		policy: p,
		tables: state.NewTables(host, id.Random, id.Owner, id.ConfiguredNs),
	}
	e.tables.SetSplitOwner(id.SplitOwner)
	e.request.host = host
	e.rules = make([]rule, 0, len(p.Rules))
	for i := range p.Rules {
		if p.Rules[i].Mode == policy.ModeOff {
			continue
		}
		e.rules = append(e.rules, e.compile(&p.Rules[i]))
	}
	e.assignMemory()
	e.index = newIndex(e.rules)
	return e
}

// Heartbeat keeps the engine's tables registered; call it on a tick.
func (e *Engine) Heartbeat() { e.tables.Heartbeat(e.host.Now()) }

// HasConflict reports whether another configuration of the owner has taken a counter
// or a window away from this one, by the last Heartbeat.
func (e *Engine) HasConflict() bool { return e.tables.HasConflict() }

// Split gives the tables to the owner Identity.SplitOwner.
func (e *Engine) Split() { e.tables.Split() }

// Release gives up what the engine holds after Split.
func (e *Engine) Release() { e.tables.Release(e.host.Now()) }

// Decide decides the request that the host is at. The verdict is valid until
// the next call.
func (e *Engine) Decide() *Verdict {
	v := &e.verdict
	v.begin()
	e.request.begin()
	tries := e.tries[:0]
	if set := e.index.find(&e.request); set == nil {
		for i := range e.rules {
			tries = e.try(tries, i)
		}
	} else {
		for w, word := range set {
			for ; word != 0; word &= word - 1 {
				tries = e.try(tries, w*64+bits.TrailingZeros64(word))
			}
		}
	}
	if len(tries) > 0 {
		e.decide(tries, e.host.Now())
	}
	return v
}

// try appends the i-th rule to those that the request is for, if it is.
func (e *Engine) try(tries []*attempt, i int) []*attempt {
	r := &e.rules[i]
	n := len(tries)
	e.request.tooLong = false
	applies := r.concerns(&e.request) && e.attempt(n).begin(r, &e.request)
	if e.request.tooLong {
		r.metrics.TooLong++
	}
	if !applies {
		return tries
	}
	e.tries[n].tooLong = e.request.tooLong
	return e.tries[:n+1]
}

// concerns reports whether the request matches and is not exempt.
func (r *rule) concerns(req *request) bool {
	if !r.match.holds(req) {
		return false
	}
	for i := range r.exempt {
		if r.exempt[i].holds(req) {
			return false
		}
	}
	return true
}

// attempt returns the i-th try of a request, i being at most how many were needed
// so far.
func (e *Engine) attempt(i int) *attempt {
	if i == len(e.tries) {
		e.tries = append(e.tries, new(attempt))
	}
	return e.tries[i]
}

// DenyOnError reports whether some rule asks to deny when a decision could not
// be reached.
func (e *Engine) DenyOnError() bool {
	for i := range e.rules {
		if e.rules[i].policy.OnError == policy.FailDeny {
			return true
		}
	}
	return false
}
