package decision

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/sluice-ratelimit/sluice/build/measure/machine"
	"github.com/sluice-ratelimit/sluice/build/measure/sample"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

const (
	slowRate = 2000.0 // requests a second while latency is measured
	slowTime = 750 * time.Millisecond
)

// visit is what one Envoy took. Base is the listener without the filter, test the
// one with it.
type visit struct {
	baseUs, testUs     float64 // CPU of Envoy for a request, medians of the turns
	ratio              float64 // median of test / base over pairs of successive turns
	serviceUs, redisUs float64 // CPU of the other processes for a request
	base, test         latency
	rss                uint64 // bytes, at the end
	bytesPerKey        float64
	admitted, denied   int
	over               int // admitted beyond the limit
}

type latency struct{ p50, p99 float64 } // µs

// visitor measures a case in one running Envoy.
type visitor struct {
	*bench
	subject subject
	process *proc.Process

	base, test clients
	perTurn    int // requests

	bases, tests      []float64 // of each turn; turns of one index follow on each other
	services, redises []float64
	found             visit
}

// visit starts an Envoy and measures a case in it.
func (b *bench) visit(ctx context.Context, s subject) (v visit, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if s.service {
		if b.service, err = b.startService(ctx); err != nil {
			return v, err
		}
		defer b.service.stop()
	}
	bootstrap, err := b.bootstrap(s)
	if err != nil {
		return v, err
	}
	to := b.envoyCores
	if s.workers > 1 {
		to = b.allCores // workers race on more than one core only
	}
	p, err := b.startEnvoy(ctx, bootstrap, max(s.workers, 1))
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, p.Kill()) }()
	if err := b.ready(ctx, p, to); err != nil {
		return v, err
	}
	m := visitor{bench: b, process: p, subject: s}
	defer func() { m.base.close(); m.test.close() }()
	if err := m.measure(ctx); err != nil {
		return v, fmt.Errorf("%w; Envoy's log:\n%s", err, p.Log())
	}
	return m.found, nil
}

// startEnvoy starts one that may use both cores: until it serves, it compiles modules.
func (b *bench) startEnvoy(ctx context.Context, bootstrap []byte, workers int) (*proc.Process, error) {
	p, err := proc.Start(ctx, proc.Options{Binary: b.envoy, Bootstrap: bootstrap, Concurrency: workers, LogLevel: "error"})
	if err != nil {
		return nil, err
	}
	if err := machine.Pin(p.Pid(), b.allCores...); err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	return p, nil
}

// ready waits until it serves and confines it to its cores.
func (b *bench) ready(ctx context.Context, p *proc.Process, cores []int) error {
	if err := p.WaitReady(ctx); err != nil {
		return err
	}
	return machine.Pin(p.Pid(), cores...)
}

