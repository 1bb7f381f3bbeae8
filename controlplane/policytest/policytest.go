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
// policytest.go starts proxies and has their clock. request.go has what a test says of a request,
// run.go brings it to a proxy as simrequest.go makes it, and verdict.go has what came of it.
// counter.go reads and changes counters, and serve.go is the server.
//
// Tests in YAML, for the command sluice test, run on this package too.
package policytest

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/fleet"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/shared/policy"
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

func (p *Proxies) checkProxy(proxy *int) {
	p.tb.Helper()
	if proxy != nil && (*proxy < 0 || *proxy >= p.count) {
		p.tb.Fatalf("there is no proxy %d: the %d proxies count from 0", *proxy, p.count)
	}
}
