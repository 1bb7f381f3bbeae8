package testfile

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/policytest"
)

// Options say how to run tests.
type Options struct {
	Wasm     []byte
	CacheDir string
	Run      *regexp.Regexp // of the names of tests; nil: all
}

// Result is what came of a test.
type Result struct {
	Name     string
	Line     int
	Took     time.Duration
	Failures []Failure
	Log      []string // what the filter warned of
}

// Place is where a test is, or failed.
type Place struct {
	Line    int
	Step    int // from 1
	Request int // of several, from 1; 0: the step has one
	Times   int // of Request
}

// Failure is what failed: an expectation, or a step that could not be done.
type Failure struct {
	Place
	Field    string // of expect; empty: the step could not be done
	Expected string
	Seen     string // or why the step could not be done
}

// String is the failure without its place in the file.
func (f *Failure) String() string {
	at := "step " + strconv.Itoa(f.Step)
	if f.Request > 0 {
		at += fmt.Sprintf(", request %d of %d", f.Request, f.Times)
	}
	if f.Field == "" {
		return at + ": " + f.Seen
	}
	return fmt.Sprintf("%s: %s: expected %s, seen %s", at, f.Field, f.Expected, f.Seen)
}

// Outcome is what came of a file.
type Outcome struct {
	Name    string
	Took    time.Duration
	Results []*Result
}

// Failed is how many tests of the file failed.
func (o *Outcome) Failed() (n int) {
	for _, r := range o.Results {
		if len(r.Failures) > 0 {
			n++
		}
	}
	return n
}

// Run runs the tests of a file, and reports each as it ends.
func (f *File) Run(ctx context.Context, o Options, to Reporter) (*Outcome, error) {
	outcome := &Outcome{Name: f.Name}
	for i := range f.Tests {
		t := &f.Tests[i]
		if o.Run != nil && !o.Run.MatchString(t.Name) {
			continue
		}
		result := f.run(ctx, o, t)
		if ctx.Err() != nil { // it may have ended early
			return nil, ctx.Err()
		}
		outcome.Took += result.Took
		outcome.Results = append(outcome.Results, result)
		if err := to.Test(f.Name, result); err != nil {
			return nil, err
		}
	}
	return outcome, to.File(outcome)
}

// run runs a test in a goroutine of its own, which ends where the test cannot go on.
func (f *File) run(ctx context.Context, o Options, t *Test) *Result {
	began := time.Now()
	u := &underWay{ctx: ctx, result: &Result{Name: t.Name, Line: t.Line}, running: map[string][]*policytest.Running{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer u.cleanUp()
		u.at = Place{Line: t.Line}
		u.proxies = policytest.New(u, policytest.Options{
			Wasm: o.Wasm, CacheDir: o.CacheDir, Policy: f.policyName, YAML: f.policyText, Start: f.start, Proxies: f.proxies,
		})
		for i := range t.steps {
			u.do(i+1, &t.steps[i])
		}
	}()
	<-done
	u.result.Took = time.Since(began)
	return u.result
}

// underWay is a test that runs. To package policytest it is the test of Go.
type underWay struct {
	ctx      context.Context //nolint:containedctx // policytest asks a test for it, as of testing.T
	result   *Result
	proxies  *policytest.Proxies
	running  map[string][]*policytest.Running
	at       Place
	cleanups []func()
}

var _ policytest.TB = (*underWay)(nil)

// Helper implements policytest.TB.
func (*underWay) Helper() {}

// Context implements policytest.TB.
func (u *underWay) Context() context.Context { return u.ctx }

// Cleanup implements policytest.TB.
func (u *underWay) Cleanup(f func()) { u.cleanups = append(u.cleanups, f) }

// Logf implements policytest.TB.
func (u *underWay) Logf(format string, args ...any) {
	u.result.Log = append(u.result.Log, fmt.Sprintf(format, args...))
}

// Fatalf implements policytest.TB.
func (u *underWay) Fatalf(format string, args ...any) {
	u.result.Failures = append(u.result.Failures, Failure{Place: u.at, Seen: fmt.Sprintf(format, args...)})
	runtime.Goexit()
}

func (u *underWay) cleanUp() {
	for _, f := range slices.Backward(u.cleanups) {
		f()
	}
}

// do does a step.
func (u *underWay) do(number int, s *step) {
	u.at = Place{Line: s.line, Step: number}
	u.proxies.Advance(time.Duration(s.afterNs))
	switch s.kind {
	case countStep:
		count := u.proxies.Count(*s.count)
		compare(u, s.expect.count, &count)
	case setStep:
		u.proxies.Set(*s.set, s.units)
	case resetStep:
		u.proxies.Reset(*s.reset)
	case answerStep:
		u.answer(s)
	case sendStep:
		u.send(s)
	}
}

// send sends the requests of a step.
func (u *underWay) send(s *step) {
	for i := range s.times {
		if u.ctx.Err() != nil {
			u.Fatalf("interrupted")
		}
		if s.times > 1 {
			u.at.Request, u.at.Times = i+1, s.times
		}
		var verdict *policytest.Verdict
		if s.running != "" {
			running := u.proxies.Start(*s.request)
			u.running[s.running] = append(u.running[s.running], running)
			verdict = &running.Verdict
		} else {
			verdict = u.proxies.Do(*s.request)
		}
		isSame := compare(u, s.expect.verdict, verdict)
		if i == s.times-1 {
			isSame = compare(u, s.last.verdict, verdict) && isSame
		}
		if !isSame && i < s.times-1 { // the others would only repeat it
			u.Fatalf("the test ends here")
		}
	}
}

// answer answers the requests that run under a name.
func (u *underWay) answer(s *step) {
	all := u.running[s.to]
	delete(u.running, s.to)
	answer := *s.answer
	for i, running := range all {
		if len(all) > 1 {
			u.at.Request, u.at.Times = i+1, len(all)
		}
		verdict := u.proxies.Answer(running, answer)
		answer.Took = 0 // they have run at the same time
		compare(u, s.expect.verdict, verdict)
	}
}

// compare notes what is not as expected, and reports whether all is.
func compare[T any](u *underWay, checks []check[T], with *T) (isSame bool) {
	isSame = true
	for i := range checks {
		c := &checks[i]
		seen, ok := c.see(with)
		if ok {
			continue
		}
		isSame = false
		failure := Failure{Place: u.at, Field: c.field, Expected: c.expected, Seen: seen}
		failure.Line = c.line
		u.result.Failures = append(u.result.Failures, failure)
	}
	return isSame
}
