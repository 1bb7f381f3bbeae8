package main

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
node: {id: size, cluster: size}
admin:
  address: {socket_address: {address: 127.0.0.1, port_value: 0}}
dynamic_resources:
  lds_config:
    resource_api_version: V3
    path_config_source: {path: %q}
`

// listeners is that file with one listener, whose filter is given as JSON.
const listeners = `
version_info: "2"
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
        - name: sluice
          typed_config: %s
        - name: router
          typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
`

// loadTimeout is how long a load may take before it is no longer waited for.
const loadTimeout = time.Minute

// measureLoad starts an Envoy, gives it a listener with the filter while it
// runs, and returns the longest time for which its main thread, which alone
// answers the admin interface, answered nothing.
func measureLoad(ctx context.Context, binary, wasm string) (longest time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "size-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "lds.yaml")
	if err := os.WriteFile(file, []byte(`{version_info: "1", resources: []}`), 0o600); err != nil {
		return 0, err
	}
	p, err := proc.Start(ctx, proc.Options{Binary: binary, Bootstrap: fmt.Appendf(nil, bootstrap, file)})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.Kill()) }()
	if err := p.WaitReady(ctx); err != nil {
		return 0, err
	}
	if err := addListener(file, wasm); err != nil {
		return 0, err
	}
	// Each answer either lists the listener or does not: the question that
	// shows the gap also shows when it is over.
	for {
		asked := time.Now()
		_, err := p.Listener(ctx, "loaded")
		longest = max(longest, time.Since(asked))
		if err == nil {
			return longest, nil
		}
		stats, statsErr := p.Stats(ctx, `^listener_manager\.lds\.update_rejected$`)
		switch {
		case statsErr != nil:
			return 0, statsErr
		case stats["listener_manager.lds.update_rejected"] > 0:
			return 0, fmt.Errorf("load filter: Envoy refused it; its log ends:\n%s", p.Log())
		}
	}
}

// addListener replaces the file in one step, which is what Envoy watches for.
func addListener(file, wasm string) error {
	config, err := envoy.Plugin{Wasm: wasm, Policy: []byte(envoy.EmptyPolicy)}.Any()
	if err != nil {
		return err
	}
	filter, err := protojson.Marshal(config)
	if err != nil {
		return fmt.Errorf("marshal filter: %w", err)
	}
	next := file + ".next"
	if err := os.WriteFile(next, fmt.Appendf(nil, listeners, filter), 0o600); err != nil {
		return err
	}
	return os.Rename(next, file)
}
