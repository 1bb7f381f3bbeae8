package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const noonMs = 1769860800000

// logged is a request as a log line and as simulate reads it.
type logged struct {
	atMs           int64
	user, path, ip string
	status         int
}

func (l *logged) line() string {
	at := time.UnixMilli(l.atMs).UTC().Format("2006-01-02T15:04:05.000Z")
	user := `null`
	if l.user != "" {
		user = `"` + l.user + `"`
	}
	return fmt.Sprintf(`{"start_time":%q,"method":"GET","path":%q,"response_code":%d,"downstream_remote_address":"%s:80","x_user_id":%s}`+"\n",
		at, strings.Replace(l.path, "/login", "/x/..//%6cogin", 1), l.status, l.ip, user)
}

func (l *logged) request() string {
	headers := ""
	if l.user != "" {
		headers = fmt.Sprintf(`,"headers":{"x-user-id":%q}`, l.user)
	}
	return fmt.Sprintf(`{"at_ms":%d,"path":%q,"client_ip":%q%s}`+"\n", l.atMs, l.path, l.ip, headers)
}

// traffic is requests of some users in the order of time.
func traffic(seed uint64, n int) []logged {
	dice := rand.New(rand.NewPCG(seed, 1))
	all, at := make([]logged, n), int64(noonMs)
	for i := range all {
		at += dice.Int64N(200)
		user := fmt.Sprint("u", dice.IntN(1+dice.IntN(20)))
		if dice.IntN(10) == 0 {
			user = ""
		}
		all[i] = logged{at, user, []string{"/a", "/login?x=1"}[dice.IntN(2)], fmt.Sprint("192.0.2.", dice.IntN(3)), 200 + 229*dice.IntN(2)}
	}
	return all
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

func options(t *testing.T, policy string, lines []logged) Options {
	t.Helper()
	var text strings.Builder
	for i := range lines {
		text.WriteString(lines[i].line())
	}
	return Options{
		Log:    accesslog.Options{Names: []string{write(t, "access.log", text.String())}, Sort: time.Second},
		Policy: File{"policy.yaml", []byte(policy)}, Unknown: 0.1,
		Wasm: buildtest.Wasm(t), CacheDir: buildtest.CacheDir(), Warn: func(m string) { t.Log(m) },
	}
}

const rules = `
version: 1
rules:
  - {name: per-user, key: [{header: x-user-id}], limits: ["3/1s", "30/1m"]}
  - {name: login, match: {paths: ["/login"]}, key: [{query: x}, client_ip], limits: [{requests: 2, per: 1s, algorithm: token_bucket}]}
  - {name: trial, mode: shadow, key: [{first_of: [{header: x-user-id}, client_ip]}], limits: ["20/1m"]}
  - {name: none, mode: "off", key: [client_ip], limits: ["1/1h"]}
`

// count is what comes of a rule's requests.
type count struct{ requests, denied, again, shadow, elsewhere, clients, deniedClients int64 }

// counts sums up, by rule, what simulate has said of each line. It returns also how many times each client
// of a rule was denied, and how many requests were.
func counts(t *testing.T, lines []logged, decisions string) (want map[string]*count, times map[string]int64, denied int64) {
	t.Helper()
	want, times = map[string]*count{}, map[string]int64{}
	for i, text := range strings.Split(strings.TrimSpace(decisions), "\n") {
		var line struct {
			Allowed bool
			Rules   []struct {
				Rule, Mode string
				Key        []*string
				Allowed    bool
			}
		}
		require.NoError(t, json.Unmarshal([]byte(text), &line))
		denied += one(!line.Allowed)
		for _, r := range line.Rules {
			c, client := want[r.Rule], r.Rule+" "+KeyText(r.Key)
			if c == nil {
				c = &count{}
				want[r.Rule] = c
			}
			c.requests++
			if _, known := times[client]; !known {
				times[client] = 0
				c.clients++
			}
			if r.Allowed {
				c.elsewhere += one(!line.Allowed)
				continue
			}
			times[client]++
			c.deniedClients += one(times[client] == 1)
			switch {
			case r.Mode == "shadow":
				c.shadow++
			case lines[i].status == 429:
				c.again++
				fallthrough
			default:
				c.denied++
			}
		}
	}
	return want, times, denied
}

// Replay counts what simulate decides of the same requests.
func TestReplayIsWhatSimulateDecides(t *testing.T) {
	lines := traffic(1, 3000)
	o := options(t, rules, lines)
	report, err := Run(t.Context(), o)
	require.NoError(t, err)

	var in strings.Builder
	for i := range lines {
		in.WriteString(lines[i].request())
	}
	var out bytes.Buffer
	require.NoError(t, simulate.Run(t.Context(), simulate.Options{
		Wasm: o.Wasm, Text: []byte(rules), Requests: strings.NewReader(in.String()), Workers: 1, Seed: 1,
		CacheDir: o.CacheDir, Log: func(m string) { t.Log(m) },
	}, &out))
	want, times, denied := counts(t, lines, out.String())
	require.Equal(t, denied, report.Denied)
	require.Greater(t, denied, int64(100))
	require.Len(t, report.Rules, 3)
	for i := range report.Rules {
		r := &report.Rules[i]
		counted := count{r.Requests, r.Denied, r.Again, r.Shadow, r.Elsewhere, r.Clients, r.DeniedClients}
		require.Equal(t, *want[r.Rule], counted, r.Rule)
		require.Len(t, r.Top, min(int(r.DeniedClients), topClients))
		for _, c := range r.Top {
			require.Equal(t, times[r.Rule+" "+KeyText(c.Key)], c.Denied)
		}
		require.Len(t, r.Series.Denied, report.Timeline.Count)
		require.NotZero(t, r.Elsewhere, "denied by another rule")
		require.Equal(t, []int64{r.Denied, r.Shadow, r.Elsewhere, r.Requests - r.Denied - r.Shadow - r.Elsewhere},
			[]int64{sum(r.Series.Denied), sum(r.Series.Shadow), sum(r.Series.Elsewhere), sum(r.Series.Allowed)})
	}
	require.Greater(t, report.Rules[0].Use[1].Max, uint32(30))
}

func sum(list []int64) (n int64) {
	for _, v := range list {
		n += v
	}
	return n
}

// Each proxy counts for itself, but for rules of scope cluster.
func TestProxies(t *testing.T) {
	lines := make([]logged, 100)
	for i := range lines {
		lines[i] = logged{noonMs + int64(i), "u", "/", "192.0.2.1", 200}
	}
	for scope, want := range map[string]int64{"proxy": 70, "cluster": 90} {
		o := options(t, `{version: 1, rules: [{name: a, scope: `+scope+`, key: [{header: x-user-id}], limits: ["10/1h"]}]}`, lines)
		o.Proxies = 3
		report, err := Run(t.Context(), o)
		require.NoError(t, err)
		require.Equal(t, want, report.Denied, scope)
	}
}

// Every kind of key part reads something of the log.
func TestEveryKeyPartHasAField(t *testing.T) {
	kinds := map[string]struct{ part, field string }{
		"header": {"{header: {name: authorization, scheme: bearer}}", "header:authorization"}, "address": {"{address: {header: x-real-ip}}", "header:x-real-ip"},
		"client_ip": {"client_ip", "client_ip"}, "host": {"host", "host"}, "method": {"method", "method"}, "path": {"{path: {segment: 1}}", "path"},
		"query": {"{query: user}", "query"}, "cookie": {"{cookie: c}", "header:cookie"}, "route": {"route", "route"},
		"jwt": {"{jwt: {provider: p, claim: [a, b]}}", "jwt:p:a:b"}, "property": {"{property: [connection, id]}", "property:connection.id"},
		"first_of": {"{first_of: [host, {cookie: c}]}", "header:cookie host"},
	}
	at := slices.IndexFunc(policy.Schema(), func(o policy.ObjectSchema) bool { return o.Name == "key" })
	for _, kind := range policy.Schema()[at].Fields {
		c := kinds[kind.Name]
		p, _, _, err := policyfile.Read(kind.Name, []byte("{version: 1, rules: [{name: a, limits: [1/1h], key: ["+c.part+"]}]}"))
		require.NoError(t, err)
		needed, _ := fields(p)
		require.Equal(t, strings.Fields(c.field), needed, kind.Name)
		require.NotEmpty(t, c.field, kind.Name)
	}
}

func TestSuggestRefuses(t *testing.T) {
	o := SuggestOptions{Options: options(t, "", traffic(3, 10)), Key: []string{"header"}, Periods: []string{"1s"}}
	_, err := Suggest(t.Context(), o)
	require.ErrorContains(t, err, "--key header is no part of a key")
	o.Key, o.Periods = []string{"client_ip"}, nil
	_, err = Suggest(t.Context(), o)
	require.EqualError(t, err, "--per names no period")
	o.Log.Names = []string{"-"}
	_, err = Suggest(t.Context(), o)
	require.ErrorContains(t, err, "cannot be read twice")
	o = SuggestOptions{Options: options(t, "", []logged{{noonMs, "", "/", "192.0.2.7", 200}}), Key: []string{"header:x-user-id"}, Periods: []string{"1s"}}
	_, err = Suggest(t.Context(), o)
	require.ErrorIs(t, err, ErrKeyless)
	require.ErrorContains(t, err, "no line has a value of header:x-user-id")
}

func TestLeast(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		each, fullest := Uses{}, Uses{}
		for range 1 + dice.IntN(20) {
			units := uint32(1 + dice.IntN(30))
			each[units]++
			if dice.IntN(2) == 0 {
				fullest[units]++
			}
		}
		fullest[each.Quantile(1)]++
		requests, clients := dice.Int64N(40), dice.Int64N(6)
		allows := func(limit uint32) bool {
			over, many := int64(0), int64(0)
			for units, times := range each {
				over += max(0, int64(units)-int64(limit)) * times
			}
			for units, times := range fullest {
				if units > limit {
					many += times
				}
			}
			return over <= requests && many <= clients
		}
		got := least(each, fullest, requests, clients)
		require.True(t, allows(got))
		require.True(t, got == 1 || !allows(got-1))
	}
	for n, want := range map[uint32]uint32{1: 1, 99: 99, 100: 100, 101: 110, 12345: 13000, 4294967295: 4294967295} {
		require.Equal(t, want, round(n))
	}
}
