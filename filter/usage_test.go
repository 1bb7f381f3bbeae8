package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// usagePolicy is a policy of these rules in which clients may ask for their usage, and operators for
// counters.
func usagePolicy(rules string) []byte {
	return []byte(`{"version":1,` + manage + `,"usage":{"path":"/.well-known/ratelimit"},"rules":[` + rules + `]}`)
}

// ask is a client's request for its usage.
func ask(headers ...[2]string) *sim.Request {
	return &sim.Request{Path: "/.well-known/ratelimit", Headers: headers}
}

func readUsage(t *testing.T, response *sim.Response) (usage result.Usage) {
	t.Helper()
	require.Equal(t, 200, response.Status)
	require.True(t, response.Local)
	decoder := json.NewDecoder(bytes.NewReader(response.Body))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&usage), "%s", response.Body)
	return usage
}

// TestUsageOfAClient: the answer as a client gets it, and what else happens to requests of its path.
func TestUsageOfAClient(t *testing.T) {
	b := start(t)
	require.NoError(t, b.Configure(usagePolicy(
		`{"name":"per-user","key":[{"header":"x-user-id"}],"limits":["2/1m",{"requests":9,"per":"1d","name":"daily"}],`+
			`"block":"1h"},`+
			`{"name":"bucket","key":[{"header":"x-user-id"}],"algorithm":"token_bucket",`+
			`"limits":[{"requests":5,"per":"500ms","burst":8}]},`+
			`{"name":"slots","key":["client_ip"],"algorithm":"concurrency","limits":[4]},`+
			`{"name":"asks","match":{"paths":["/.well-known/ratelimit"]},"key":["client_ip"],"limits":["5/1m"]}`)))
	x, err := b.Start(0, alice)
	require.NoError(t, err)
	header := [2]string{"x-user-id", "alice"}
	response := b.serve(t, 0, ask(header))
	want := `{"rules":[{"name":"per-user","blocked":0,"windows":[` +
		`{"limit":2,"per":60,"used":1,"held":0,"remaining":1,"reset":20},` +
		`{"name":"daily","limit":9,"per":86400,"used":1,"held":0,"remaining":8,"reset":80000}]},` +
		`{"name":"bucket","windows":[{"limit":8,"requests":5,"per":0.5,"used":1,"held":0,"remaining":7,"reset":1}]},` +
		`{"name":"slots","windows":[{"limit":4,"used":1,"held":1,"remaining":3,"reset":0}]},` +
		`{"name":"asks","windows":[{"limit":5,"per":60,"used":1,"held":0,"remaining":4,"reset":20}]}]}` + "\n"
	require.Equal(t, want, string(response.Body))
	require.Contains(t, response.Headers, [2]string{"cache-control", "no-store"})
	require.Contains(t, response.Headers, [2]string{"content-type", "application/json"})
	require.Equal(t, "sluice_usage", response.Details)
	_, err = x.Finish()
	require.NoError(t, err)

	head := ask(header)
	head.Method = "HEAD"
	require.Empty(t, b.serve(t, 0, head).Body)
	post := ask(header)
	post.Method = "POST"
	require.False(t, b.serve(t, 0, post).Local, "other methods go to the upstream")
	require.Equal(t, 429, b.serve(t, 0, alice).Status)
	usage := readUsage(t, b.serve(t, 0, ask(header)))
	require.EqualValues(t, 3600, *usage.Rules[0].Blocked)
	b.serve(t, 0, ask(header))
	denied := b.serve(t, 0, ask(header))
	require.Equal(t, 429, denied.Status, "the rule that names the path denies")
	require.Contains(t, denied.Headers, [2]string{"retry-after", "20"})
}

