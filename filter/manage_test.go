package main_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// managedBy returns a policy with this management token.
func managedBy(token string) []byte {
	sum := sha256.Sum256([]byte(token))
	return []byte(`{"version":1,"manage":{"path":"/.sluice/",` +
		`"token_sha256":"` + hex.EncodeToString(sum[:]) + `"},"rules":[{"name":"r","limits":["1/1h"]}]}`)
}

// manage is a policy's field with the management token "test".
const manage = `"manage":{"path":"/.sluice/",` +
	`"token_sha256":"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}`

// statsWith returns a management request with these credentials from that address.
func statsWith(authorization, address string) *sim.Request {
	return &sim.Request{
		Method: "POST", Path: "/.sluice/counters/stats", ClientIP: address, ClientPort: 4711,
		Headers: [][2]string{{"authorization", authorization}},
	}
}

// A policy cannot have an empty token, a long token works, and everything else is
// refused.
func TestOnlyTheTokenIsAccepted(t *testing.T) {
	b := start(t)
	require.Error(t, b.Configure(managedBy("")))
	long := strings.Repeat("k", 1024)
	require.NoError(t, b.Configure(managedBy(long)))
	for _, tc := range []struct {
		authorization string
		want          int
	}{
		{"Bearer " + long, 200},
		{"bearer  " + long + " ", 200},
		{"Bearer " + long + "k", 401},
		{"Bearer " + strings.Repeat("k", 60_000), 401},
		{"Bearer", 401}, {"Bearer ", 401}, {"", 401}, {"Basic " + long, 401}, {long, 401},
	} {
		require.Equal(t, tc.want, b.serve(t, 0, statsWith(tc.authorization, "192.0.2.1")).Status, "%.20q", tc.authorization)
	}
}

// guess sends wrong tokens and counts the answers by status.
func (b *bench) guess(t *testing.T, n int, from func(i int) string) map[int]int {
	t.Helper()
	statuses := map[int]int{}
	for i := range n {
		statuses[b.serve(t, 0, statsWith(fmt.Sprint("Bearer wrong", i), from(i))).Status]++
	}
	return statuses
}

// An address that has sent no wrong token is served, even if very many others send some. Each
// address that is remembered has ten attempts; an IPv6 network of 64 bits counts as one address.
func TestWrongTokensLockNobodyElseOut(t *testing.T) {
	v4 := func(n int) func(int) string {
		return func(i int) string { return fmt.Sprintf("10.0.%d.%d", i%n>>8, i%n&255) }
	}
	v6 := func(n int) func(int) string {
		return func(i int) string { return fmt.Sprintf("2001:db8:0:%x::%x", i%n, i+1) }
	}
	for _, tc := range []struct {
		name string
		n    int
		from func(int) string
		want map[int]int
	}{
		{"250 addresses", 5000, v4(250), map[int]int{401: 2500, 429: 2500}},
		{"256 networks", 5120, v6(256), map[int]int{401: 2560, 429: 2560}},
		{"a network", 100, v6(1), map[int]int{401: 10, 429: 90}},
		{"10,000 addresses", 20_000, v4(10_000), map[int]int{401: 20_000}},
		{"10,000 networks", 20_000, v6(10_000), map[int]int{401: 20_000}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := start(t, func(o *sim.Options) { o.OnCall = nil })
			require.NoError(t, b.Configure(managedBy("right")))
			require.Equal(t, tc.want, b.guess(t, tc.n, tc.from))
			for i := range 64 {
				for _, operator := range []string{"198.51.100.%d", "2001:db8:1:%x::1"} {
					operator = fmt.Sprintf(operator, i)
					require.Equal(t, 200, b.serve(t, 0, statsWith("Bearer right", operator)).Status, operator)
				}
			}
		})
	}
}

// If the bootstrap names the port of the management listener, management works only
// there, unless the policy names another port.
func TestNodeConfinesManagement(t *testing.T) {
	port := func(n byte) []byte { return []byte{n, 0, 0, 0, 0, 0, 0, 0} }
	for _, tc := range []struct {
		node, policy string
		at           byte
		want         int
	}{
		{"", "", 80, 200},
		{"99", "", 99, 200},
		{"99", "", 80, 404},
		{"99", `"port":80,`, 80, 200},
		{"99", `"port":80,`, 99, 404},
		{"0", "", 80, 200}, {"x", "", 80, 200}, {"70000", "", 80, 200},
	} {
		b := start(t, func(o *sim.Options) {
			if tc.node != "" {
				o.Properties = map[string][]byte{"xds.node.metadata.sluice.manage_port": []byte(tc.node)}
			}
		})
		policy := strings.Replace(string(managedBy("right")), `"manage":{`, `"manage":{`+tc.policy, 1)
		require.NoError(t, b.Configure([]byte(policy)))
		r := statsWith("Bearer right", "192.0.2.1")
		r.Properties = map[string][]byte{"destination.port": port(tc.at)}
		require.Equal(t, tc.want, b.serve(t, 0, r).Status, "%v", tc)
	}
}

