// Package policytest tests policies in Go: the compiled filter decides requests by a policy in YAML,
// on simulated proxies whose clock the test sets. Rules of scope cluster ask a real quota service
// in the same process.
//
// Its invariant: it decides nothing. Every verdict is the filter's, and the same calls give the
// same verdicts. It must never import the filter or the engine.
//
// New starts proxies. Do brings a request to them and Advance lets time pass; Start and Answer
// part a request from its answer, and Count, Set and Reset are about counters. Serve is another
// way: a server for real HTTP requests, by the real clock.
//
// request.go has what a test says, run.go brings it to a proxy as simrequest.go makes it, and
// verdict.go has what came of it.
//
// Tests in YAML, for the command sluice test, run on this package too.
package policytest

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/fleet"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/counters"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// TB is what this package needs of a test. *testing.T and *testing.B have it.
type TB interface {
	Helper()
	Context() context.Context
	Cleanup(f func())
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Options say what to test.
type Options struct {
	Wasm     []byte    // the compiled filter: sluice.wasm of a release, or of make build
	Policy   string    // file of the policy
	YAML     []byte    // text of the policy; nil: what the file has
	Start    time.Time // of the clock; default DefaultStart
	Proxies  int       // default 1
	CacheDir string    // keeps the filter as machine code; default: the user's cache directory
}

// DefaultStart is the time at which tests start that say none.
var DefaultStart = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// seed of the tables' hash, so that tests repeat.
const seed = 1

// Proxies are simulated proxies with a policy, and the quota service that they ask. Only one
// goroutine may use them. What cannot be done fails the test.
type Proxies struct {
	tb    TB
	fleet *fleet.Proxies
	count int
}

// New starts proxies with empty counters. They end with the test.
func New(tb TB, o Options) *Proxies {
	tb.Helper()
	text, err := o.text()
	if err != nil {
		tb.Fatalf("%v", err)
	}
	p, err := fleet.ReadPolicy(o.Policy, text)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	if o.Start.IsZero() {
		o.Start = DefaultStart
	}
	if !fleet.IsTime(o.Start) {
		tb.Fatalf("start at %s: write a time from 1970 to %d", o.Start.UTC().Format(time.RFC3339), fleet.LastYear)
	}
	if o.CacheDir == "" {
		o.CacheDir = fleet.CacheDir()
	}
	started, err := fleet.New(tb.Context(), fleet.Options{
		Wasm: o.Wasm, Proxies: o.Proxies, Seed: seed, CacheDir: o.CacheDir,
		Log: func(message string) { tb.Logf("filter: %s", message) },
	}, p, o.Start.UnixNano())
	if err != nil {
		tb.Fatalf("start the filter: %v", err)
	}
	tb.Cleanup(started.Close)
	return &Proxies{tb: tb, fleet: started, count: max(o.Proxies, 1)}
}

// text is the text of the policy.
func (o *Options) text() ([]byte, error) {
	if o.YAML != nil {
		return o.YAML, nil
	}
	text, err := input.File(o.Policy, policy.MaxBytes)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	return text, nil
}

// Now is the time of the proxies.
func (p *Proxies) Now() time.Time { return time.Unix(0, p.fleet.Now()).UTC() }

// Advance lets time pass. Meanwhile proxies renew what running requests hold, and return leases.
func (p *Proxies) Advance(d time.Duration) {
	p.tb.Helper()
	if d < 0 {
		p.tb.Fatalf("advance by %s: time does not step back here", d)
	}
	if !fleet.IsTime(p.Now().Add(d)) {
		p.tb.Fatalf("advance by %s: the clock would pass the year %d", d, fleet.LastYear)
	}
	p.fleet.Pass(p.fleet.Now() + int64(d))
}

// Counter is a counter of one rule for one key.
type Counter struct {
	Rule   string
	Key    []string // its parts, none for a rule without a key
	Window string   // of Set: name or index of one window; empty: all
	Proxy  *int     // from 0, nil: the first; a rule of scope cluster has one counter for all
}

// Count is what a counter says.
type Count struct {
	Used      uint32 // of the only window; with several windows, see Windows
	Remaining uint32 // of the tightest window, without what running requests hold
	Unlimited bool   // no window has a limit for this key
	Held      uint32 // by running requests
	Leased    uint32 // of a rule of scope cluster: by proxies
	Windows   []Window
}

// Count reads a counter, without changing it.
func (p *Proxies) Count(c Counter) Count {
	p.tb.Helper()
	o := p.operate(c, counters.Operation{Name: "get"})
	count := Count{Windows: windowsOf(o.Result.Windows), Unlimited: true}
	if o.Result.Held != nil {
		count.Held = *o.Result.Held
	}
	if o.Leased != nil {
		count.Leased = uint32(*o.Leased)
	}
	for _, w := range count.Windows {
		if !w.Unlimited && (count.Unlimited || w.Remaining < count.Remaining) {
			count.Remaining, count.Unlimited = w.Remaining, false
		}
	}
	if len(count.Windows) == 1 {
		count.Used = count.Windows[0].Used
	}
	return count
}

// Set sets what is used of a counter.
func (p *Proxies) Set(c Counter, units uint32) {
	p.tb.Helper()
	p.operate(c, counters.Operation{Name: "set", N: units, Window: c.Window})
}

// Reset empties a counter. What running requests hold stays.
func (p *Proxies) Reset(c Counter) {
	p.tb.Helper()
	p.operate(c, counters.Operation{Name: "reset"})
}

func (p *Proxies) operate(c Counter, o counters.Operation) *fleet.Outcome {
	p.tb.Helper()
	o.Rule, o.Key = c.Rule, c.Key
	first := 0 // the first of a proxy's workers, which is its only one here, and the first proxy
	at := fleet.At{Proxy: c.Proxy, Worker: &first}
	if at.Proxy == nil && !counters.IsOfCluster(p.fleet.Policy(), o) {
		at.Proxy = &first // named, so that it takes no request's turn
	}
	p.checkProxy(c.Proxy)
	outcome, err := p.fleet.Operate(at, o, nil)
	if err != nil {
		p.tb.Fatalf("%v", err)
	}
	return outcome
}

func (p *Proxies) checkProxy(proxy *int) {
	p.tb.Helper()
	if proxy != nil && (*proxy < 0 || *proxy >= p.count) {
		p.tb.Fatalf("there is no proxy %d: the %d proxies count from 0", *proxy, p.count)
	}
}

// Window is one window of a rule, as it stands for a key.
type Window struct {
	Name      string
	Unlimited bool // then there is no limit, and nothing remains of it
	Limit     uint32
	Used      uint32
	Remaining uint32
	Per       time.Duration
	Reset     time.Duration // until it ends, or has room for all
}

func windowsOf(windows []result.Window) (list []Window) {
	for i := range windows {
		w := &windows[i]
		window := Window{
			Name: w.Name, Unlimited: w.Unlimited || w.Limit == nil, Used: w.Used,
			Per: time.Duration(w.PerNs), Reset: time.Duration(w.ResetNs),
		}
		if w.Limit != nil {
			window.Limit = *w.Limit
		}
		if w.Remaining != nil {
			window.Remaining = *w.Remaining
		}
		list = append(list, window)
	}
	return list
}