// TestUsageOfAThousandRules: the answer is valid and whole.
func TestUsageOfAThousandRules(t *testing.T) {
	b := start(t, func(o *sim.Options) { o.OnCall = nil })
	var rules []string
	for i := range 1000 {
		rules = append(rules, fmt.Sprintf(`{"name":"rule-%d","match":{"paths":["/%d/*"]},"key":[{"header":"x-user-id"}],`+
			`"limits":["%d/1h","9000/1d"],"capacity":64}`, i, i, i+1))
	}
	require.NoError(t, b.Configure(usagePolicy(strings.Join(rules, ","))))
	for i := range 20 {
		b.serve(t, 0, &sim.Request{Path: fmt.Sprintf("/%d/x", 50*i), Headers: alice.Headers})
	}
	for range 3 {
		usage := readUsage(t, b.serve(t, 0, ask(alice.Headers...)))
		require.Len(t, usage.Rules, 1000)
		for i, r := range usage.Rules {
			require.EqualValues(t, i+1, r.Windows[0].Limit)
			want := uint32(0)
			if i%50 == 0 {
				want = 1
			}
			require.Equal(t, want, r.Windows[0].Used, r.Name)
		}
	}
}

// moments are random policies and requests, and what a client and an operator are told at the same instant.
type moments struct {
	*bench
	t    *testing.T
	dice *rand.Rand
	open []*sim.Exchange
}

func (m *moments) one(of ...string) string { return of[m.dice.IntN(len(of))] }

// policy is a random one. Each rule has a key of one header or of two.
func (m *moments) policy() string {
	var rules []string
	for i := range 1 + m.dice.IntN(5) {
		windows := []string{}
		for _, per := range []string{"10s", "1m", "month"}[:1+m.dice.IntN(3)] {
			algorithm := m.one("fixed_window", "fixed_window_per_key", "sliding_window_log", "sliding_window_counter",
				"token_bucket")
			if per == "month" {
				algorithm = "fixed_window"
			}
			windows = append(windows, fmt.Sprintf(`{"requests":%d,"per":%q,"algorithm":%q}`, 1+m.dice.IntN(9), per, algorithm))
		}
		more := m.one("", "", `,"cost":{"header":"c"}`) + m.one("", "", `,"block":"30s"`) +
			m.one("", "", `,"settle":{"to":{"header":"x"}},"hold":"10s"`) + m.one("", "", `,"capacity":2`) +
			m.one("", "", `,"match":{"methods":["POST"]}`, `,"match":{"paths":["/v1/*"]}`) +
			m.one("", "", `,"overrides":[{"key":["a*"],"limits":["20/10s"]}]`)
		if strings.Contains(more, "overrides") {
			windows = []string{`{"requests":2,"per":"10s"}`}
		}
		rules = append(rules, fmt.Sprintf(`{"name":"r%d","key":[{"header":"u"}],"limits":[%s]%s}`,
			i, strings.Join(windows, ","), more))
	}
	rules = append(rules, `{"name":"slots","key":[{"header":"u"},{"header":"v"}],"algorithm":"concurrency","limits":[3]}`)
	return strings.Join(rules, ",")
}

// traffic is some requests, of which some are answered later.
func (m *moments) traffic(users []string) {
	for range m.dice.IntN(12) {
		r := &sim.Request{
			Method: m.one("GET", "POST"), Path: m.one("/v1/x", "/v2"),
			Headers: [][2]string{{"u", m.one(users...)}, {"v", m.one("1", "2")}, {"c", m.one("1", "2", "5")}},
		}
		x, err := m.Start(m.dice.IntN(m.Workers()), r)
		require.NoError(m.t, err)
		m.open = append(m.open, x)
		m.now += m.dice.Int64N(int64(5 * time.Second))
		m.TickDue()
	}
	for len(m.open) > 4 {
		x := m.open[0]
		m.open = m.open[1:]
		if !x.Ended() {
			_, err := x.Answer(&sim.Response{Status: 200, Headers: [][2]string{{"x", m.one("0", "3", "9")}}}, true)
			require.NoError(m.t, err)
		}
	}
}

