package main_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// explainPolicy has the management token "test".
const explainPolicy = `{"version":1,` + manage + `,"rules":[` + perUser + `]}`

func explainRequest(description ...string) *sim.Request {
	r := &sim.Request{Method: "POST", Path: "/.sluice/explain", Headers: [][2]string{{"authorization", "Bearer test"}}}
	for _, d := range description {
		r.Headers = append(r.Headers, [2]string{"x-sluice-request", d})
	}
	return r
}

// Each worker explains what all workers have counted. The store and the VM's metrics
// stay the same, and no log line has the key.
func TestExplain(t *testing.T) {
	b := start(t, func(o *sim.Options) { o.Workers = 2 })
	require.NoError(t, b.Configure([]byte(explainPolicy)))
	request := explainRequest(`{"headers":{"X-User-Id":["alice"]}}`)
	body := string(b.serve(t, 0, request).Body)
	require.Contains(t, body, `"windows":[{"limit":2,"per_ns":3600000000000,"used":0,`)
	require.Zero(t, b.Shared().Len(), "not even a table")

	require.Equal(t, 200, b.serve(t, 0, alice).Status)
	require.Equal(t, 200, b.serve(t, 0, alice).Status)
	before := b.Shared().Snapshot()
	for worker := range 2 {
		body := string(b.serve(t, worker, request).Body)
		require.True(t, strings.HasPrefix(body, `{"allowed":false,"denied_by":"per-user","retry_after_ns":`), body)
		require.Contains(t, body, `"key":[{"part":"header x-user-id","value":"alice"}]`)
		require.Contains(t, body, `"used":2,"remaining":0,`)
		require.Contains(t, body, `"used":2,"remaining":7,`)
		require.NotContains(t, b.calls, "set_shared_data")
	}
	require.Equal(t, before, b.Shared().Snapshot())
	b.TickDue()
	require.NoError(t, b.Tick(1))
	require.Empty(t, b.Metrics()["rate_limit_denied_total;rule=per-user;"])
	require.NotContains(t, strings.Join(b.log, "\n"), "alice")
}

func TestExplainBadRequests(t *testing.T) {
	b := start(t)
	require.NoError(t, b.Configure([]byte(explainPolicy)))
	for description, want := range map[string]string{
		"":                               "must be a JSON object",
		`[]`:                             "must be a JSON object",
		`{"headers":{"a":"s3cret"}`:      "must be a JSON object",
		`{"shape":"s3cret"}`:             `\"shape\" is none of method, host, path, headers, client_ip, route, properties`,
		`{"method":7}`:                   "method: must be text",
		`{"path":"s3cret"}`:              "path: must start with /",
		`{"client_ip":"s3cret"}`:         "client_ip: is no IP address",
		`{"headers":["s3cret"]}`:         "headers: must be an object",
		`{"headers":{":path":"s3cret"}}`: `\":path\" is no header`,
		`{"headers":{"a":["s3cret",1]}}`: `\"a\" must be text or a list of texts`,
	} {
		res := b.serve(t, 0, explainRequest(description))
		require.Equal(t, 400, res.Status, description)
		require.Contains(t, string(res.Body), want, description)
		require.NotContains(t, string(res.Body), "s3cret")
	}
	res := b.serve(t, 0, explainRequest())
	require.Equal(t, 400, res.Status)
	require.Contains(t, string(res.Body), "the header x-sluice-request must describe the request")

	get := explainRequest(`{}`)
	get.Method = "GET"
	require.Equal(t, 405, b.serve(t, 0, get).Status)
	stranger := explainRequest(`{}`)
	stranger.Headers[0][1] = "Bearer other"
	require.Equal(t, 401, b.serve(t, 0, stranger).Status)
}