// widePolicy has a rule with windows of all algorithms, from the shortest to the
// longest.
const widePolicy = `{"version":1,` + manage + `,"rules":[
	{"name":"wide","key":[{"header":"k"}],"capacity":8,"cost":{"header":"c","min":0,"max":4294967295},"limits":[
		"3/1ms","4294967295/366d",
		{"requests":7,"per":"366d","algorithm":"token_bucket","burst":4294967295,"name":"slow"},
		{"requests":4294967295,"per":"1ms","algorithm":"token_bucket"},
		{"requests":5,"per":"1ms","algorithm":"sliding_window_counter"},
		{"requests":9,"per":"366d","algorithm":"sliding_window_log"},
		{"requests":9,"per":"366d","algorithm":"fixed_window_per_key","elastic":true},
		{"requests":8,"per":"366d","jitter":100}]},
	{"name":"shut","key":[{"header":"k"}],"capacity":1,"limits":["0/1ms"],"mode":"shadow"},
	{"name":"once","match":{"paths":["=/once"]},"limits":["5/366d"]}]}`

// dice makes random management requests.
type dice struct{ *rand.Rand }

func (d dice) one(of ...string) string { return of[d.IntN(len(of))] }

// odd returns a number, or what could be taken for one.
func (d dice) odd() string {
	return d.one("", "0", "1", "5", "-1", "+1", "1e3", " 1", "4294967295", "4294967296",
		"99999999999999999999", "0x10", "٣", "%00", "\xff", strings.Repeat("9", 300))
}

func (d dice) query() string {
	v := url.Values{"rule": {d.one("wide", "wide", "wide", "shut", "once", "", "none", "\xff")}}
	for range []int{1, 1, 1, 1, 0, 2}[d.IntN(6)] {
		v.Add("key", d.one("a", "b", "c", "d", "", "\xff", strings.Repeat("k", 3000)))
	}
	if d.IntN(2) == 0 {
		v.Set("n", d.one(d.odd(), "1", "4294967295"))
	}
	if d.IntN(3) == 0 {
		v.Set("window", d.one("slow", "0", "7", "8", d.odd()))
	}
	text := v.Encode()
	if d.IntN(10) == 0 {
		text = d.one("%", "&&;", "rule=wide;key=a", "key", strings.Repeat("key=a&", 2000), text[:len(text)/2], text+"%z")
	}
	return text
}

func (d dice) request() *sim.Request {
	operation := d.one("hit", "peek", "get", "inc", "set", "reset", "expires_at", "clean", "stats",
		"stat", "", "../explain", "\xff")
	method, token := "POST", "Bearer test"
	if d.IntN(11) < 3 {
		method = d.one("GET", "", "\xff")
	}
	if d.IntN(8) < 3 {
		token = d.one("bearer  test ", "Bearer", "Basic test")
	}
	return &sim.Request{
		Method:  method,
		Path:    "/.sluice/counters/" + operation + "?" + d.query(),
		Headers: [][2]string{{"authorization", token}},
	}
}

// Random management requests come at random times. Each is answered with JSON,
// nothing panics or fails, and requests in between are counted.
func TestRandomManagementRequests(t *testing.T) {
	const steps = 6000
	random := rand.New(rand.NewPCG(1, 4))
	b := start(t, func(o *sim.Options) { o.Workers, o.OnCall = 2, nil })
	require.NoError(t, b.Configure([]byte(widePolicy)))
	began := b.now
	d := dice{random}
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
		r := d.request()
		if random.IntN(4) == 0 { // an ordinary request in between
			r = &sim.Request{Headers: [][2]string{{"k", d.one("a", "b", "e")}, {"c", d.odd()}}}
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

// An ambiguous or unknown parameter is refused, as in the API of serve.
func TestUnknownParametersAreRefused(t *testing.T) {
	b := start(t)
	require.NoError(t, b.Configure([]byte(widePolicy)))
	for _, tc := range []struct {
		query string
		want  string // error, "" if there is none
	}{
		{"rule=wide&key=a&n=1&window=slow", ""},
		{"&rule=wide&&key=a&", ""},
		{"rule=wide&rule=wide&key=a", "rule is given twice"},
		{"rule=&rule=wide&key=a", "rule is given twice"},
		{"rule=wide&key=a&n=1&n=2", "n is given twice"},
		{"rule=wide&key=a&window=slow&window=0", "window is given twice"},
		{"rule=wide&key=a&%77indow=slow&window=0", "window is given twice"},
		{"rule=wide&key=a%20b&key=%C3%A9+%25", "has 1 part, not 2"},
		{"rule=%zz", `invalid escape "%zz": a "%" is written %25`},
		{"rule=%+1", `invalid escape "%+1": a "%" is written %25`},
		{"rule=a%2", `invalid escape "%2": a "%" is written %25`},
		{"rule=%41%", `invalid escape "%": a "%" is written %25`},
		{"rule=r;key=a", `parameters are separated by "&"; a ";" in one is written %3B`},
		{"rule=wide&keys=a", `unknown parameter "keys": there are rule, key, n, limit and window`},
		{"rule=wide&key=a&=1", `unknown parameter "": there are rule, key, n, limit and window`},
		{"rule=wide&key=a&" + strings.Repeat("x", 50_000), `unknown parameter "` + strings.Repeat("x", 40) + `"`},
	} {
		res := b.serve(t, 0, &sim.Request{
			Method: "POST", Path: "/.sluice/counters/inc?" + tc.query, Headers: [][2]string{{"authorization", "Bearer test"}},
		})
		if tc.want == "" {
			require.Equal(t, 200, res.Status, "%.80s: %s", tc.query, res.Body)
			continue
		}
		require.Equal(t, 400, res.Status, "%.80s: %.200s", tc.query, res.Body)
		require.Contains(t, strings.ReplaceAll(string(res.Body), `\"`, `"`), tc.want)
	}
}

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
