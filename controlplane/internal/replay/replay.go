// Package replay decides the requests of access logs by a policy, in the time of the
// log, and sums up what came of them.
//
// Its invariant: every verdict, and the key that it is about, is the compiled
// filter's; the package counts. What it keeps is bounded, whatever a log holds. It
// must never import the filter or the engine.
//
// A request goes through run.decide (replay.go), which asks the proxies of each side for a decision, and
// collector.add (collect.go), which counts it by rule, by time (timeline.go) and by client (clients.go).
// fields.go says what a policy needs of the log, report.go is what comes of it all, and suggest.go
// replays twice to find limits.
package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/fleet"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
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
	files := []File{o.Policy}
	if o.Against != nil {
		files = append(files, *o.Against)
	}
	var sides []*side
	for _, f := range files {
		s, err := newSide(f)
		if err != nil {
			return nil, err
		}
		sides = append(sides, s)
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
		Log: r.log.Stats, Status: Status{Denied: r.denied}, Proxies: max(r.Proxies, 1),
		Outcome: r.sides[0].outcome(), Timeline: r.timeline.report(), Warnings: r.warnings,
	}
	if len(r.sides) > 1 {
		other := r.sides[1].outcome()
		report.Against = &other
	}
	return report
}

// run is a replay under way.
type run struct {
	Options
	log      *accesslog.Log
	sides    []*side
	timeline *timeline // nil: there was no request yet
	warnings []string
	denied   int64 // requests with status 429 in the log
}

// side is one policy, the proxies that run it, and what came of that.
type side struct {
	file     File
	decides  *policy.Policy // of the file
	countsBy *policy.Policy // has the rules that the figures are about, and the periods of what clients use
	fleet    *fleet.Proxies
	*collector
}

// newSide is the side of a policy that decides, and by which is counted.
func newSide(f File) (*side, error) {
	p, _, _, err := policyfile.Read(f.Name, f.Text)
	if err != nil {
		return nil, err
	}
	return &side{file: f, decides: p, countsBy: p}, nil
}

// newMeasure is the side of a policy that decides, while what clients use is counted by another one with
// the same rules: that one's limits are still to be found.
func newMeasure(f File, countsBy *policy.Policy) (*side, error) {
	s, err := newSide(f)
	if err != nil {
		return nil, err
	}
	s.countsBy = countsBy
	return s, nil
}

// run decides and counts the whole log.
func (o Options) run(ctx context.Context, sides []*side) (*run, error) {
	r := &run{Options: o, sides: sides}
	for _, s := range sides { // the log reads what they need of a request
		needed, wanted := fields(s.decides)
		r.Log.Fields = append(r.Log.Fields, needed...)
		r.Log.Wanted = append(r.Log.Wanted, wanted...)
	}
	log, err := accesslog.Open(ctx, r.Log)
	if err != nil {
		return nil, err
	}
	r.log = log
	defer r.log.Close()
	defer r.close()
	if err := r.decideAll(ctx); err != nil {
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

// decideAll decides each request of the log.
func (r *run) decideAll(ctx context.Context) error {
	for {
		line, err := r.log.Next()
		if err == nil {
			err = r.decide(ctx, line)
		}
		switch {
		case ctx.Err() != nil:
			return input.ErrInterrupted
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
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
		s.collector = newCollector(s.file.Name, s.countsBy, r.timeline)
		s.fleet, err = fleet.NewBrief(ctx, fleet.Options{
			Wasm: r.Wasm, Proxies: r.Proxies, Seed: seed, CacheDir: r.CacheDir, Log: r.Warn,
		}, s.file.Name, s.file.Text, ns)
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
	asked, answer := request(line), answerOf(line, r.log)
	tookNs := int64(0)
	if len(r.Log.Wanted) > 0 { // else nothing waits for the answer
		tookNs = line.TookNs
	}
	for i, s := range r.sides {
		briefs, isDenied, err := s.fleet.Serve(line.Ns, asked, answer, tookNs)
		if err == nil {
			decisions[i], err = newDecision(briefs, isDenied)
		}
		if err != nil {
			return err
		}
	}
	deniedInLog := line.Status == tooManyRequests
	r.denied += one(deniedInLog)
	for i, s := range r.sides {
		var other *decision
		if len(r.sides) > 1 {
			other = &decisions[1-i]
		}
		if err := s.add(line.Ns, &decisions[i], other, deniedInLog); err != nil {
			return err
		}
	}
	return nil
}

// warn notes why figures are not what a reader would think.
func (r *run) warn() error {
	for _, field := range r.log.Empty {
		r.addWarning("no line has a value of %s", field)
	}
	for _, s := range r.sides {
		if n := s.fleet.Hurried(); n > 0 {
			r.addWarning("%s: %d answers came early, because too many requests ran at once", s.file.Name, n)
		}
		for _, c := range s.rules {
			if err := r.warnOfRule(s, c.policy); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *run) addWarning(format string, values ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, values...))
}

func (r *run) warnOfRule(s *side, rule *policy.Rule) error {
	grain := time.Duration(r.log.GrainNs)
	for i := range rule.Limits {
		if fillsIn(&rule.Limits[i]) <= grain {
			r.addWarning("rule %s: limit %d is finer than the log's clock of %s: "+
				"requests of one instant look like a burst, so more are denied here than by a proxy", rule.Name, i, grain)
		}
	}
	if lacks := lacking(rule, r.log); lacks != "" {
		r.addWarning("rule %s: its figures cannot be told, because the log lacks %s", rule.Name, lacks)
	} else if rule.Concurrency() && grain >= 100*time.Millisecond {
		r.addWarning("rule %s: the log's clock of %s is coarse: requests of one instant look as if they ran at once, "+
			"so more are denied here than by a proxy", rule.Name, grain)
	}
	evicted, err := s.fleet.Counted(rule.Name, "evicted")
	if err != nil {
		return err
	}
	if evicted > 0 {
		r.addWarning("rule %s: %d keys were evicted, because more were live than its capacity of %d holds: "+
			"it may deny other keys early", rule.Name, evicted, rule.Capacity)
	}
	return nil
}

// fillsIn is the time in which a limit's units come again.
func fillsIn(l *policy.Limit) time.Duration {
	ns := l.PeriodNs
	if l.Algorithm == limit.TokenBucket && l.Limit > 0 {
		ns = min(ns, int64(float64(ns)*float64(l.Burst)/float64(l.Limit)))
	}
	return time.Duration(ns)
}

const noTimes = "times of answers; --map duration_ms=NAME names a field that has them"

// lacking is what a rule waits for that the log does not say.
func lacking(r *policy.Rule, log *accesslog.Log) string {
	switch s := r.Settle; {
	case r.Concurrency() && !log.Has(accesslog.FieldTook):
		return noTimes
	case s == nil:
		return ""
	case len(s.When.Status) > 0 && log.NoStatus:
		return "statuses"
	case len(s.When.GRPCStatus) > 0:
		return "gRPC statuses"
	case len(s.When.Headers) > 0, s.To == policy.SettleHeader, s.To == policy.SettleTrailer:
		return "headers and trailers of answers"
	case bytesFields[s.To] != "" && !log.Has(bytesFields[s.To]):
		return "bytes of bodies; --map " + bytesFields[s.To] + "=NAME names a field that has them"
	case s.To == policy.SettleMilliseconds && !log.Has(accesslog.FieldTook):
		return noTimes
	case s.To.Tokens():
		return "tokens"
	}
	return ""
}
