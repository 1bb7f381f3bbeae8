package importer_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/build/servertest"
)

// As docs/coming-from.md writes them, the limits of nginx decide as nginx does.
func TestLimitReqOfNginx(t *testing.T) {
	wasm := buildtest.Wasm(t)
	free, err := ports.Free(1)
	require.NoError(t, err)
	address := fmt.Sprint("127.0.0.1:", free[0])
	servertest.Nginx(t, address, fmt.Sprintf(`
  access_log off;
  limit_req_status 429;
  limit_req_log_level info;
  limit_req_zone $binary_remote_addr zone=one:1m rate=1r/m;
  limit_req_zone $binary_remote_addr zone=two:1m rate=1r/m;
  server { listen %s;
    location /plain { limit_req zone=one; try_files $uri =204; }
    location /burst { limit_req zone=two burst=3 nodelay; try_files $uri =204; } }`, address))
	for path, burst := range map[string]int{"/plain": 1, "/burst": 4} {
		var requests bytes.Buffer
		var there []bool
		for i := range 6 {
			answer, err := http.Get("http://" + address + path)
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			there = append(there, answer.StatusCode != http.StatusTooManyRequests)
			fmt.Fprintf(&requests, "{\"at_ms\": %d, \"client_ip\": \"192.0.2.7\"}\n", 1000+i)
		}
		policy := fmt.Sprintf("version: 1\nrules:\n  - name: one\n    key: [client_ip]\n    algorithm: token_bucket\n    limits: [{requests: 1, per: 1m, burst: %d}]\n", burst)
		require.Equal(t, there, decide(t, wasm, []byte(policy), &requests), path)
	}
}

// decide says which requests a policy allows.
func decide(t *testing.T, wasm, policy []byte, requests *bytes.Buffer) (allowed []bool) {
	t.Helper()
	for lines := simulated(t, wasm, policy, requests); lines.Scan(); {
		var answer struct{ Allowed bool }
		require.NoError(t, json.Unmarshal(lines.Bytes(), &answer))
		allowed = append(allowed, answer.Allowed)
	}
	return allowed
}