// told is what an operator is told of a rule's key.
func (m *moments) told(worker int, rule string, key ...string) (got result.Result) {
	query := url.Values{"rule": {rule}, "key": key}
	response := m.serve(m.t, worker, &sim.Request{
		Method: "POST", Path: "/.sluice/counters/get?" + query.Encode(),
		Headers: [][2]string{{"authorization", "Bearer test"}},
	})
	require.Equal(m.t, 200, response.Status, "%s", response.Body)
	require.NoError(m.t, json.Unmarshal(response.Body, &got))
	return got
}

func ceil(ns int64) int64 { return (ns + 999_999_999) / 1_000_000_000 }

// sameFigures: a client is told what an operator is.
func sameFigures(t *testing.T, want *result.Result, got *result.RuleUsage) {
	t.Helper()
	require.Len(t, got.Windows, len(want.Windows))
	for i, w := range want.Windows {
		g := &got.Windows[i]
		held := uint32(0)
		if want.Held != nil {
			held = *want.Held
		}
		require.Equal(t, []any{*w.Limit, w.Used, held, *w.Remaining, ceil(w.ResetNs), float64(w.PerNs) / 1e9},
			[]any{g.Limit, g.Used, g.Held, g.Remaining, g.Reset, g.Per}, got.Name)
	}
	blocked := int64(0)
	if got.Blocked != nil {
		blocked = *got.Blocked
	}
	require.Equal(t, ceil(want.BlockedNs), blocked)
}

// TestUsageIsWhatAnOperatorIsTold: at 200 random moments under random policies, on a proxy of two workers,
// a client is told the figures of counters get at the same instant.
func TestUsageIsWhatAnOperatorIsTold(t *testing.T) {
	m := &moments{t: t, dice: rand.New(rand.NewPCG(20, 26))}
	users := []string{"alice", "ann", "bob", "carol"}
	var figures, used, held, blocked int
	for moment := range 200 {
		if moment%10 == 0 {
			m.open = nil
			m.bench = start(t, func(o *sim.Options) { o.Workers, o.OnCall = 2, nil })
			require.NoError(t, m.Configure(usagePolicy(m.policy())))
		}
		m.traffic(users)
		user, v := m.one(users...), m.one("1", "2")
		worker := m.dice.IntN(2)
		usage := readUsage(t, m.serve(t, worker, ask([2]string{"u", user}, [2]string{"v", v})))
		require.Equal(t, "slots", usage.Rules[len(usage.Rules)-1].Name)
		for i := range usage.Rules {
			r := &usage.Rules[i]
			key := []string{user}
			if r.Name == "slots" {
				key = append(key, v)
			}
			got := m.told(worker, r.Name, key...)
			sameFigures(t, &got, r)
			figures++
			used += int(r.Windows[0].Used)
			held += int(r.Windows[0].Held)
			if r.Blocked != nil && *r.Blocked > 0 {
				blocked++
			}
		}
	}
	t.Logf("%d rules at 200 moments: %d used, %d held, %d blocked", figures, used, held, blocked)
	require.Positive(t, used*held*blocked)
}

// TestAsksLeaveNoTrace: 10,000 asks change no byte of shared data and move no metric of a rule, on a
// worker that has counted and on one that has not.
func TestAsksLeaveNoTrace(t *testing.T) {
	m := &moments{t: t, dice: rand.New(rand.NewPCG(1, 2))}
	m.bench = start(t, func(o *sim.Options) { o.Workers, o.OnCall = 2, nil })
	require.NoError(t, m.Configure(usagePolicy(m.policy())))
	shared := func() map[string]string { return texts(m.Shared().Snapshot()) }
	for range 100 {
		m.serve(t, 0, ask([2]string{"u", "alice"}, [2]string{"v", "1"}))
	}
	require.Empty(t, shared(), "before the first request")
	for range 20 {
		for range 4 {
			_, err := m.Start(0, &sim.Request{Method: "POST", Path: "/v1/x", Headers: [][2]string{{"u", "alice"}, {"v", "1"}}})
			require.NoError(t, err)
		}
	}
	m.tick(t)
	before, metrics := shared(), m.Metrics()
	require.NotEmpty(t, before)
	for i := range 10_000 {
		m.now += int64(time.Microsecond)
		m.serve(t, i%2, ask([2]string{"u", m.one("alice", "bob", "")}, [2]string{"v", "1"}))
	}
	require.Equal(t, before, shared())
	m.tick(t)
	require.Equal(t, metrics, m.Metrics())
}

