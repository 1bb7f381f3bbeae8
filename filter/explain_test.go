package main_test

import (
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

func TestExplainBadRequests(t *testing.T) {
	b := start(t)
	require.NoError(t, b.Configure([]byte(explainPolicy)))
	for description, want := range map[string]string{
		"":                               "must be a JSON object",
		`[]`:                             "must be a JSON object",
		`{"headers":{"a":"s3cret"}`:      "must be a JSON object",
		`{"shape":"s3cret"}`:             `\"shape\" is none of method, host, path, headers, client_ip, route, properties`,
		`{"method":7}`:                   "method: must be text",
		`{"keys":"s3cret"}`:              "keys: must be true or false",
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
