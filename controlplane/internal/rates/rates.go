// Package rates keeps how fast the rules of policies decide, over all proxies and for a short time: it asks
// the proxies what they have counted, again and again, and tells that beside the rules' limits.
//
// Its invariant: what it keeps is bounded, however long it runs and however many proxies, rules and keys
// there are. The package must never import the xDS server or the API.
//
// An answer of the proxies becomes points of a history (history.go); limits.go has the limits in words.
package rates

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	counted "github.com/sluice-ratelimit/sluice/shared/result"
)

const (
	// pointEvery is how often the proxies are asked, and how much time a point stands for.
	pointEvery = 10 * time.Second
	// pointFull is how much time ends a point: a tick may come a little early.
	pointFull = pointEvery - time.Second
	// freshFor is how long an answer is new enough for a caller who asks.
	freshFor = 3 * time.Second
	// maxPoints of a rule are kept: 20 minutes. With maxRated rules they take 144 kB a policy.
	maxPoints = 120
	maxRated  = 50 // rules
	maxKeys   = 10 // of a rule
	// rateTimeout is how long a proxy may take to answer.
	rateTimeout = 2 * time.Second
)

// List is what the rules of a policy decide, over all proxies: the answer of GET /v1/rates.
type List struct {
	Times  []time.Time    `json:"times"` // of the rates: each is over the time since the one before
	Rules  []Rate         `json:"rules"`
	More   int            `json:"more,omitempty"`   // rules that are left out
	Failed []manage.Asked `json:"failed,omitempty"` // proxies that have not answered
	Note   string         `json:"note,omitempty"`   // why there is nothing new
}

// Rate is one rule.
type Rate struct {
	Rule   string              `json:"rule"`
	Each   string              `json:"each,omitempty"`   // has the limits by itself: key or proxy; "": all together
	Limits []Limit             `json:"limits,omitempty"` // of the current revision
	Total  Counts              `json:"total"`            // since the proxies began to count
	Rates  []Counts            `json:"rates"`            // requests a second, as many as there are times
	Keys   []counted.DeniedKey `json:"keys,omitempty"`   // denied most lately
	came   Counts              // of the newest point
}

// Limit is a limit in words, and how many requests a second it lets through on average.
type Limit struct {
	Text string  `json:"limit"`
	Rate float64 `json:"rate,omitempty"` // 0: that is not known
}

// Counts are requests of a rule.
type Counts struct {
	Allowed float64 `json:"allowed"`
	Denied  float64 `json:"denied"`
	Shadow  float64 `json:"shadow_denied"`
}

// Options of a Keeper. All but Clock are required.
type Options struct {
	Policies func() []string            // all that there are
	Current  func(policy string) uint64 // the revision whose limits are told
	// Read reads the policy of a revision, nil if this release cannot.
	Read  func(ctx context.Context, revision uint64) (*policy.Policy, error)
	Ask   manage.Ask
	Clock func() time.Time // default: time.Now
}

// Keeper keeps the rates of all policies.
type Keeper struct {
	Options
	mu   sync.Mutex
	kept map[string]*kept // by policy
}

// kept is what is kept of one policy.
type kept struct {
	asking  sync.Mutex // held while proxies are asked
	history history
	limits  limits
}

// New returns a keeper of nothing yet.
func New(o Options) *Keeper {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	return &Keeper{Options: o, kept: map[string]*kept{}}
}

func (k *Keeper) of(policy string) *kept {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept[policy] == nil {
		k.kept[policy] = &kept{}
	}
	return k.kept[policy]
}

// Run asks the proxies of all policies again and again until ctx ends: so a caller finds rates of
// the time before.
func (k *Keeper) Run(ctx context.Context) {
	ctx = access.NewContext(ctx, access.Caller{Name: "sluice serve"})
	tick := time.NewTicker(pointEvery)
	defer tick.Stop()
	for {
		for _, name := range k.Policies() {
			// What fails here also fails for the next caller, and that one is told.
			_ = k.ask(ctx, name, pointEvery/2, false)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Update asks the proxies of a policy for what they have counted, and which keys they have denied
// most, unless the last answers are fresh. The error is that of Ask.
func (k *Keeper) Update(ctx context.Context, policy string) error {
	return k.ask(ctx, policy, freshFor, true)
}

// ask asks for what is not fresh. There are many keys, so they are read only for a caller.
func (k *Keeper) ask(ctx context.Context, policy string, fresh time.Duration, withKeys bool) error {
	of := k.of(policy)
	if !of.asking.TryLock() {
		return nil // another caller is asking, which takes minutes if many proxies are silent
	}
	defer of.asking.Unlock()
	counts, keys := of.history.ages(k.Clock())
	needsCounts, needsKeys := counts >= fresh, withKeys && keys >= fresh
	if !needsCounts && !needsKeys {
		return nil
	}
	call, targets, err := k.Ask(ctx, policy, rateTimeout)
	if err != nil {
		return err
	}
	defer call.End()
	if needsCounts {
		rows := call.Counters(ctx, targets, manage.Stats, nil)
		of.history.add(k.Clock(), rows)
	}
	if needsKeys {
		denials := manage.Denials(call.Counters(ctx, targets, manage.Top, nil))
		of.history.addKeys(k.Clock(), denials)
	}
	return nil
}

// List returns the rates of a policy's rules that are kept, with the limits of its current revision.
func (k *Keeper) List(ctx context.Context, policy string) (*List, error) {
	of := k.of(policy)
	limits, err := of.limits.at(ctx, k.Current(policy), k.Read)
	if err != nil {
		return nil, err
	}
	list := of.history.list()
	for i := range list.Rules {
		r := &list.Rules[i]
		r.Each, r.Limits = limits[r.Rule].each, limits[r.Rule].limits
	}
	return list, nil
}
