package interleave_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/envoy/sim/interleave"
)

const (
	hour = int64(3_600_000_000_000)
	ms   = int64(1_000_000)
	base = 277_778 * hour // the beginning of an hour

	maxWorkers = 3          // of a scenario
	observer   = maxWorkers // the worker that reads the counters afterwards
)

// step is one action of a worker, at a time by its own clock.
type step struct {
	at  int64
	run func(b *bench, worker int) string
}

// request is a request whose result is made of the answer.
func request(at int64, r *sim.Request, result func(*sim.Response) string) step {
	return step{at, func(b *bench, worker int) string {
		res, err := b.Serve(worker, r)
		if err != nil {
			return err.Error()
		}
		return result(res)
	}}
}

// hit is a request of a user to a tenant; either may be empty.
func hit(at int64, user, tenant string) step {
	r := &sim.Request{}
	for name, value := range map[string]string{"x-user": user, "x-tenant": tenant} {
		if value != "" {
			r.Headers = append(r.Headers, [2]string{name, value})
		}
	}
	return request(at, r, func(res *sim.Response) string { return strconv.Itoa(res.Status) })
}

// operate is a management request. Its result is the answer's value, or the whole
// answer if it has none.
func operate(at int64, operation, query string) step {
	r := &sim.Request{
		Method: "POST", Path: "/m/counters/" + operation + "?" + query,
		Headers: [][2]string{{"authorization", "Bearer test"}},
	}
	return request(at, r, func(res *sim.Response) string {
		value, ok := strings.CutPrefix(string(res.Body), `{"value":`)
		if !ok {
			return string(res.Body)
		}
		return value[:len(value)-len(strings.TrimLeft(value, "0123456789"))]
	})
}

// tick lets the worker flush its metrics and send its heartbeat.
func tick() step {
	return step{now, func(b *bench, worker int) string { return fmt.Sprint(b.Tick(worker)) }}
}

// change configures the worker with the scenario's next policy.
func change(at int64) step {
	return step{at, func(b *bench, worker int) string { return fmt.Sprint(b.ConfigureWorker(worker, b.next)) }}
}

// scenario is a small race and what must hold at its end.
type scenario struct {
	name     string
	policy   string // rules
	next     string // rules of the next policy, for change
	anew     bool   // every execution begins with unused configurations
	setUp    []step // of worker 0, before the scripts
	scripts  [][]step
	observed []step                 // of the observer, after the scripts
	judge    func(o *outcome) error // nil = only what some order of whole requests has is right

	// seesRefunds: a request may see a hit that another request refunds later, so no
	// order of whole requests explains every outcome.
	seesRefunds bool
}

// outcome is the results of the steps and of the observer.
type outcome struct {
	steps    [maxWorkers][]string
	observed []string
	keys     int // in shared data
	most     int // the largest number of requests that ran at once
}

func (o *outcome) String() string { return fmt.Sprint(o.steps, o.observed, o.keys) }

// passed returns how many of a worker's requests were admitted.
func (o *outcome) passed(worker int) (n int) {
	for _, result := range o.steps[worker] {
		if result == "200" {
			n++
		}
	}
	return n
}

// admitted returns how many requests of all workers were admitted.
func (o *outcome) admitted() (n int) {
	for worker := range o.steps {
		n += o.passed(worker)
	}
	return n
}

// value returns the observed value with that index.
func (o *outcome) value(i int) int {
	n, err := strconv.Atoi(o.observed[i])
	if err != nil {
		return -1
	}
	return n
}

// bench is a simulated proxy with the compiled filter. A scheduler controls its
// workers. Each worker has its own clock.
type bench struct {
	t *testing.T
	*sim.Host
	*interleave.Scheduler
	empty    *sim.Saved
	policies [2][]byte // the scenario's policy as two different texts
	next     []byte
	starts   int

	clocks  [maxWorkers]int64
	outside int64 // the clock while no script runs
	log     []string
	outcome outcome
	quota   talk
}

func newBench(t *testing.T, wasm []byte) *bench {
	t.Helper()
	b := &bench{t: t}
	b.Scheduler = interleave.New(func() *sim.Namespace { return b.Shared() })
	h, err := sim.New(context.Background(), sim.Options{
		Dial: b.dial, Wasm: wasm, Workers: maxWorkers + 1, VMID: "sluice", PluginName: "sluice", RootID: "sluice", Seed: 1,
		CacheDir: buildtest.CacheDir(), OnShared: b.Park, LogLevel: sim.Error,
		Now: func() int64 {
			if worker := b.Running(); worker != interleave.Nobody {
				return b.clocks[worker]
			}
			return b.outside
		},
		Log: func(level sim.Level, vm int, message string) {
			b.log = append(b.log, fmt.Sprintf("vm %d: %s: %s", vm, level, message))
		},
	})
	require.NoError(t, err)
	t.Cleanup(h.Close)
	b.Host, b.empty = h, h.Shared().Save()
	return b
}

