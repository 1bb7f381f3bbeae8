package decision

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/proc"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Envoy accepts the configuration of every case. It loads the modules too, but reads
// no policy: those are read here.
func TestBootstraps(t *testing.T) {
	binary, err := proc.Find()
	require.NoError(t, err)
	b := &bench{envoy: binary, dir: t.TempDir(), upstream: 1, service: &service{port: 1}}
	b.wasm = filepath.Join(b.dir, "floor.wasm") // quicker to load
	seen, valid := map[string]bool{}, map[string]bool{}
	for _, s := range subjects() {
		require.False(t, seen[s.name], s.name)
		seen[s.name] = true
		if s.policy != "" {
			doc, err := policy.ParseJSON([]byte(s.policy))
			require.NoError(t, err, s.name)
			_, problems := policy.Read(doc)
			require.Empty(t, problems, s.name)
		}
		// Those that differ in their policies alone are the same to Envoy.
		if kind := fmt.Sprint(s.filter, s.floor, s.direct, s.workers > 1, s.service); !valid[kind] {
			valid[kind] = true
			bootstrap, err := b.bootstrap(s)
			require.NoError(t, err, s.name)
			require.NoError(t, proc.Validate(t.Context(), binary, bootstrap), s.name)
		}
	}
	for _, name := range []string{caseService, caseFloor, caseFloorFields, caseHeader, caseFields, caseThreeRules, caseDenied, caseDirectAllowed, caseDirectDenied, caseManyKeys, caseSettled, caseEvents, caseJSON} {
		require.True(t, seen[name], "a target is about %s", name)
	}
}
