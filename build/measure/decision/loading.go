package decision

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

// lateBootstrap is an Envoy without listeners that reads them from a file.
const lateBootstrap = `
node: {id: loading, cluster: loading}
admin:
  address: {socket_address: {address: 127.0.0.1, port_value: 0}}
dynamic_resources:
  lds_config:
    resource_api_version: V3
    path_config_source: {path: %q}
`

// lateListener is that file with one listener, whose filter is given as JSON.
const lateListener = `
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
	// loadTime is how long a load may take before it is given up.
	loadTime = time.Minute
	// settleTime is how long memory is given to come to rest.
	settleTime = 500 * time.Millisecond
)

// loading is what it takes a running Envoy to load a filter.
type loading struct {
	blocked time.Duration // longest time without an answer of the main thread while it loaded the module
	changed time.Duration // the same while it took the changed policy
	grown   uint64        // bytes resident more than before the module
}

// loading starts an Envoy, gives it a listener with the filter while it serves, and then changes
// the policy, unless changed is empty. It asks the admin interface all the while, which the main
// thread alone answers.
func (b *bench) loading(ctx context.Context, workers int, plugin envoy.Plugin, changed string) (got loading, err error) {
	ctx, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	l := late{listeners: filepath.Join(b.dir, "lds.yaml")}
	if err := replace(l.listeners, []byte(`{version_info: "1", resources: []}`)); err != nil {
		return got, err
	}
	if l.process, err = b.startEnvoy(ctx, fmt.Appendf(nil, lateBootstrap, l.listeners), workers); err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, l.process.Kill()) }()
	if err := l.process.WaitReady(ctx); err != nil {
		return got, err
	}
	before, err := l.settled()
	if err != nil {
		return got, err
	}
	if got.blocked, err = l.give(ctx, plugin, 2); err != nil {
		return got, err
	}
	after, err := l.settled()
	got.grown = after - min(before, after)
	if err == nil && changed != "" {
		plugin.Policy = []byte(changed)
		got.changed, err = l.give(ctx, plugin, 3)
	}
	return got, err
}

// late is an Envoy that a filter is loaded into.
type late struct {
	process   *proc.Process
	listeners string // file
}

func (l late) settled() (uint64, error) {
	time.Sleep(settleTime)
	return l.process.RSS()
}

// give has Envoy take the listener with a filter, as that version of its
// listeners, and returns the longest wait for an answer.
func (l late) give(ctx context.Context, plugin envoy.Plugin, version uint64) (longest time.Duration, err error) {
	config, err := plugin.ExtensionConfig()
	if err != nil {
		return 0, err
	}
	filter, err := protojson.Marshal(config.TypedConfig)
	if err != nil {
		return 0, fmt.Errorf("marshal filter: %w", err)
	}
	if err := replace(l.listeners, fmt.Appendf(nil, lateListener, version, config.Name, filter)); err != nil {
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