// manageable returns a policy with these rules and a management path whose token is
// "test".
func manageable(rules string) []byte {
	return []byte(`{"version":1,"manage":{"path":"/m/",` +
		`"token_sha256":"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"},"rules":[` + rules + `]}`)
}

// space returns the scenario as a space for the scheduler, with judge called at the
// end of each execution.
func (b *bench) space(t *testing.T, c *scenario, judge func() error) interleave.Space {
	t.Helper()
	b.Shared().Restore(b.empty)
	b.next, b.quota = manageable(c.next), newTalk(t)
	for i := range b.policies {
		b.policies[i] = append(manageable(c.policy), strings.Repeat(" ", i)...)
	}
	b.outside = base - 2*hour                       // before anything happens
	require.NoError(t, b.Configure(manageable(""))) // forget the scenario before
	require.NoError(t, b.Configure(b.policies[b.starts%2]))
	b.warm(c)
	saved := b.Shared().Save()
	space := interleave.Space{
		Start: func() { b.start(c, saved) },
		Judge: func() error {
			b.observe(c)
			return judge()
		},
	}
	for worker, script := range c.scripts {
		var steps []func()
		for _, s := range script {
			steps = append(steps, func() {
				b.clocks[worker] = s.at
				b.outcome.steps[worker] = append(b.outcome.steps[worker], s.run(b, worker))
			})
		}
		space.Scripts = append(space.Scripts, steps)
	}
	return space
}

// warm runs the set-up on worker 0. Unless the scenario begins anew, it makes every
// worker register its tables.
func (b *bench) warm(c *scenario) {
	for _, s := range c.setUp {
		b.outside = s.at
		s.run(b, 0)
	}
	b.outside = base - 2*hour
	if c.anew {
		return
	}
	for worker := range observer + 1 {
		operate(0, "stats", "").run(b, worker)
	}
}

// start restores proxy and store to the beginning of an execution.
func (b *bench) start(c *scenario, saved *sim.Saved) {
	b.outside = base - 2*hour
	b.log = b.log[:0]
	for worker := range b.outcome.steps {
		b.outcome.steps[worker] = b.outcome.steps[worker][:0]
	}
	b.Shared().Restore(saved)
	b.quota = newTalk(b.t)
	if !c.anew && c.next == "" {
		return
	}
	b.starts++
	for worker := range observer + 1 {
		if worker < len(c.scripts) || worker == observer {
			if err := b.ConfigureWorker(worker, b.policies[b.starts%2]); err != nil {
				b.log = append(b.log, err.Error())
			}
			if !c.anew {
				operate(0, "stats", "").run(b, worker)
			}
		}
	}
	b.Shared().Restore(saved)
}

// observe runs the observer's steps.
func (b *bench) observe(c *scenario) {
	b.outcome.keys, b.outcome.most = b.Shared().Len(), b.quota.most
	b.outcome.observed = b.outcome.observed[:0]
	for _, s := range c.observed {
		b.outside = s.at
		b.outcome.observed = append(b.outcome.observed, s.run(b, observer))
	}
}

// explore runs a scenario in all its orders. Each outcome must satisfy the
// scenario's own judge. Unless the scenario seesRefunds, it must also be an outcome
// of some order of whole steps.
func (b *bench) explore(t *testing.T, c *scenario, bounds interleave.Bounds, choices string) interleave.Result {
	t.Helper()
	var serial []string
	judged := func() error {
		if len(b.log) > 0 {
			return fmt.Errorf("the filter says: %s", strings.Join(b.log, "\n"))
		}
		if c.judge == nil {
			return nil
		}
		if err := c.judge(&b.outcome); err != nil {
			return fmt.Errorf("%w: %s", err, b.outcome.String())
		}
		return nil
	}
	space := b.space(t, c, func() error {
		if err := judged(); err != nil {
			return err
		}
		if have := b.outcome.String(); !c.seesRefunds && !slices.Contains(serial, have) {
			return fmt.Errorf("no order of whole requests has the outcome %s; their outcomes are\n%s", have,
				strings.Join(serial, "\n"))
		}
		return nil
	})
	var wrong *interleave.Failure
	b.Serial(space, func() {
		b.observe(c)
		if err := judged(); err != nil && wrong == nil {
			wrong = &interleave.Failure{Err: fmt.Errorf("without any race: %w", err)}
		}
		if have := b.outcome.String(); !slices.Contains(serial, have) {
			serial = append(serial, have)
		}
	})
	if choices != "" {
		return interleave.Result{Failure: b.Replay(space, choices)}
	}
	r := b.Explore(space, bounds)
	if r.Failure == nil && wrong != nil { // the search has not reached that order
		r.Failure, r.Exhaustive = wrong, false
	}
	return r
}
