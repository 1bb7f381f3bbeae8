package replay

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
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
	"github.com/sluice-ratelimit/sluice/build/proctest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/fleet"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/limit"
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
	const format = `{"start_time":%q,"method":"GET","path":%q,"response_code":%d,` +
		`"downstream_remote_address":"%s:80","x_user_id":%s}` + "\n"
	return fmt.Sprintf(format, at, strings.Replace(l.path, "/login", "/x/..//%6cogin", 1), l.status, l.ip, user)
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
		path := []string{"/a", "/login?x=1"}[dice.IntN(2)]
		ip := fmt.Sprint("192.0.2.", dice.IntN(3))
		all[i] = logged{at, user, path, ip, 200 + 229*dice.IntN(2)}
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
  - name: login
    match: {paths: ["/login"]}
    key: [{query: x}, client_ip]
    limits: [{requests: 2, per: 1s, algorithm: token_bucket}]
  - {name: trial, mode: shadow, key: [{first_of: [{header: x-user-id}, client_ip]}], limits: ["20/1m"]}
  - {name: none, mode: "off", key: [client_ip], limits: ["1/1h"]}
`

// count is what comes of a rule's requests.
type count struct{ requests, denied, again, shadow, elsewhere, clients, deniedClients int64 }

// counts sums up, by rule, what simulate has said of each line. It returns also how many times each client
// of a rule was denied, and how many requests were.
func counts(
	t *testing.T, lines []logged, decisions string,
) (want map[string]*count, times map[string]int64, denied int64) {
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
		counted := count{r.Requests, r.Denied, r.DeniedInLog, r.Shadow, r.DeniedByOthers, r.Clients, r.DeniedClients}
		require.Equal(t, *want[r.Rule], counted, r.Rule)
		require.Len(t, r.Top, min(int(r.DeniedClients), topClients))
		for _, c := range r.Top {
			require.Equal(t, times[r.Rule+" "+KeyText(c.Key)], c.Denied)
		}
		require.Len(t, r.Series.Denied, report.Timeline.Count)
		require.NotZero(t, r.DeniedByOthers, "denied by another rule")
		require.Equal(t, []int64{r.Denied, r.Shadow, r.DeniedByOthers, r.Requests - r.Denied - r.Shadow - r.DeniedByOthers},
			[]int64{sum(r.Series.Denied), sum(r.Series.Shadow), sum(r.Series.DeniedByOthers), sum(r.Series.Allowed)})
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
func TestEachProxyCountsForItself(t *testing.T) {
	lines := make([]logged, 100)
	for i := range lines {
		lines[i] = logged{noonMs + int64(i), "u", "/", "192.0.2.1", 200}
	}
	for scope, want := range map[string]int64{"proxy": 70, "cluster": 90} {
		rule := `{name: a, scope: ` + scope + `, key: [{header: x-user-id}], limits: ["10/1h"]}`
		o := options(t, `{version: 1, rules: [`+rule+`]}`, lines)
		o.Proxies = 3
		report, err := Run(t.Context(), o)
		require.NoError(t, err)
		require.Equal(t, want, report.Denied, scope)
	}
}

// Every kind of key part reads something of the log.
func TestEveryKeyPartHasAField(t *testing.T) {
	kinds := map[string]struct{ part, field string }{
		"header":    {"{header: {name: authorization, scheme: bearer}}", "header:authorization"},
		"address":   {"{address: {header: x-real-ip}}", "header:x-real-ip"},
		"client_ip": {"client_ip", "client_ip"},
		"host":      {"host", "host"},
		"method":    {"method", "method"},
		"path":      {"{path: {segment: 1}}", "path"},
		"query":     {"{query: user}", "query"},
		"cookie":    {"{cookie: c}", "header:cookie"},
		"route":     {"route", "route"},
		"jwt":       {"{jwt: {provider: p, claim: [a, b]}}", "jwt:p:a:b"},
		"property":  {"{property: [connection, id]}", "property:connection.id"},
		"first_of":  {"{first_of: [host, {cookie: c}]}", "header:cookie host"},
	}
	at := slices.IndexFunc(policy.Schema(), func(o policy.ObjectSchema) bool { return o.Name == "key" })
	for _, kind := range policy.Schema()[at].Fields {
		c := kinds[kind.Name]
		text := "{version: 1, rules: [{name: a, limits: [1/1h], key: [" + c.part + "]}]}"
		p, _, _, err := policyfile.Read(kind.Name, []byte(text))
		require.NoError(t, err)
		needed, _ := fields(p)
		require.Equal(t, strings.Fields(c.field), needed, kind.Name)
		require.NotEmpty(t, c.field, kind.Name)
	}
}

// A request that runs for weeks has two million ticks. A replay that is interrupted does not do them.
func TestInterruptedWhileAnAnswerRuns(t *testing.T) {
	const weeksNs = int64(24 * 24 * time.Hour)
	run := func(ns int64, interrupted bool) time.Duration {
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		policy := []byte("version: 1\nrules:\n  - {name: slots, algorithm: concurrency, limits: [2]}\n")
		o := fleet.Options{Wasm: buildtest.Wasm(t), Seed: seed, CacheDir: buildtest.CacheDir()}
		proxies, err := fleet.NewBrief(ctx, o, "p.yaml", policy, noonMs*1e6)
		require.NoError(t, err)
		defer proxies.Close()
		_, _, err = proxies.Serve(noonMs*1e6, &sim.Request{Method: "GET", Path: "/a"}, &sim.Response{Status: 200}, ns)
		require.NoError(t, err)
		if interrupted {
			interrupt()
		}
		began := time.Now()
		_, _, err = proxies.Serve(noonMs*1e6+ns-1, &sim.Request{Method: "GET", Path: "/a"}, &sim.Response{Status: 200}, 0)
		require.NoError(t, err)
		return time.Since(began)
	}
	require.Less(t, run(weeksNs, true), run(weeksNs/1000, false))
}

// Windows of months are told apart by the calendar.
func TestUseByMonths(t *testing.T) {
	limits := []policy.Limit{{Window: limit.NewCalendar(1, 0, 0)}, {Window: limit.NewCalendar(12, 0, 0)}}
	c := newClients(&policy.Rule{Limits: limits}, &room{1, 100})
	i, known := c.add([]byte("a"))
	require.True(t, known)
	for _, day := range []string{
		"2027-12-31", "2028-01-01", "2028-01-31", "2028-02-01", "2028-02-29", "2028-02-29", "2028-03-01", "2029-01-01",
	} {
		at, err := time.Parse(time.DateOnly, day)
		require.NoError(t, err)
		c.countUnits(i, at.UnixNano(), 1)
	}
	require.Equal(t, []Uses{{1: 3, 2: 1, 3: 1}, {1: 2, 6: 1}}, c.endPeriods())
}

// A timeline that becomes wider counts as one that was as wide from the start.
func TestATimelineThatBecomesWider(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		at := dice.Int64N(4e18)
		line := newTimeline(at)
		line.columns = 2
		var all []int64
		for range 1 + dice.IntN(300) {
			all = append(all, at)
			line.at(at)[1]++
			at += dice.Int64N(1 + int64(1)<<dice.IntN(52))
		}
		r := line.report()
		want := make([]int64, r.Count)
		for _, ns := range all {
			want[(ns-r.StartNs)/r.WidthNs]++
		}
		require.Equal(t, want, line.column(1))
		require.LessOrEqual(t, r.Count, MaxPoints)
		require.Zero(t, r.StartNs%r.WidthNs)
	}
}

var (
	longLines   = flag.Int("replay-lines", 20_000, "how many generated lines are replayed")
	longClients = flag.Int("replay-clients", 2_000, "of how many clients")
)

const maxLongBytes = 1 << 30

// A day of lines is replayed in bounded memory, and counted as a model does.
func TestReplayOfADay(t *testing.T) {
	const perHour = 100
	name := filepath.Join(t.TempDir(), "access.log")
	clients, denied := writeDay(t, name, perHour)
	capacity := max(65536, 2**longClients)
	began := time.Now()
	report, err := Run(t.Context(), Options{
		Log: accesslog.Options{
			Names: []string{name}, Sort: 30 * time.Second,
			Format: `[%START_TIME%] "%REQ(:METHOD)% %REQ(:PATH)% %PROTOCOL%" %RESPONSE_CODE% %DURATION% ` +
				`"%REQ(X-USER-ID)%" "%REQ(USER-AGENT)%"`,
		},
		Policy: File{"policy.yaml", fmt.Appendf(nil,
			"{version: 1, rules: [{name: r, key: [{header: x-user-id}], limits: [%d/1h], capacity: %d}]}", perHour, capacity)},
		Wasm: buildtest.Wasm(t), CacheDir: buildtest.CacheDir(), Warn: func(m string) { t.Log(m) },
	})
	require.NoError(t, err)
	took := time.Since(began)
	peak := proctest.Memory(t, proctest.StatusOf(os.Getpid()), proctest.Peak)
	t.Logf("%d lines of %d clients in %s, %.0f a second; at most %d MiB of memory",
		*longLines, clients, took.Round(time.Millisecond), float64(*longLines)/took.Seconds(), peak>>20)
	rule := &report.Rules[0]
	require.EqualValues(t, *longLines, rule.Requests)
	require.EqualValues(t, clients, rule.Clients)
	require.EqualValues(t, denied, rule.Denied)
	require.Zero(t, report.Log.Late)
	require.Less(t, peak, maxLongBytes)
}

// writeDay writes lines of clients: a few send most of them. It returns how many clients there
// are, and how many requests a limit per hour denies.
func writeDay(t *testing.T, name string, perHour int) (clients, denied int) {
	t.Helper()
	file, err := os.Create(name)
	require.NoError(t, err)
	w := bufio.NewWriterSize(file, 1<<20)
	dice := rand.New(rand.NewPCG(1, 1))
	seen, used := map[int]bool{}, map[[2]int]int{}
	step := int64(24*time.Hour) / int64(*longLines)
	for i := range *longLines {
		at := time.Unix(0, noonMs*1e6+int64(i)*step).UTC()
		client := dice.IntN(*longClients)
		if dice.IntN(4) == 0 {
			client = dice.IntN(1 + *longClients/1000)
		}
		seen[client] = true
		hour := [2]int{client, int(at.Unix() / 3600)}
		used[hour]++
		if used[hour] > perHour {
			denied++
		}
		_, err = fmt.Fprintf(w, "[%s] \"GET /v1/things/%d?page=2 HTTP/1.1\" 200 12 \"user-%d\" \"app/3\"\n",
			at.Format("2006-01-02T15:04:05.000Z"), i%1000, client)
		require.NoError(t, err)
	}
	require.NoError(t, w.Flush())
	require.NoError(t, file.Close())
	return len(seen), denied
}