func texts(values map[string][]byte) map[string]string {
	out := map[string]string{}
	for key, value := range values {
		out[key] = string(value)
	}
	return out
}

// TestUsageTellsNothingElse: values of keys, shadow rules, hidden rules, names of overrides, and figures of other
// clients are in no answer. Each is a marker that could be found.
func TestUsageTellsNothingElse(t *testing.T) {
	m := &moments{t: t, dice: rand.New(rand.NewPCG(5, 6))}
	for range 12 {
		m.bench = start(t, func(o *sim.Options) { o.Workers, o.OnCall = 1, nil })
		rules := []string{
			`{"name":"MARKERshadow","mode":"shadow","key":[{"header":"u"}],"limits":["9/1h"]}`,
			`{"name":"MARKERhidden","usage":false,"key":[{"header":"u"}],"limits":["9/1h"]}`,
			`{"name":"MARKERpercent","enforce_percent":0,"key":[{"header":"u"}],"limits":["9/1h"]}`,
			`{"name":"MARKERother","match":{"hosts":["other"]},"key":[{"header":"u"}],"limits":["9/1h"]}`,
			`{"name":"shown","key":[{"header":"u"},{"header":"v"}],"limits":["10000/1h"],"cost":{"header":"c"},` +
				`"overrides":[{"name":"MARKERoverride","key":["MARKER*","*"],"limits":["77777/1h"]}]}`,
			`{"name":"sticky","key":[{"header":"u"}],"limits":["10000/1h"],"cost":{"header":"c"},"capacity":1,"block":"1h"}`,
		}
		m.dice.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
		require.NoError(t, m.Configure(usagePolicy(strings.Join(rules, ","))))
		for i := range 40 {
			m.serve(t, 0, &sim.Request{Headers: [][2]string{
				{"u", m.one("MARKERa", "MARKERb", "MARKERc")}, {"v", fmt.Sprint("MARKER", i%3)}, {"c", "4321"},
			}})
		}
		for _, u := range []string{"MARKERa", "MARKERb", "MARKERd", ""} {
			response := m.serve(t, 0, ask([2]string{"u", u}, [2]string{"v", "MARKERx"}))
			require.NotContains(t, string(response.Body), "MARKER")
			usage := readUsage(t, response)
			i := slices.IndexFunc(usage.Rules, func(r result.RuleUsage) bool { return r.Name == "shown" })
			require.Zero(t, usage.Rules[i].Windows[0].Used, "nobody has counted by this key")
		}
	}
}

// teller is a quota service that says how keys stand, and notes what it is asked.
type teller struct {
	silent
	in       *sim.Inbox
	messages *[]quota.Asks
}

func (p teller) Send(message []byte) {
	var asks quota.Asks
	if err := asks.Decode(message); err != nil {
		panic(err)
	}
	*p.messages = append(*p.messages, asks)
	var results quota.Results
	for _, ask := range asks.Asks {
		result := quota.AskResult{ID: ask.ID, Outcome: quota.Unavailable}
		for i := range ask.Parts {
			g := quota.Grant{Windows: []quota.Standing{{Used: 7, ResetNs: 90e9}}}
			if i == 3 { // its store fails for this key
				g = quota.Grant{Failed: true}
			}
			result.Grants = append(result.Grants, g)
		}
		results.Results = append(results.Results, result)
	}
	p.in.Message(time.Millisecond, results.Append(nil))
}

