package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-ratelimit/sluice/build/machine"
)

// proxies is how many proxies the control plane is measured with.
const proxies = 1000

// fleet measures serve with many proxies: a change of policy, and what happens
// when the control plane dies and all of them come back at once.
func (b *bench) fleet(ctx context.Context) error {
	for _, size := range []struct {
		rules  int
		name   string
		target float64
	}{{10, "10 rules", 2}, {10_000, "10,000 rules", 0}} {
		if err := b.fleetOf(ctx, size.rules, size.name, size.target); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) fleetOf(ctx context.Context, rules int, name string, target float64) error {
	s, err := b.serve(ctx, fmt.Sprintf("data-%d", rules))
	if err != nil {
		return err
	}
	defer func() { s.kill() }()
	f, err := newFleet(ctx, s.xds, proxies)
	if err != nil {
		return err
	}
	defer f.close()
	if err := s.connected(ctx); err != nil {
		return err
	}
	revision := uint64(0)
	columns, err := b.repeat(ctx, func(int) ([]float64, error) {
		revision++
		took, err := b.applyToFleet(ctx, s, f, rules, revision)
		if err != nil {
			return nil, err
		}
		back, err := b.comeBack(ctx, s)
		return append(took, back...), err
	})
	if err != nil {
		return err
	}
	for i, c := range []struct {
		what, unit string
		target     float64
	}{
		{"apply to last ACK, " + name, "s", target},
		{"apply to its own end, " + name, "s", target},
		{"CPU of serve for it, " + name, "s", 0},
		{"most memory of serve since its start, " + name, "MiB", 0},
		{"a resource, " + name, "kB", 0},
		{"kill -9 to all connected again, " + name, "s", 0},
		{"CPU of serve for that, " + name, "s", 0},
		{"policies pushed again after that, " + name, "", 0},
	} {
		b.row(c.what, c.unit, c.target, columns[i]...)
	}
	return nil
}

// connected waits until serve has all proxies and none is behind.
func (s *server) connected(ctx context.Context) error {
	return until(ctx, "all proxies to connect", func() bool {
		return s.gauge(ctx, "sluice_proxies_connected") == proxies
	})
}

// applyToFleet applies a new revision and waits for every proxy.
func (b *bench) applyToFleet(ctx context.Context, s *server, f *fleet, rules int, revision uint64) ([]float64, error) {
	file, err := b.file("policy.yaml", policyOf(rules, int(revision)))
	if err != nil {
		return nil, err
	}
	before, err := machine.CPUTime(s.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	applied := make(chan error, 1)
	var r ran
	go func() {
		var err error
		r, err = s.apply(ctx, file)
		applied <- err
	}()
	last, err := f.await(ctx, revision, proxies)
	if failed := <-applied; failed != nil {
		return nil, failed
	}
	if err != nil {
		return nil, err
	}
	after, err := machine.CPUTime(s.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	_, most, err := memoryOf(s.cmd.Process.Pid)
	return []float64{
		last.at.Sub(began).Seconds(), r.wall.Seconds(), (after - before).Seconds(), most, float64(last.bytes) / 1000,
	}, err
}

// comeBack kills serve and waits until a new one has all proxies again.
func (b *bench) comeBack(ctx context.Context, s *server) ([]float64, error) {
	began := time.Now()
	s.kill()
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	if err := s.connected(ctx); err != nil {
		return nil, err
	}
	took := time.Since(began)
	if err := until(ctx, "no proxy to be behind", func() bool { return s.gauge(ctx, "sluice_proxies_behind") == 0 }); err != nil {
		return nil, err
	}
	used, err := machine.CPUTime(s.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	return []float64{took.Seconds(), used.Seconds(), s.gauge(ctx, "sluice_xds_pushes_total")}, nil
}
