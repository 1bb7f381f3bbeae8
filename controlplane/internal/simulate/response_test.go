package simulate_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A denial shows the response of its rule: status and headers, also where an
// operation stands for a request, and after another policy came.
func TestResponseOfTheRule(t *testing.T) {
	out, err := run(t, `
version: 1
rules:
  - name: busy
    limits: [1/10s]
    response: {status: 503, body: "%LIMIT%", content_type: text/html, headers: {X-Reason: "%RULE%", x-wait: "%RETRY_AFTER%"}}
`, `{"at_ms":1500}
{"at_ms":1500}
{"at_ms":1500,"op":"peek","rule":"busy"}
{"at_ms":1500,"headers":{"content-type":"application/grpc"}}
`, 1)
	require.NoError(t, err)
	lines := strings.Split(out, "\n")
	require.Contains(t, lines[0], `"status":200,`)
	require.True(t, strings.HasSuffix(lines[0], `"headers":{}}`), lines[0])
	require.Contains(t, lines[1], `"allowed":false,"status":503,"denied_by":"busy"`)
	require.True(t, strings.HasSuffix(lines[1], `"headers":{"retry-after":"9","content-type":"text/html","x-reason":"busy","x-wait":"9"}}`), lines[1])
	require.Contains(t, lines[2], `"allowed":false,"status":503,`)
	require.Contains(t, lines[3], `"allowed":false,"status":200,`, "gRPC has its status in a header")
	require.Contains(t, lines[3], `"grpc-status":"8"`)
	require.Contains(t, lines[3], `"grpc-message":"1"`)
}
