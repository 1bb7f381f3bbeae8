package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/bench/performance"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// TestBootstraps has Envoy read the configuration of every case. Envoy loads
// the modules too, but none of the filter's policies: those are read here.
func TestBootstraps(t *testing.T) {
	binary, err := proc.Find()
	require.NoError(t, err)
	b := &bench{options: options{envoy: binary}, dir: t.TempDir(), upstream: 1, service: &service{port: 1}}
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "bare.wasm"), floor(), 0o600)) // quicker to load
	b.wasm = filepath.Join(b.dir, "bare.wasm")
	seen := map[string]bool{}
	for _, s := range subjects() {
		require.False(t, seen[s.name], s.name)
		seen[s.name] = true
		if s.policy != "" {
			require.Empty(t, refused(s.policy), s.name)
		}
		at, err := b.site(s)
		require.NoError(t, err, s.name)
		bootstrap, err := at.bootstrap()
		require.NoError(t, err, s.name)
		require.NoError(t, proc.Validate(t.Context(), binary, bootstrap), s.name)
	}
	for _, name := range []string{performance.None, performance.Floor, performance.Header, performance.Denied, performance.DirectAllowed, performance.DirectDenied, performance.Leased, performance.ManyKeys} {
		require.True(t, seen[name], "a target is about %s", name)
	}
	require.Equal(t, "rules[0].tenant: unknown field", refused(`{"version":1,"rules":[{"name":"a","limits":[],"tenant":1}]}`)[:30])
}
