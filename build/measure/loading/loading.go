// Package loading measures what it takes a running Envoy to load a filter: for how
// long its main thread does nothing else, and the memory it has afterwards.
//
// Its invariant: the same Envoy is asked before and after, so that the filter alone
// is measured. It must not import the filter or the control plane: it loads any
// module.
package loading

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// bootstrap is an Envoy without listeners that reads them from a file.
const bootstrap = `
node: {id: loading, cluster: loading}
admin:
  address: {socket_address: {address: 127.0.0.1, port_value: 0}}
dynamic_resources:
  lds_config:
    resource_api_version: V3
    path_config_source: {path: %q}
`

// listeners is that file with one listener, whose filter is given as JSON.
const listeners = `
version_info: "%d"
resources:
- "@type": type.googleapis.com/envoy.config.listener.v3.Listener
  name: loaded
  address: {socket_address: {address: 127.0.0.1, port_value: 0}}
  filter_chains:
  - filters:
    - name: http
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
        stat_prefix: loaded
        route_config: {virtual_hosts: [{name: none, domains: ["*"]}]}
        http_filters:
        - {name: %q, typed_config: %s}
        - {name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
`

const (
	// timeout is how long a load may take before it is given up.
	timeout = time.Minute
	// settleTime is how long memory is given to come to rest.
	settleTime = 500 * time.Millisecond
)

// Result is what one load took.
type Result struct {
	Blocked time.Duration // longest time without an answer of the main thread while it loaded the module
	Changed time.Duration // the same while it took the changed policy
	Grown   uint64        // bytes resident more than before the module
}

// Measure starts an Envoy and gives it a listener with the filter while it serves.
// It then changes the policy, unless changed is empty. It asks the admin interface
// all the while, which the main thread alone answers. It calls started, if not nil,
// with the process before anything else.
func Measure(ctx context.Context, binary string, workers int, plugin envoy.Plugin, changed string, started func(pid int) error) (r Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "loading-")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	l := load{listeners: filepath.Join(dir, "lds.yaml")}
	if err := replace(l.listeners, []byte(`{version_info: "1", resources: []}`)); err != nil {
		return r, err
	}
	l.process, err = proc.Start(ctx, proc.Options{Binary: binary, Bootstrap: fmt.Appendf(nil, bootstrap, l.listeners), Concurrency: workers})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, l.process.Kill()) }()
	if started != nil {
		if err := started(l.process.Pid()); err != nil {
			return r, err
		}
	}
	return l.measure(ctx, plugin, changed)
}

// load is an Envoy that a filter is loaded into.
type load struct {
	process   *proc.Process
	listeners string // file
}

func (l load) measure(ctx context.Context, plugin envoy.Plugin, changed string) (r Result, err error) {
	if err := l.process.WaitReady(ctx); err != nil {
		return r, err
	}
	before, err := l.settled()
	if err != nil {
		return r, err
	}
	if r.Blocked, err = l.give(ctx, plugin, 2); err != nil {
		return r, err
	}
	after, err := l.settled()
	r.Grown = after - min(before, after)
	if err == nil && changed != "" {
		plugin.Policy = []byte(changed)
		r.Changed, err = l.give(ctx, plugin, 3)
	}
	return r, err
}

func (l load) settled() (uint64, error) {
	time.Sleep(settleTime)
	return l.process.RSS()
}

// give has Envoy take the listener with a filter, as that version of its
// listeners, and returns the longest wait for an answer.
func (l load) give(ctx context.Context, plugin envoy.Plugin, version uint64) (longest time.Duration, err error) {
	config, err := plugin.ExtensionConfig()
	if err != nil {
		return 0, err
	}
	filter, err := protojson.Marshal(config.TypedConfig)
	if err != nil {
		return 0, fmt.Errorf("marshal filter: %w", err)
	}
	if err := replace(l.listeners, fmt.Appendf(nil, listeners, version, config.Name, filter)); err != nil {
		return 0, err
	}
	const taken, refused = "listener_manager.lds.update_success", "listener_manager.lds.update_rejected"
	for {
		asked := time.Now()
		stats, err := l.process.Stats(ctx, `^listener_manager\.lds\.update_(success|rejected)$`)
		longest = max(longest, time.Since(asked))
		switch {
		case err != nil:
			return 0, err
		case stats[refused] > 0:
			return 0, fmt.Errorf("load filter: Envoy refused it; its log ends:\n%s", l.process.Log())
		case stats[taken] >= version:
			return longest, nil
		}
	}
}

// replace replaces a file in one step, which is what Envoy watches for.
func replace(file string, text []byte) error {
	next := file + ".next"
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}
	return os.Rename(next, file)
}
