package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/sluice-ratelimit/sluice/build/bench/performance"
	"github.com/sluice-ratelimit/sluice/build/machine"
	"github.com/sluice-ratelimit/sluice/build/sample"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

const (
	warmUp   = time.Second // of each listener: engines compile what is hot anew
	slowRate = 2000.0      // requests a second while latency is measured
	slowTime = 750 * time.Millisecond
)

// visit is one running Envoy with a case in it.
type visit struct {
	bench   *bench
	process *proc.Process
	subject subject

	base, test clients
	perTurn    int // requests

	bases, tests, busy []float64 // of each turn; turns of one index followed on each other
	service, redis     []float64
	result             performance.Visit
}

// visit starts an Envoy and measures a case in it.
func (b *bench) visit(ctx context.Context, s subject) (result performance.Visit, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	at, err := b.site(s)
	if err != nil {
		return result, err
	}
	bootstrap, err := at.bootstrap()
	if err != nil {
		return result, err
	}
	p, err := proc.Start(ctx, proc.Options{Binary: b.envoy, Bootstrap: bootstrap, Concurrency: max(s.workers, 1), LogLevel: "error"})
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, p.Kill()) }()
	// Until it serves, modules are compiled, which both cores may do.
	if err := machine.Pin(p.Pid(), b.allCores...); err != nil {
		return result, err
	}
	if err := p.WaitReady(ctx); err != nil {
		return result, err
	}
	to := b.envoyCores
	if s.workers > 1 {
		to = b.allCores // a race between workers takes more than one
	}
	if err := machine.Pin(p.Pid(), to...); err != nil {
		return result, err
	}
	v := visit{bench: b, process: p, subject: s}
	defer v.close()
	if err := v.measure(ctx); err != nil {
		return result, fmt.Errorf("%w; Envoy's log:\n%s", err, p.Log())
	}
	return v.result, nil
}

func (v *visit) close() {
	v.base.close()
	v.test.close()
}

