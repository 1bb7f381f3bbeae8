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
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/limit"
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
	Progress func(read, size int64) // of bytes; called now and then

	counted *policy.Policy // whose limits use is counted by; nil = that of Policy
}

// File is a policy.
type File struct {
	Name string
	Text []byte
}

const (
	tooManyRequests = 429
	batchRequests   = 1024
	batchesAhead    = 4
	seed            = 1
)

// batch is requests in the order of time.
type batch struct {
	ns       []int64
	status   []int
	requests []*sim.Request
}

// Run replays.
func Run(ctx context.Context, o Options) (*Report, error) {
	files := []File{o.Policy}
	if o.Against != nil {
		files = append(files, *o.Against)
	}
	r, err := o.run(ctx, files)
	if err != nil {
		return nil, err
	}
	return r.report(), nil
}

// run decides and counts the whole log.
func (o Options) run(ctx context.Context, files []File) (*run, error) {
	r := &run{Options: o}
	for _, f := range files {
		p, _, _, err := policyfile.Read(f.Name, f.Text)
		if err != nil {
			return nil, err
		}
		o.Log.Fields = append(o.Log.Fields, Fields(p)...)
		r.files = append(r.files, decidedFile{f, p})
	}
	if f := o.counted; f != nil {
		r.files[0].policy = f
	}
	var err error
	if r.log, err = accesslog.Open(ctx, o.Log); err != nil {
		return nil, err
	}
	defer r.log.Close()
	defer r.close()
	if err := r.all(ctx); ctx.Err() != nil {
		return nil, input.ErrInterrupted
	} else if err != nil {
		return nil, err
	}
	if err := r.log.CheckUnknown(o.Unknown); err != nil {
		return nil, err
	}
	if err := r.log.CheckOrder(o.Unknown); err != nil {
		return nil, err
	}
	if r.timeline == nil {
		return nil, ErrNoRequests
	}
	return r, r.warn()
}

// ErrNoRequests is the error of logs in which no line is a whole request.
var ErrNoRequests = errors.New("no line of the logs is a whole request")

// warn says what makes figures other than a reader would think.
func (r *run) warn() error {
	for _, field := range r.log.Empty {
		r.warnings = append(r.warnings, "no line has a value of "+field)
	}
	for i, c := range r.collectors {
		r.warnings = append(r.warnings, grainWarnings(c.policy, r.log.GrainNs)...)
		for j := range c.rules {
			rule := c.rules[j].rule
			evicted, err := r.fleets[i].Counted(rule.Name, "evicted")
			if err != nil {
				return err
			}
			if evicted > 0 {
				r.warnings = append(r.warnings, fmt.Sprintf("rule %s: %d keys were evicted, because more were live "+
					"than its capacity of %d holds: it may deny other keys early", rule.Name, evicted, rule.Capacity))
			}
		}
	}
	return nil
}

// decidedFile is a policy that proxies run, and the one to count by.
type decidedFile struct {
	File
	policy *policy.Policy
}

type run struct {
	Options
	log        *accesslog.Log
	files      []decidedFile
	fleets     []*simulate.Fleet
	timeline   *timeline
	collectors []*collector
	warnings   []string
	denied     int64
}

func (r *run) close() {
	for _, f := range r.fleets {
		f.Close()
	}
}

// all reads and decides side by side.
func (r *run) all(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	batches := make(chan *batch, batchesAhead)
	decided := make(chan *decidedBatch, batchesAhead)
	group.Go(func() error {
		defer close(batches)
		return r.read(ctx, batches)
	})
	group.Go(func() error {
		defer close(decided)
		for b := range batches {
			d, err := r.decide(ctx, b)
			if err != nil {
				return err
			}
			if err := send(ctx, decided, d); err != nil {
				return err
			}
		}
		return nil
	})
	group.Go(func() error {
		for d := range decided {
			if err := r.collect(d); err != nil {
				return err
			}
		}
		return nil
	})
	return group.Wait()
}

