package scale

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/sluice-ratelimit/sluice/build/measure/machine"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// workers is how many threads serve in the Envoy under measurement.
const workers = 4

// change measures what a new policy does to a real Envoy that serves.
func (b *bench) change(ctx context.Context) error {
	if err := b.changeOf(ctx, 10, "10 rules", 30); err != nil {
		return err
	}
	return b.changeOf(ctx, maxRules, "10,000 rules", 0)
}

// changing is an Envoy with the server that changes its policy.
type changing struct {
	*server
	envoy  *proc.Process
	url    string // of its listener
	rules  int
	number int // of changes so far
}

func (b *bench) changeOf(ctx context.Context, rules int, name string, target float64) (err error) {
	s, err := b.serve(ctx, fmt.Sprintf("envoy-%d", rules))
	if err != nil {
		return err
	}
	defer s.Kill()
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	bootstrap, err := b.cli(ctx, "render", "envoy", "--xds", s.xds, "--node", "measured", "--listen", "127.0.0.1:0",
		"--upstream", upstream.Listener.Addr().String(), "--admin", "127.0.0.1:0", "--wasm", b.wasm)
	if err != nil {
		return err
	}
	e, err := proc.Start(ctx, proc.Options{Binary: b.envoy, Bootstrap: bootstrap.Out, Concurrency: workers})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Kill()) }()
	if err := e.WaitReady(ctx); err != nil {
		return err
	}
	address, err := e.Listener(ctx, "ingress")
	if err != nil {
		return err
	}
	c := &changing{server: s, envoy: e, url: "http://" + address + "/none", rules: rules}
	if _, err := c.once(ctx); err != nil { // from no policy at all
		return err
	}
	err = b.take(ctx, []column{
		{"apply to ACK, " + name, "ms", 0},
		{"main thread blocked by it, " + name, "ms", target},
		{"and without a change, in the same time", "ms", 0},
		{"CPU of the main thread for it, " + name, "ms", 0},
		{"a request held up by it, " + name, "ms", 0},
		{"memory of Envoy, " + name, "MiB", 0},
	}, func() ([]float64, error) { return c.once(ctx) })
	if err != nil {
		return fmt.Errorf("%w; Envoy's log ends: %s", err, e.Log()[max(0, len(e.Log())-2000):])
	}
	return nil
}

// once applies two policies. During the first it asks the admin interface, which the
// main thread alone answers, without a pause; during the second it asks a worker. The
// longest wait is for how long they did nothing else.
func (c *changing) once(ctx context.Context) ([]float64, error) {
	admin := func(ctx context.Context) error { _, err := c.envoy.Get(ctx, "/ready"); return err }
	took, blocked, err := c.under(ctx, admin)
	if err != nil {
		return nil, err
	}
	idle := watch(ctx, admin)
	time.Sleep(took)
	unblocked := idle.longest()

	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	before, err := machine.MainThreadTime(c.envoy.Pid())
	if err != nil {
		return nil, err
	}
	_, held, err := c.under(ctx, func(ctx context.Context) error { _, err := get(ctx, client, c.url); return err })
	if err != nil {
		return nil, err
	}
	after, err := machine.MainThreadTime(c.envoy.Pid())
	if err != nil {
		return nil, err
	}
	now, _, err := machine.Memory(c.envoy.Pid())
	return []float64{ms(took), ms(blocked), ms(unblocked), ms(after - before), ms(held), now}, err
}

// under applies a new policy while somebody is asked, until all threads have it. It
// returns how long the ACK took and the longest wait.
func (c *changing) under(ctx context.Context, ask func(context.Context) error) (took, longest time.Duration, err error) {
	c.number++
	w := watch(ctx, ask)
	ran, err := c.apply(ctx, policyOf(c.rules, c.number))
	if err == nil {
		time.Sleep(ran.Wall) // the ACK comes from the main thread: the workers are told behind it
	}
	return ran.Wall, w.longest(), err
}

// watcher asks without a pause and remembers the longest wait.
type watcher struct {
	stop context.CancelFunc
	wait chan time.Duration
}

func watch(ctx context.Context, ask func(context.Context) error) watcher {
	ctx, stop := context.WithCancel(ctx)
	w := watcher{stop, make(chan time.Duration, 1)}
	go func() {
		longest := time.Duration(0)
		for ctx.Err() == nil {
			asked := time.Now()
			if err := ask(ctx); err == nil || ctx.Err() != nil { // answered, or still waiting
				longest = max(longest, time.Since(asked))
			}
		}
		w.wait <- longest
	}()
	return w
}

// longest ends the asking. A wait that is under way counts too, as far as it got.
func (w watcher) longest() time.Duration {
	w.stop()
	return <-w.wait
}
