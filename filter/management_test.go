package main_test

import (
	"encoding/json"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// widePolicy has a rule with windows of all algorithms, from the shortest to the
// longest.
const widePolicy = `{"version":1,` + manage + `,"rules":[
	{"name":"wide","key":[{"header":"k"}],"capacity":8,"cost":{"header":"c","min":0,"max":4294967295},"limits":["3/1ms",
		"4294967295/366d",
	 {"requests":7,"per":"366d","algorithm":"token_bucket","burst":4294967295,"name":"slow"},{"requests":4294967295,
	 	"per":"1ms","algorithm":"token_bucket"},
	 {"requests":5,"per":"1ms","algorithm":"sliding_window_counter"},{"requests":9,"per":"366d",
	 	"algorithm":"sliding_window_log"},
	 {"requests":9,"per":"366d","algorithm":"fixed_window_per_key","elastic":true},{"requests":8,"per":"366d",
	 	"jitter":100}]},
	{"name":"shut","key":[{"header":"k"}],"capacity":1,"limits":["0/1ms"],"mode":"shadow"},
	{"name":"once","match":{"paths":["=/once"]},"limits":["5/366d"]}]}`

// Random management requests come at random times. Each is answered with JSON,
// nothing panics or fails, and requests in between are counted.
func TestRandomManagementRequests(t *testing.T) {
	const steps = 6000
	random := rand.New(rand.NewPCG(1, 4))
	b := start(t, func(o *sim.Options) { o.Workers, o.OnCall = 2, nil })
	require.NoError(t, b.Configure([]byte(widePolicy)))
	began := b.now
	one := func(of ...string) string { return of[random.IntN(len(of))] }
	odd := func() string {
		return one("", "0", "1", "5", "-1", "+1", "1e3", " 1", "4294967295", "4294967296", "99999999999999999999", "0x10",
			"٣", "%00", "\xff", strings.Repeat("9", 300))
	}
	query := func() string {
		v := url.Values{"rule": {one("wide", "wide", "wide", "shut", "once", "", "none", "\xff")}}
		for range []int{1, 1, 1, 1, 0, 2}[random.IntN(6)] {
			v.Add("key", one("a", "b", "c", "d", "", "\xff", strings.Repeat("k", 3000)))
		}
		if random.IntN(2) == 0 {
			v.Set("n", one(odd(), "1", "4294967295"))
		}
		if random.IntN(3) == 0 {
			v.Set("window", one("slow", "0", "7", "8", odd()))
		}
		text := v.Encode()
		if random.IntN(10) == 0 {
			text = one("%", "&&;", "rule=wide;key=a", "key", strings.Repeat("key=a&", 2000), text[:len(text)/2], text+"%z")
		}
		return text
	}
	counted := map[int]int{}
	for range steps {
		switch random.IntN(6) {
		case 0:
			b.now += random.Int64N(3_000_000)
		case 1:
			b.now = began + random.Int64N(2_000_000_000_000_000_000) - 1_000_000_000_000_000_000
		case 2:
			b.now = []int64{0, 1, began, 7_289_568_000_000_000_000}[random.IntN(4)]
		}
		op := one("hit", "peek", "get", "inc", "set", "reset", "expires_at", "clean", "stats", "stat", "", "../explain",
			"\xff")
		r := &sim.Request{Method: one("POST", "POST", "POST", "POST", "POST", "POST", "POST", "POST", "GET", "", "\xff"),
			Path: "/.sluice/counters/" + op + "?" + query(),
			Headers: [][2]string{{"authorization", one("Bearer test", "Bearer test", "Bearer test", "Bearer test", "Bearer test",
				"bearer  test ", "Bearer", "Basic test")}}}
		if random.IntN(4) == 0 { // an ordinary request in between
			r = &sim.Request{Headers: [][2]string{{"k", one("a", "b", "e")}, {"c", odd()}}}
			require.Contains(t, []int{200, 429}, b.serve(t, random.IntN(2), r).Status)
			continue
		}
		res := b.serve(t, random.IntN(2), r)
		require.Contains(t, []int{200, 400, 401, 404, 405, 429}, res.Status, "%q: %s", r.Path, res.Body)
		require.True(t, json.Valid(res.Body), "%q: %q", r.Path, res.Body)
		counted[res.Status]++
	}
	require.Greater(t, counted[200], steps/20, "%v", counted)
	for _, line := range b.log {
		require.NotContains(t, line, "panic")
	}
	for w := range 2 {
		require.NoError(t, b.Failed(w))
		require.NoError(t, b.Tick(w))
	}
	for name, n := range b.Metrics() {
		require.False(t, strings.Contains(name, "errors") && n > 0, name)
	}
}