// send passes a value on unless the other side has gone.
func send[T any](ctx context.Context, to chan<- T, value T) error {
	select {
	case to <- value:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *run) read(ctx context.Context, out chan<- *batch) error {
	for ended := false; !ended; {
		b := &batch{}
		for len(b.ns) < batchRequests && !ended {
			line, err := r.log.Next()
			switch ended = errors.Is(err, io.EOF); {
			case ended:
			case err != nil:
				return err
			default:
				b.ns, b.status, b.requests = append(b.ns, line.Ns), append(b.status, line.Status), append(b.requests, request(line))
			}
		}
		if r.Progress != nil {
			r.Progress(r.log.Progress())
		}
		if len(b.ns) == 0 {
			break
		}
		if err := send(ctx, out, b); err != nil {
			return err
		}
	}
	return nil
}

// decidedBatch is a batch with what each policy made of it.
type decidedBatch struct {
	*batch
	decisions [][]decision
}

func (r *run) decide(ctx context.Context, b *batch) (*decidedBatch, error) {
	if r.fleets == nil {
		if err := r.start(ctx, b.ns[0]); err != nil {
			return nil, err
		}
	}
	d := &decidedBatch{b, make([][]decision, len(r.fleets))}
	var group errgroup.Group
	for i, fleet := range r.fleets {
		d.decisions[i] = make([]decision, len(b.ns))
		group.Go(func() error {
			for j := range b.ns {
				briefs, denied, err := fleet.Serve(b.ns[j], b.requests[j])
				if err != nil {
					return err
				}
				if d.decisions[i][j], err = newDecision(briefs, denied); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return d, group.Wait()
}

// start makes the proxies at the time of the first request.
func (r *run) start(ctx context.Context, ns int64) error {
	r.timeline = newTimeline(ns)
	for _, f := range r.files {
		fleet, err := simulate.NewFleet(ctx, simulate.Options{
			Wasm: r.Wasm, Proxies: r.Proxies, Seed: seed, CacheDir: r.CacheDir, Log: r.Warn,
		}, f.Name, f.Text, ns)
		if err != nil {
			return err
		}
		r.fleets = append(r.fleets, fleet)
		r.collectors = append(r.collectors, newCollector(f.Name, f.policy, r.timeline))
	}
	return nil
}

func (r *run) collect(d *decidedBatch) error {
	for j, ns := range d.ns {
		before := d.status[j] == tooManyRequests
		if before {
			r.denied++
		}
		for i, c := range r.collectors {
			var alone alone
			if len(r.collectors) > 1 {
				other := &d.decisions[1-i][j]
				alone[enforced], alone[inShadow] = !other.denied, !other.denied && !other.shadow
			}
			if err := c.add(ns, d.decisions[i][j], before, alone); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *run) report() *Report {
	report := &Report{
		Log: r.log.Stats, Status: Status{Denied: r.denied}, Proxies: max(r.Proxies, 1), Outcome: r.collectors[0].end(),
	}
	if len(r.collectors) > 1 {
		other := r.collectors[1].end()
		report.Against = &other
	}
	report.Timeline, report.Warnings = r.timeline.report(), r.warnings
	return report
}

// grainWarnings name the limits that are finer than the clock of the log.
func grainWarnings(p *policy.Policy, grainNs int64) (warnings []string) {
	for i := range p.Rules {
		rule := &p.Rules[i]
		if rule.Mode == policy.ModeOff {
			continue
		}
		for j := range rule.Limits {
			l := &rule.Limits[j]
			ns := l.PeriodNs
			if l.Algorithm == limit.TokenBucket && l.Limit > 0 {
				ns = min(ns, int64(float64(ns)*float64(l.Burst)/float64(l.Limit))) // until it is full
			}
			if ns <= grainNs {
				warnings = append(warnings, fmt.Sprintf("rule %s: limit %d is finer than the log's clock of %s: "+
					"requests of one instant look like a burst, so more are denied here than by a proxy", rule.Name, j, time.Duration(grainNs)))
			}
		}
	}
	return warnings
}