func (v *visit) measure(ctx context.Context) error {
	for _, step := range []func(context.Context) error{v.dial, v.fill, v.warmUp, v.turns, v.latency, v.prove} {
		if err := step(ctx); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	rss, err := v.process.RSS()
	if err != nil {
		return err
	}
	v.result.RSS = rss
	if v.subject.limit > 0 {
		v.result.Over = max(0, v.result.Admitted-v.subject.limit)
	}
	v.summarize()
	return nil
}

func (v *visit) dial(ctx context.Context) error {
	keys := makeKeys(max(v.subject.keys, 1))
	for name, into := range map[string]*clients{"base": &v.base, "test": &v.test} {
		address, err := v.process.Listener(ctx, name)
		if err != nil {
			return err
		}
		if *into, err = dial(address, keys); err != nil {
			return err
		}
	}
	return nil
}

// fill asks once for each of very many keys, and sees what memory that takes.
func (v *visit) fill(ctx context.Context) error {
	if v.subject.keys < manyKeys {
		return nil
	}
	before, err := v.process.Memory(ctx)
	if err != nil {
		return err
	}
	// Each connection begins an eighth further and asks for an eighth.
	got, err := v.test.full(v.subject.keys)
	if err != nil {
		return err
	}
	v.count(got)
	after, err := v.process.Memory(ctx)
	v.result.BytesPerKey = (float64(after) - float64(before)) / float64(v.subject.keys)
	return err
}

// warmUp loads both listeners, and finds out how many requests make a turn.
func (v *visit) warmUp(ctx context.Context) error {
	const step = 250
	for _, side := range []clients{v.base, v.test} {
		for began := time.Now(); time.Since(began) < warmUp && ctx.Err() == nil; {
			got, err := side.full(step)
			if err != nil {
				return err
			}
			if side.is(v.test) {
				v.count(got)
			}
			v.perTurn = max(connections, int(step*v.bench.turn/got.took))
		}
	}
	return nil
}

// turns loads the listeners by turns, each pair in the other order, so that what
// drifts tells on both alike.
func (v *visit) turns(ctx context.Context) error {
	began, before, err := v.elsewhere()
	if err != nil {
		return err
	}
	for i := range v.bench.pairs {
		sides := []clients{v.base, v.test}
		for j := range sides {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := v.turn(sides[j^i&1]); err != nil {
				return err
			}
		}
	}
	ended, after, err := v.elsewhere()
	v.result.Foreign = round(max(0, float64(after-before)) / float64(ended.Sub(began)) / float64(len(v.bench.allCores)))
	return err
}

// elsewhere is the processor time used so far by all that this run did not
// start.
func (v *visit) elsewhere() (now time.Time, used time.Duration, err error) {
	if used, err = machine.UsedTime(); err != nil {
		return now, 0, err
	}
	ours, err := cpuTimes(append(v.processes(), os.Getpid()))
	for _, part := range ours {
		used -= part
	}
	return time.Now(), used, err
}

// processes are those that a request costs: Envoy first.
func (v *visit) processes() []int {
	list := []int{v.process.Pid()}
	if v.subject.service {
		list = append(list, v.bench.service.ratelimit.pid(), v.bench.service.redis.pid())
	}
	return list
}

// turn loads one listener and notes the CPU time of a request.
func (v *visit) turn(side clients) error {
	processes := v.processes()
	before, err := cpuTimes(processes)
	if err != nil {
		return err
	}
	got, err := side.full(v.perTurn)
	if err != nil {
		return err
	}
	after, err := cpuTimes(processes)
	if err != nil {
		return err
	}
	perRequest := func(i int) float64 {
		return float64((after[i] - before[i]).Nanoseconds()) / 1e3 / float64(got.admitted+got.denied)
	}
	if side.is(v.base) {
		v.bases = append(v.bases, perRequest(0))
		return nil
	}
	v.count(got)
	v.tests = append(v.tests, perRequest(0))
	v.busy = append(v.busy, float64(after[0]-before[0])/float64(got.took))
	if v.subject.service {
		v.service, v.redis = append(v.service, perRequest(1)), append(v.redis, perRequest(2))
	}
	return nil
}

func cpuTimes(pids []int) (list []time.Duration, err error) {
	for _, pid := range pids {
		used, err := machine.CPUTime(pid)
		if err != nil {
			return nil, err
		}
		list = append(list, used)
	}
	return list, nil
}

// latency asks at a rate that leaves Envoy idle most of the time.
func (v *visit) latency(context.Context) error {
	base, err := v.base.paced(slowRate, slowTime)
	if err != nil {
		return err
	}
	test, err := v.test.paced(slowRate, slowTime)
	if err != nil {
		return err
	}
	v.count(test)
	v.result.BaseP50Us, v.result.BaseP99Us = base.percentile(0.5), base.percentile(0.99)
	v.result.TestP50Us, v.result.TestP99Us = test.percentile(0.5), test.percentile(0.99)
	return nil
}

// prove makes sure that another limiter did its work: on a route that it has nothing
// to say to, it would cost nothing.
func (v *visit) prove(ctx context.Context) error {
	if v.subject.proof == "" {
		return nil
	}
	stats, err := v.process.Stats(ctx, "^"+regexp.QuoteMeta(v.subject.proof)+"$")
	if err != nil {
		return err
	}
	if seen, asked := stats[v.subject.proof], v.result.Admitted+v.result.Denied; seen != uint64(asked) {
		return fmt.Errorf("%s is %d after %d requests", v.subject.proof, seen, asked)
	}
	return nil
}

func (v *visit) count(got outcome) {
	v.result.Admitted += got.admitted
	v.result.Denied += got.denied
}

func (v *visit) summarize() {
	ratios := sample.Ratios(v.tests, v.bases)
	r := &v.result
	r.BaseUs, r.TestUs, r.Busy = round(sample.Median(v.bases)), round(sample.Median(v.tests)), round(sample.Median(v.busy))
	r.Ratio, r.RatioLow, r.RatioHigh = round(sample.Median(ratios)), round(sample.Quantile(ratios, 0.25)), round(sample.Quantile(ratios, 0.75))
	if v.subject.service {
		r.ServiceUs, r.RedisUs = round(sample.Median(v.service)), round(sample.Median(v.redis))
	}
}