// TestALookIsOneMessage: the quota service is asked about all keys in one message, grants nothing, and only a key
// whose store fails is not known. Clients that ask at the same time about the same keys share it.
func TestALookIsOneMessage(t *testing.T) {
	var messages []quota.Asks
	b := start(t, func(o *sim.Options) {
		o.OnCall = nil
		o.Dial = func(_ sim.Call, in *sim.Inbox) (sim.Peer, error) { return teller{in: in, messages: &messages}, nil }
	})
	var rules []string
	for i := range 40 {
		rules = append(rules, fmt.Sprintf(
			`{"name":"r%d","scope":"cluster","match":{"methods":["POST"]},"key":[{"header":"x-user-id"}],"limits":["%d/1h"]}`,
			i, 10+i))
	}
	require.NoError(t, b.Configure(usagePolicy(strings.Join(rules, ",")+`,{"name":"here","limits":["9/1h"]}`)))
	for round := range 2 {
		var waiting []*sim.Exchange
		for range 3 {
			x, err := b.Start(0, ask(alice.Headers...))
			require.NoError(t, err)
			require.True(t, x.Paused())
			waiting = append(waiting, x)
		}
		for waiting[2].Paused() {
			b.now += int64(time.Millisecond)
			b.TickDue()
		}
		for _, x := range waiting {
			response, err := x.Finish()
			require.NoError(t, err)
			usage := readUsage(t, response)
			require.Len(t, usage.Rules, 41)
			for i, r := range usage.Rules[:40] {
				if i%quota.MaxParts == 3 {
					require.Nil(t, r.Windows, r.Name)
					continue
				}
				w := r.Windows[0]
				require.Equal(t, []any{uint32(10 + i), uint32(7), uint32(3 + i), int64(90)},
					[]any{w.Limit, w.Used, w.Remaining, w.Reset})
			}
			require.Zero(t, usage.Rules[40].Windows[0].Used)
		}
		// The first client's asks leave at once, those of the other two together once it is answered.
		require.Len(t, messages, 2*(round+1))
	}
	for _, m := range messages {
		require.Len(t, m.Asks, 3)
		require.Empty(t, m.Returns)
		for _, a := range m.Asks {
			for _, p := range a.Parts {
				require.True(t, p.Inspect)
				require.Zero(t, p.Cost+p.Waiting+p.Ahead+p.Uncharged)
			}
		}
	}
	b.now += int64(time.Second)
	b.tick(t)
	for name, n := range b.Metrics() {
		require.False(t, strings.HasPrefix(name, "rule=") && n > 0, "%s %d", name, n)
	}
}

// TestManyLooksAreBounded: a worker looks at a bounded number of keys at once. Clients beyond it are told what
// this proxy knows, and nobody waits for longer than the timeout.
func TestManyLooksAreBounded(t *testing.T) {
	b := start(t, func(o *sim.Options) {
		o.OnCall = nil
		o.Dial = func(sim.Call, *sim.Inbox) (sim.Peer, error) { return silent{}, nil }
	})
	var rules []string
	for i := range 1000 {
		rules = append(rules, fmt.Sprintf(`{"name":"r%d","scope":"cluster","key":[{"header":"x-user-id"}],`+
			`"limits":["9/1h"],"capacity":16}`, i))
	}
	require.NoError(t, b.Configure(usagePolicy(strings.Join(rules, ","))))
	var waiting []*sim.Exchange
	for i := range 20 {
		x, err := b.Start(0, ask([2]string{"x-user-id", fmt.Sprint(i)}))
		require.NoError(t, err)
		if x.Paused() {
			waiting = append(waiting, x)
		}
	}
	require.Len(t, waiting, 4)
	began := b.now
	for waiting[3].Paused() {
		b.now += int64(time.Millisecond)
		b.TickDue()
	}
	require.InDelta(t, 100, (b.now-began)/1e6, 20)
	for _, x := range waiting {
		response, err := x.Finish()
		require.NoError(t, err)
		usage := readUsage(t, response)
		require.Len(t, usage.Rules, 1000)
		require.Nil(t, usage.Rules[999].Windows)
	}
	x, err := b.Start(0, ask(alice.Headers...))
	require.NoError(t, err)
	require.False(t, x.Paused(), "the service is silent: nobody waits")
}