func (m *visitor) measure(ctx context.Context) (err error) {
	for _, step := range []func(context.Context) error{m.dial, m.fill, m.warm, m.turns, m.latency, m.prove} {
		if err := step(ctx); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	v := &m.found
	if m.subject.limit > 0 {
		v.over = max(0, v.admitted-m.subject.limit)
	}
	v.baseUs, v.testUs, v.ratio = sample.Median(m.bases), sample.Median(m.tests), sample.Median(sample.Ratios(m.tests, m.bases))
	v.serviceUs, v.redisUs = sample.Median(m.services), sample.Median(m.redises)
	v.rss, err = m.process.RSS()
	return err
}

func (m *visitor) dial(ctx context.Context) error {
	for name, into := range map[string]*clients{"base": &m.base, "test": &m.test} {
		address, err := m.process.Listener(ctx, name)
		if err != nil {
			return err
		}
		if *into, err = dial(address, m.subject.path, max(m.subject.keys, 1)); err != nil {
			return err
		}
	}
	return nil
}

// fill asks once for each of very many keys, and notes what memory that takes.
func (m *visitor) fill(ctx context.Context) error {
	if m.subject.keys < manyKeys {
		return nil
	}
	before, err := m.process.Memory(ctx)
	if err != nil {
		return err
	}
	// Each connection begins an eighth further and asks for an eighth.
	if _, err := m.ask(m.test, m.subject.keys); err != nil {
		return err
	}
	after, err := m.process.Memory(ctx)
	m.found.bytesPerKey = (float64(after) - float64(before)) / float64(m.subject.keys)
	return err
}

// warm loads both listeners, and finds out how many requests make a turn.
func (m *visitor) warm(ctx context.Context) error {
	step := 250
	if m.subject.path != "" {
		step = 2 * connections
	}
	for _, side := range []clients{m.base, m.test} {
		for began := time.Now(); time.Since(began) < m.warmUp && ctx.Err() == nil; {
			got, err := m.ask(side, step)
			if err != nil {
				return err
			}
			m.perTurn = max(connections, int(time.Duration(step)*m.turn/got.took))
		}
	}
	return nil
}

// turns loads the listeners by turns, each pair in the other order, so that what
// drifts tells on both alike.
func (m *visitor) turns(ctx context.Context) error {
	for i := range m.pairs {
		sides := []clients{m.base, m.test}
		for j := range sides {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := m.oneTurn(sides[j^i&1]); err != nil {
				return err
			}
		}
	}
	return nil
}

// processes are those that a request costs: Envoy first.
func (m *visitor) processes() []int {
	list := []int{m.process.Pid()}
	if m.subject.service {
		list = append(list, m.service.ratelimit.Pid(), m.service.redis.Pid())
	}
	return list
}

// oneTurn loads one listener and notes the CPU time of a request.
func (m *visitor) oneTurn(side clients) error {
	before, err := cpuTimes(m.processes())
	if err != nil {
		return err
	}
	got, err := m.ask(side, m.perTurn)
	if err != nil {
		return err
	}
	after, err := cpuTimes(m.processes())
	if err != nil {
		return err
	}
	perRequest := func(i int) float64 {
		return float64((after[i] - before[i]).Nanoseconds()) / 1e3 / float64(got.admitted+got.denied)
	}
	if !m.isTest(side) {
		m.bases = append(m.bases, perRequest(0))
		return nil
	}
	m.tests = append(m.tests, perRequest(0))
	if m.subject.service {
		m.services, m.redises = append(m.services, perRequest(1)), append(m.redises, perRequest(2))
	}
	return nil
}

func cpuTimes(pids []int) (list []time.Duration, err error) {
	for _, pid := range pids {
		used, err := child.CPUTime(pid)
		if err != nil {
			return nil, err
		}
		list = append(list, used)
	}
	return list, nil
}

// ask sends n requests to a listener as fast as they are answered.
func (m *visitor) ask(side clients, n int) (outcome, error) {
	got, err := side.full(n)
	m.count(side, got)
	return got, err
}

// count keeps count of what the test side answered.
func (m *visitor) count(side clients, got outcome) {
	if m.isTest(side) {
		m.found.admitted += got.admitted
		m.found.denied += got.denied
	}
}

func (m *visitor) isTest(side clients) bool { return side[0] == m.test[0] }

// latency asks at a rate that leaves Envoy idle most of the time.
func (m *visitor) latency(context.Context) error {
	if m.subject.path != "" { // it cannot answer so many
		return nil
	}
	base, err := m.base.paced(slowRate, slowTime)
	if err != nil {
		return err
	}
	test, err := m.test.paced(slowRate, slowTime)
	m.count(m.test, test)
	m.found.base, m.found.test = base.latency(), test.latency()
	return err
}

// prove makes sure that another limiter did its work: on a route that it has
// nothing to say to, it would cost nothing.
func (m *visitor) prove(ctx context.Context) error {
	if m.subject.proof == "" {
		return nil
	}
	stats, err := m.process.Stats(ctx, "^"+regexp.QuoteMeta(m.subject.proof)+"$")
	if err != nil {
		return err
	}
	if seen, asked := stats[m.subject.proof], m.found.admitted+m.found.denied; seen != uint64(asked) {
		return fmt.Errorf("%s is %d after %d requests", m.subject.proof, seen, asked)
	}
	return nil
}
