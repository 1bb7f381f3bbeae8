package main_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/filter/internal/hosttest"
)

// The module without its fast path answers, counts and calls the host as it does
// with it. Package engine compares more of the same natively.
func TestTheFastPathDecidesAlike(t *testing.T) {
	const policies, steps = 60, 40
	general := buildtest.Plant(t, buildtest.Edit{
		File: "shared/state/fast.go",
		Old:  "if len(windows) == 0 ||", New: "if len(windows) >= 0 ||",
	})
	var pairs [2][2]*bench // with and without the fast path, traced and not
	for i := range pairs {
		for j := range pairs[i] {
			pairs[i][j] = start(t, func(o *sim.Options) {
				if j == 1 {
					o.Wasm = general
				}
				if i == 0 {
					o.Properties = map[string][]byte{"sluice.trace": []byte("1")}
				}
			})
		}
	}
	dice := rand.NewChaCha8([32]byte{2})
	requests, admitted := 0, 0
	for i := range policies {
		data := make([]byte, 1200)
		dice.Read(data)
		in := hosttest.Tape(data)
		text := fmt.Sprintf(`{"version":1,"headers":%q,"rules":[%s]}`,
			hosttest.Pick(&in, "none", "ietf", "x-ratelimit", "both", "both"), in.CommonRules())
		pair := pairs[i%2]
		for _, b := range pair {
			require.NoError(t, b.Configure([]byte(text)))
		}
		p := hosttest.New()
		p.Clock = pair[0].now
		for range steps {
			in.Request(p, false)
			r := &sim.Request{ClientIP: hosttest.Pick(&in, "192.0.2.7", "192.0.2.8", "2001:db8::1")}
			r.Method = p.Headers[":method"][0]
			for _, value := range p.Headers["u"] {
				r.Headers = append(r.Headers, [2]string{"u", value})
			}
			upstream := upstreams[in.Next()%len(upstreams)]
			r.Upstream = func(*sim.Request) (*sim.Response, error) { return &sim.Response{Status: 200, Headers: upstream}, nil }
			faults := sim.Faults{Get: in.Next()%30 == 0, Set: in.Next()%30 == 0, CAS: max(0, in.Next()-250)}
			pair[0].now, pair[1].now = p.Clock, p.Clock
			var said [2]*sim.Response
			for j := range pair {
				again := faults
				r.Faults = &again
				said[j] = pair[j].serve(t, 0, r)
			}
			have, want := said[0], said[1]
			require.Equal(t, want, have, text)
			require.Equal(t, pair[1].calls, pair[0].calls, text)
			require.Equal(t, pair[1].Shared().Snapshot(), pair[0].Shared().Snapshot(), text)
			if requests++; have.Status == 200 {
				admitted++
			}
		}
		for _, b := range pair {
			require.NoError(t, b.Tick(0))
		}
		require.Equal(t, pair[1].Metrics(), pair[0].Metrics(), text)
		require.Equal(t, pair[1].log, pair[0].log)
	}
	t.Logf("%d random requests to the compiled filter with and without its fast path, %d of them admitted", requests, admitted)
}

// upstreams are rate limit fields that a response may have already.
var upstreams = [][][2]string{
	nil, nil, nil,
	{{"x-ratelimit-limit", "5"}, {"x-ratelimit-remaining", "1"}, {"x-ratelimit-reset", "9"}},
	{{"ratelimit", `"u";r=1;t=2`}, {"ratelimit", `"v";r=1;t=2`}},
	{{"x-ratelimit-remaining", "many"}},
	{{"x-ratelimit-remaining", "3"}, {"x-ratelimit-reset", "1900000000"}, {"ratelimit-policy", `"u";q=3`}},
}
