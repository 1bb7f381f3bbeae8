package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// workers is how many threads serve in the Envoy under measurement.
const workers = 4

// change measures what a new policy does to a real Envoy that serves.
func (b *bench) change(ctx context.Context) error {
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	for _, size := range []struct {
		rules  int
		name   string
		target float64
	}{{10, "10 rules", 30}, {most, "10,000 rules", 0}} {
		if err := b.changeOf(ctx, upstream.Listener.Addr().String(), size.rules, size.name, size.target); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) changeOf(ctx context.Context, upstream string, rules int, name string, target float64) error {
	s, err := b.serve(ctx, fmt.Sprintf("envoy-%d", rules))
	if err != nil {
		return err
	}
	defer s.kill()
	e, err := b.startEnvoy(ctx, s, upstream)
	if err != nil {
		return err
	}
	defer func() { _ = e.Kill() }()
	listener, err := e.Listener(ctx, "ingress")
	if err != nil {
		return err
	}
	number := 0
	apply := func(int) ([]float64, error) {
		number++
		return b.changeOnce(ctx, s, e, listener, rules, number)
	}
	if _, err := apply(0); err != nil { // from no policy at all
		return err
	}
	columns, err := b.repeat(ctx, apply)
	if err != nil {
		return fmt.Errorf("%w; Envoy's log ends: %.2000s", err, e.Log()[max(0, len(e.Log())-2000):])
	}
	for i, c := range []struct {
		what, unit string
		target     float64
	}{
		{"apply to ACK, " + name, "ms", 0},
		{"main thread blocked by it, " + name, "ms", target},
		{"and without a change, in the same time", "ms", 0},
		{"CPU of the main thread for it, " + name, "ms", 0},
		{"a request held up by it, " + name, "ms", 0},
		{"memory of Envoy, " + name, "MiB", 0},
	} {
		b.row(c.what, c.unit, c.target, columns[i]...)
	}
	return nil
}

func (b *bench) startEnvoy(ctx context.Context, s *server, upstream string) (*proc.Process, error) {
	bootstrap, err := b.command(ctx, "render", "envoy", "--xds", s.xds, "--node", "measured", "--listen", "127.0.0.1:0",
		"--upstream", upstream, "--admin", "127.0.0.1:0", "--wasm", b.wasm)
	if err != nil {
		return nil, err
	}
	e, err := proc.Start(ctx, proc.Options{Binary: b.envoy, Bootstrap: []byte(bootstrap.output), Concurrency: workers})
	if err != nil {
		return nil, err
	}
	if err := e.WaitReady(ctx); err != nil {
		return nil, errors.Join(err, e.Kill())
	}
	return e, nil
}

// changeOnce applies two policies. During the first the admin interface, which
// the main thread alone answers, is asked without a pause, during the second a
// worker is: the longest wait is for how long they did nothing else.
func (b *bench) changeOnce(ctx context.Context, s *server, e *proc.Process, listener string, rules, number int) ([]float64, error) {
	admin := func(ctx context.Context) error { _, err := e.Get(ctx, "/ready"); return err }
	took, blocked, err := b.changeUnder(ctx, s, admin, rules, 2*number)
	if err != nil {
		return nil, err
	}
	idle := watch(ctx, admin)
	time.Sleep(took)
	unblocked := idle.longest()

	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	request := func(ctx context.Context) error { return get(ctx, client, "http://"+listener+"/none") }
	before, err := mainThread(e.Pid())
	if err != nil {
		return nil, err
	}
	_, held, err := b.changeUnder(ctx, s, request, rules, 2*number+1)
	if err != nil {
		return nil, err
	}
	after, err := mainThread(e.Pid())
	if err != nil {
		return nil, err
	}
	now, _, err := memoryOf(e.Pid())
	return []float64{
		milliseconds(took), milliseconds(blocked), milliseconds(unblocked), milliseconds(after - before), milliseconds(held), now,
	}, err
}

// changeUnder applies a policy while somebody is asked, until all threads have
// it, and returns how long the ACK took and the longest wait.
func (b *bench) changeUnder(ctx context.Context, s *server, ask func(context.Context) error, rules, limit int) (took, longest time.Duration, err error) {
	file, err := b.file("change.yaml", policyOf(rules, limit))
	if err != nil {
		return 0, 0, err
	}
	w := watch(ctx, ask)
	r, err := s.apply(ctx, file)
	if err == nil {
		time.Sleep(r.wall) // the ACK comes from the main thread: the workers are told behind it
	}
	return r.wall, w.longest(), err
}

func get(ctx context.Context, client *http.Client, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	res, err := client.Do(r)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// watcher asks without a pause and remembers the longest wait.
type watcher struct {
	stop context.CancelFunc
	most chan time.Duration
}

func watch(ctx context.Context, ask func(context.Context) error) watcher {
	ctx, stop := context.WithCancel(ctx)
	w := watcher{stop, make(chan time.Duration, 1)}
	go func() {
		most := time.Duration(0)
		for ctx.Err() == nil {
			asked := time.Now()
			if err := ask(ctx); err == nil || ctx.Err() != nil { // answered, or still waiting
				most = max(most, time.Since(asked))
			}
		}
		w.most <- most
	}()
	return w
}

// longest ends the asking. A wait that is under way counts too, as far as it got.
func (w watcher) longest() time.Duration {
	w.stop()
	return <-w.most
}
