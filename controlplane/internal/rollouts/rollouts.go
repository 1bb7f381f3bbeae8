// Package rollouts ends canaries: by the word of a caller, or by itself, as the rollout says and package
// canary judges.
//
// Its invariant: of all control planes on a store only the one that leads takes a step by itself, and only
// of the canary that it has judged. The package must never import the API.
//
// Every two seconds, for each policy with a canary:
//
//	Look → counts of its proxies and of others → watching.take (what has been seen)
//	     → watching.next (how the canary is to stand, and why) → step → the store → all control planes
package rollouts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/canary"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

const (
	// lookEvery is how often the proxies' counts are read, and how long one may take.
	lookEvery = 2 * time.Second
	// maxRead is how many proxies are read of a canary, and of the others.
	maxRead = 50
)

// ErrNone says that a policy has no canary, or not that one.
var ErrNone = errors.New("there is no canary")

// Options of a Watcher. All are required.
type Options struct {
	Store interface {
		store.Policies
		store.Peers
	}
	XDS *xds.Server
	Ask manage.Ask
	Log *slog.Logger
}

// Watcher watches canaries and ends them.
type Watcher struct {
	Options
	mu   sync.Mutex
	seen map[string]*watching // by policy
}

// New returns a watcher that has seen nothing.
func New(o Options) *Watcher { return &Watcher{Options: o, seen: map[string]*watching{}} }

// Status is how a canary stands, and what this serve has seen of it.
type Status struct {
	Revision uint64 `json:"revision"`
	xds.Canary
	Seen []canary.Rule `json:"seen"`
	Says string        `json:"says"` // what it waits for, in words
}

// Status is how the canary of a policy stands, nil if there is none.
func (w *Watcher) Status(policy string, now time.Time) *Status {
	number, c := w.XDS.Ledger().Canary(policy)
	if number == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	of := w.seen[policy]
	if of == nil || of.revision != number {
		of = &watching{since: now}
	}
	return &Status{Revision: number, Canary: c, Seen: of.Rules(), Says: of.says(&c, now)}
}

// Run looks at all canaries until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		for _, policy := range w.XDS.Ledger().Policies() {
			if err := w.Look(ctx, policy, time.Now()); err != nil {
				w.Log.Error("watch canary", "policy", policy, "error", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// Look looks at the canary of a policy, if there is one, and takes the step that is due.
func (w *Watcher) Look(ctx context.Context, policy string, now time.Time) error {
	number, _ := w.XDS.Ledger().Canary(policy)
	if number == 0 {
		return nil
	}
	rows, failed := w.read(ctx, policy)
	// As it stands after that: a proxy may have refused it meanwhile.
	again, c := w.XDS.Ledger().Canary(policy)
	if again != number {
		return nil
	}
	w.mu.Lock()
	of := w.seen[policy]
	if of == nil || of.revision != number {
		of = &watching{Sight: canary.NewSight(), revision: number, since: now}
		w.seen[policy] = of
	}
	of.take(rows, failed, &c, now)
	state, why := of.next(&c, now)
	w.mu.Unlock()
	if state == c.State {
		return nil
	}
	return w.stepByItself(ctx, policy, store.Step{Revision: number, State: state, Why: why})
}

// read reads the counts of the first proxies of the canary, and of the others.
func (w *Watcher) read(ctx context.Context, policy string) ([]manage.Row, error) {
	call, targets, err := w.Ask(ctx, policy, lookEvery)
	if err != nil {
		return nil, err
	}
	defer call.End()
	n := map[uint64]int{} // by revision
	some := targets[:0]
	for _, t := range targets {
		n[t.Revision]++
		if n[t.Revision] <= maxRead {
			some = append(some, t)
		}
	}
	return call.Counters(ctx, some, manage.Stats, nil), nil
}

// Step changes how the canary of a policy stands, by the word of a caller, and returns its revision.
func (w *Watcher) Step(ctx context.Context, policy string, s store.Step) (uint64, error) {
	for {
		number, err := w.step(ctx, policy, s, false)
		if !errors.Is(err, store.ErrConflict) {
			return number, err
		}
		// Another change came first.
		if err := w.XDS.Refresh(ctx); err != nil {
			return 0, err
		}
	}
}

// stepByItself takes a step while this serve leads. If another change came first, the canary is judged
// anew at the next look.
func (w *Watcher) stepByItself(ctx context.Context, policy string, s store.Step) error {
	if !w.Store.Leads() {
		return nil
	}
	actions := map[store.RolloutState]string{store.Promoted: "promote", store.Stalled: "stall", store.Aborted: "abort"}
	s.Audit = store.Entry{Who: "sluice serve", Action: actions[s.State], Text: s.Why}
	_, err := w.step(ctx, policy, s, true)
	if errors.Is(err, store.ErrConflict) {
		return w.XDS.Refresh(ctx)
	}
	return err
}

// step stores a step of the canary that lasts now, or fails with store.ErrConflict.
func (w *Watcher) step(ctx context.Context, policy string, s store.Step, byLeader bool) (uint64, error) {
	_, last := w.XDS.Ledger().Takers()
	number, _ := w.XDS.Ledger().Canary(policy)
	if number == 0 || s.Revision != 0 && s.Revision != number {
		return 0, fmt.Errorf("%w of policy %s", ErrNone, policy)
	}
	s.Revision = number
	if _, err := w.Store.Append(ctx, store.Change{Last: last, Steps: []store.Step{s}, ByLeader: byLeader}); err != nil {
		return 0, err
	}
	if err := w.XDS.Refresh(ctx); err != nil { // it goes on trying
		w.Log.Error("follow the store", "error", err)
	}
	w.Log.Info("canary "+string(s.State), "revision", number, "policy", policy,
		"who", access.Who(s.Audit.Who), "why", s.Why)
	return number, nil
}
