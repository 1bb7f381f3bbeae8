package rules

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/request"
)

// What a body costs by what the headers say of its length, and whether they end the request.
func TestCostOfABody(t *testing.T) {
	p := hosttest.Policy(t, `{"name":"r","limits":["9999/1h"],"cost":[
		{"match":{"methods":["PUT"]},"cost":{"request_bytes":{"per_unit":4,"min":2,"max":50}}},
		{"cost":{"request_bytes":{"per_unit":2,"min":5,"max":80}}}]}`)
	for _, step := range []struct {
		method     string
		lengths    []string
		bodyless   bool
		units      uint32
		unreadable bool
	}{
		{"GET", nil, true, 5, false},
		{"DELETE", nil, true, 5, false},
		{"PUT", nil, true, 2, false},
		{"POST", nil, false, 80, false}, // in chunks
		{"PUT", nil, false, 50, false},
		{"POST", []string{"0"}, true, 5, false},
		{"POST", []string{"41"}, false, 21, false},
		{"POST", []string{"4000"}, false, 80, false},
		{"POST", []string{"41", "41"}, false, 21, false},
		{"POST", []string{"41", "42"}, false, 80, true},
		{"GET", []string{"+41"}, true, 80, true},
	} {
		source := hosttest.New()
		source.With(":method", step.method)
		source.Headers["content-length"], source.Bodyless = step.lengths, step.bodyless
		if step.lengths == nil {
			delete(source.Headers, "content-length")
		}
		r := request.New(source)
		costs := CompileCosts(&r, &p.Rules[0])
		r.Begin()
		units, unreadable := costs.Read(&r)
		require.Equal(t, step.units, units, "%+v", step)
		require.Equal(t, step.unreadable, unreadable, "%+v", step)
	}
}
