// Package replay decides the requests of access logs by a policy, in the time of the
// log, and sums up what came of them.
//
// Its invariant: every verdict, and the key that it is about, is the compiled
// filter's; the package counts. What it keeps is bounded, whatever a log holds. It
// must never import the filter or the engine.
package replay

import (
	"context"
	"errors"
	"io"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Options say what to replay. Fields of the log are added to those that it names.
type Options struct {
	Log     accesslog.Options
	Policy  File
	Against *File   // another policy, beside the first
	Unknown float64 // the largest share of lines that are unknown, or too far from their place

	Wasm     []byte
	Proxies  int    // 0 = 1; requests go to them in turn
	CacheDir string // keeps the compiled filter
	Warn     func(string)
}

// File is a policy.
type File struct {
	Name string
	Text []byte
}

const (
	tooManyRequests = 429
	seed            = 1
)

// ErrNoRequests is the error of logs in which no line is a whole request.
var ErrNoRequests = errors.New("no line of the logs is a whole request")

// Run replays.
func Run(ctx context.Context, o Options) (*Report, error) {
	sides := []*side{{File: o.Policy}}
	if o.Against != nil {
		sides = append(sides, &side{File: *o.Against})
	}
	r, err := o.run(ctx, sides)
	if err != nil {
		return nil, err
	}
	return r.report(), nil
}

// report sums up what came of a replay.
func (r *run) report() *Report {
	report := &Report{
		Log: r.log.Stats, Status: Status{Denied: r.denied}, Proxies: max(r.Proxies, 1), Outcome: r.sides[0].end(),
		Timeline: r.timeline.report(), Warnings: r.warnings,
	}
	if len(r.sides) > 1 {
		other := r.sides[1].end()
		report.Against = &other
	}
	return report
}

// run is a replay under way.
type run struct {
	Options
	log      *accesslog.Log
	sides    []*side
	timeline *timeline
	warnings []string
	denied   int64
}

// side is one policy, the proxies that run it, and what came of that.
type side struct {
	File
	policy *policy.Policy // to count by
	fleet  *simulate.Fleet
	*collector
}

// run decides and counts the whole log.
func (o Options) run(ctx context.Context, sides []*side) (r *run, err error) {
	r = &run{Options: o, sides: sides}
	for _, s := range sides {
		p, _, _, err := policyfile.Read(s.Name, s.Text)
		if err != nil {
			return nil, err
		}
		needed, wanted := fields(p)
		r.Log.Fields, r.Log.Wanted = append(r.Log.Fields, needed...), append(r.Log.Wanted, wanted...)
		if s.policy == nil {
			s.policy = p
		}
	}
	if r.log, err = accesslog.Open(ctx, r.Log); err != nil {
		return nil, err
	}
	defer r.log.Close()
	defer r.close()
	for err == nil {
		var line *accesslog.Request
		if line, err = r.log.Next(); err == nil {
			err = r.decide(ctx, line)
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, input.ErrInterrupted
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	if err := errors.Join(r.log.CheckUnknown(o.Unknown), r.log.CheckOrder(o.Unknown)); err != nil {
		return nil, err
	}
	if r.timeline == nil {
		return nil, ErrNoRequests
	}
	return r, r.warn()
}

func (r *run) close() {
	for _, s := range r.sides {
		if s.fleet != nil {
			s.fleet.Close()
		}
	}
}

// start makes the proxies at the time of the first request.
func (r *run) start(ctx context.Context, ns int64) (err error) {
	r.timeline = newTimeline(ns)
	for _, s := range r.sides {
		s.collector = newCollector(s.Name, s.policy, r.timeline)
		s.fleet, err = simulate.NewFleet(ctx, simulate.Options{
			Wasm: r.Wasm, Proxies: r.Proxies, Seed: seed, CacheDir: r.CacheDir, Log: r.Warn,
		}, s.Name, s.Text, ns)
		if err != nil {
			return err
		}
	}
	return nil
}

// decide has each policy decide a request, and counts what came of it.
func (r *run) decide(ctx context.Context, line *accesslog.Request) error {
	if r.timeline == nil {
		if err := r.start(ctx, line.Ns); err != nil {
			return err
		}
	}
	var decisions [2]decision
	asked, answer, took := request(line), answerOf(line, r.log), int64(0)
	if len(r.Log.Wanted) > 0 { // else nothing waits for it
		took = line.TookNs
	}
	for i, s := range r.sides {
		briefs, isDenied, err := s.fleet.Serve(line.Ns, asked, answer, took)
		if err == nil {
			decisions[i], err = newDecision(briefs, isDenied)
		}
		if err != nil {
			return err
		}
	}
	before := line.Status == tooManyRequests
	r.denied += one(before)
	for i, s := range r.sides {
		var other *decision
		if len(r.sides) > 1 {
			other = &decisions[1-i]
		}
		if err := s.add(line.Ns, &decisions[i], other, before); err != nil {
			return err
		}
	}
	return nil
}
