package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-ratelimit/sluice/build/bench/performance"
	"github.com/sluice-ratelimit/sluice/build/loading"
	"github.com/sluice-ratelimit/sluice/build/machine"
	"github.com/sluice-ratelimit/sluice/envoy"
)

// module is something that an Envoy loads while it runs.
type module struct {
	name, title string
	plugin      func() (envoy.Plugin, error)
	changed     string // policy
}

// modules are those that were asked for.
func (b *bench) modules() (list []module) {
	if b.against != "" {
		return nil
	}
	before, after := paths(10), policyOf("", byHeader("another", limits("5/1h")))
	for _, m := range []module{
		{name: "floor", title: "the floor's module", plugin: b.floorPlugin},
		{name: "bare", title: "bare Go module", plugin: b.barePlugin},
		{name: performance.Ours, title: "the filter with a policy of 10 rules", changed: after, plugin: func() (envoy.Plugin, error) {
			return envoy.Plugin{Wasm: b.wasm, Policy: []byte(before)}, nil
		}},
	} {
		if b.which.MatchString("load-" + m.name) {
			list = append(list, m)
		}
	}
	return list
}

// moduleWorkers is how many threads of Envoy loading is measured with: each
// has a machine of its own.
const moduleWorkers = 4

// visitModule has a new Envoy load one, and take another policy where it has one.
func (b *bench) visitModule(ctx context.Context, m module, into *performance.Load) error {
	plugin, err := m.plugin()
	if err != nil {
		return err
	}
	var changed []byte
	if m.changed != "" {
		changed = []byte(m.changed)
	}
	got, err := loading.Measure(ctx, b.envoy, moduleWorkers, plugin, changed, func(pid int) error { return machine.Pin(pid, b.allCores...) })
	if err != nil {
		return err
	}
	into.BlockedMs = append(into.BlockedMs, milliseconds(got.Blocked))
	into.Grown = append(into.Grown, got.Grown)
	if changed != nil {
		into.ChangedMs = append(into.ChangedMs, milliseconds(got.Changed))
	}
	fmt.Printf("load %s: blocked for %v, grown by %.1f MiB\n", m.name, got.Blocked.Round(time.Millisecond), float64(got.Grown)/(1<<20))
	return nil
}
