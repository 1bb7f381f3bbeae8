package e2e

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// fieldCase shows what a field of the policy does: the same requests get different
// responses with the field and with another value or none.
type fieldCase struct {
	field string
	// rules are those of a policy. ⟦with|without⟧ is the text with the field and the
	// text without it. $ is the field's name, and @ matches the host of the requests.
	rules string
	steps []fieldStep
}

// fieldStep is a step of rows with the field and without, and how long after the one before it
// comes at least.
type fieldStep struct {
	line map[bool]string
	wait time.Duration
}

var fieldText, waitText = regexp.MustCompile(`⟦([^|⟧]*)\|?([^⟧]*)⟧`), regexp.MustCompile(` :wait=(\w+)`)

// allFieldCases reads the fields whose effect two policies and a few requests can show. After the
// rules of a case comes "FIELD SEE: STEP; STEP". A step is "REQUEST → WITH|WITHOUT", or "REQUEST →
// BOTH", with a request as in rows and perhaps ":wait=1s" among its headers. What it sees is a
// status or, of what SEE names, the value or, after "~", a part of it.
var allFieldCases = sync.OnceValue(func() (list []fieldCase) {
	rules := ""
	text, err := os.ReadFile("testdata/fields.txt")
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(text)) {
		head, steps, ends := strings.Cut(strings.TrimSpace(line), ": ")
		if strings.HasPrefix(line, "- ") {
			rules += line
			continue
		} else if !ends {
			continue
		}
		field, see, _ := strings.Cut(head, " ")
		c := fieldCase{field: field, rules: rules}
		for _, text := range strings.Split(steps, "; ") {
			c.steps = append(c.steps, stepOf(field, see, text))
		}
		list, rules = append(list, c), ""
	}
	return list
})

func stepOf(field, see, text string) (s fieldStep) {
	request, sees, _ := strings.Cut(strings.ReplaceAll(text, "BEARER", "Bearer␣"+token), " → ")
	if m := waitText.FindStringSubmatch(request); m != nil {
		s.wait, _ = time.ParseDuration(m[1])
	}
	request = waitText.ReplaceAllString(request, "")
	if !strings.Contains(request, " :host=") {
		request += " :host=" + hostOf(field)
	}
	with, without, differs := strings.Cut(sees, "|")
	if !differs {
		without = with
	}
	line := func(want string) string {
		if see == "" {
			return request + " → " + want
		} else if part, ok := strings.CutPrefix(want, "~"); ok {
			want = "~(?s).*" + regexp.QuoteMeta(part) + ".*"
		}
		return request + " → * " + see + "=" + strings.ReplaceAll(want, " ", "␣")
	}
	s.line = map[bool]string{true: line(with), false: line(without)}
	return s
}

func hostOf(field string) string { return strings.ReplaceAll(field, "_", "-") + ".example" }

// text returns the rules with the field, or without it.
func (c fieldCase) text(with bool) string {
	text := strings.NewReplacer("$", c.field, "@", "hosts: ["+hostOf(c.field)+"]", "FAR", far).Replace(c.rules)
	choice := "$2"
	if with {
		choice = "$1"
	}
	text = fieldText.ReplaceAllString(text, choice)
	return strings.NewReplacer(", , ", ", ", "{, ", "{").Replace(text)
}

// TestFields shows, on every proxy, the effect of each field with two policies that
// differ only in the fields.
func TestFields(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		cases := allFieldCases()
		for _, with := range []bool{true, false} {
			text, last := "version: 1\nheaders: ietf\n"+managed+"rules:\n", make([]time.Time, len(cases))
			for _, c := range cases {
				text += c.text(with)
			}
			s := serve(t, d, text)
			for step, more := 0, true; more; step++ { // of each, so that they wait at the same time
				more = false
				for i, c := range cases {
					if step < len(c.steps) {
						time.Sleep(time.Until(last[i].Add(c.steps[step].wait)))
						s.step(t, tokens{}, c.steps[step].line[with], "HTTP/1")
						last[i], more = time.Now(), true
					}
				}
			}
		}
	})
}

// Every field of the policy has one scenario, and no scenario would be the same
// without its field.
func TestEveryFieldHasAScenario(t *testing.T) {
	scenarios := map[string]bool{}
	for _, s := range fieldScenarios {
		for field := range strings.FieldsSeq(s.fields) {
			scenarios[field] = true
		}
	}
	for _, c := range allFieldCases() {
		require.False(t, scenarios[c.field], "%s has two", c.field)
		scenarios[c.field] = true
		require.NotEqual(t, c.text(true), c.text(false), c.field)
		require.True(t, slices.ContainsFunc(c.steps, func(s fieldStep) bool { return s.line[true] != s.line[false] }),
			"%s: the scenario shows no effect of the field", c.field)
		_, name, _ := strings.Cut(c.field, ".")
		require.Contains(t, c.text(true), name, "the scenario is about another field")
	}
	fields := 0
	for _, o := range policy.Schema() {
		for _, f := range o.Fields {
			fields++
			require.True(t, scenarios[o.Name+"."+f.Name],
				"%s.%s has no scenario: add one to testdata/fields.txt or fieldScenarios", o.Name, f.Name)
		}
	}
	require.Len(t, scenarios, fields, "a scenario is for no field")
}

func TestGRPCResponse(t *testing.T) { everyProxy(t, rows("grpc")) }

func TestUpstreamFields(t *testing.T) { everyProxy(t, rows("upstream")) }

// fieldScenarios are the tests of fields that a fieldCase cannot show.
var fieldScenarios = []struct {
	test   func(t *testing.T)
	fields string
}{
	{TestFieldVersionAndRevision, "policy.version policy.revision"},
	{TestPolicies, "policy.name policy.proxies proxies.node proxies.cluster proxies.metadata proxies.trust"},
	{TestPolicyOfACertificate, "proxies.san"},
	{TestFieldDomain, "policy.domain"},
	{TestFieldHeaders, "policy.headers"},
	{TestFieldRulesAndMatch, "policy.rules policy.exempt rule.match"},
	{TestFieldManage, "policy.manage manage.path manage.token_sha256 manage.port"},
	{TestOneControlPlane, "policy.report_keys policy.report_secret"},
	{TestFieldUsage, "policy.usage usage.path rule.usage"},
	{TestFieldScope, "policy.quota quota.cluster quota.timeout rule.scope rule.lease rule.on_unavailable"},
	{TestFieldOnErrorAndContention, "rule.on_error rule.on_contention"},
	{TestFieldOffsetAndJitter, "limit.offset limit.jitter limit.utc_offset"},
	{TestWhoTheClientIs, "client_ip.v6_prefix"},
	{TestKeyJWTAndRoute, "key.route key.jwt jwt.provider jwt.claim"},
	{TestALimitThatTheTokenSays, "requests.jwt requests.trusted"},
	{TestFieldHold, "rule.hold rule.max_hold"},
	{TestBlocks, "rule.block block.for block.prolong"},
	{TestRetryInfo, "response.grpc_retry_info"},
	{TestAnswers, "rule.linger answer.no_answer"},
}

// refused applies a policy that the control plane must refuse, and requires that the
// proxy keeps the one it runs.
func (s site) refused(t *testing.T, policy, message string) {
	before := s.runs(t)
	sluiceRefuses(t, message, s.control.applying(t, policy)...)
	require.Equal(t, before, s.runs(t))
}

func TestFieldVersionAndRevision(t *testing.T) { each(t, rows("versions")) }

func TestFieldDomain(t *testing.T) { each(t, rows("domains")) }

func TestFieldHeaders(t *testing.T) { each(t, rows("headers")) }

func TestFieldRulesAndMatch(t *testing.T) { each(t, rows("matching")) }

func TestFieldManage(t *testing.T) { each(t, rows("manage")) }

func TestFieldScope(t *testing.T) { each(t, rows("scope")) }

func TestFieldOnErrorAndContention(t *testing.T) {
	t.Parallel()
	each(t, rows("faults"))
}

var resetText = regexp.MustCompile(`;t=(\d+)`)

// reset returns the seconds to the window's end, from the response's RateLimit field.
func (p *proxy) reset(t *testing.T, path string, headers ...string) int64 {
	res, _ := p.get(t, path, headers...)
	m := resetText.FindStringSubmatch(res.Header.Get("ratelimit"))
	require.NotNil(t, m, res.Header)
	seconds, err := strconv.ParseInt(m[1], 10, 64)
	require.NoError(t, err)
	return seconds
}

// A gRPC client that is denied reads from the status how long to wait: without that, OpenTelemetry's exporters drop
// what they have.
func TestRetryInfo(t *testing.T) {
	everyEnvoy(t, func(t *testing.T, d driver) {
		p := d.start(t, proxyOptions{workers: 1, policy: `
version: 1
rules:
  - name: traces
    match: {paths: [/grpc.health.v1.Health/*]}
    key: [{header: x-user-id}]
    algorithm: fixed_window_per_key
    limits: [1/1h]
    response: {body: "slow down, %RULE%", grpc_status: unavailable, grpc_retry_info: true}
`})
		connection, err := grpc.NewClient(p.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		defer connection.Close()
		require.Equal(t, allowed, p.status(t, "/grpc.health.v1.Health/Check", "x-user-id", "a"))
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-user-id", "a")
		_, err = grpc_health_v1.NewHealthClient(connection).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		denial := status.Convert(err)
		require.Equal(t, codes.Unavailable, denial.Code(), err)
		require.Equal(t, "slow down, traces", denial.Message())
		require.Len(t, denial.Details(), 1)
		wait := denial.Details()[0].(*errdetails.RetryInfo).RetryDelay.AsDuration()
		require.True(t, wait > 59*time.Minute && wait <= time.Hour, wait)
	})
}

func TestFieldOffsetAndJitter(t *testing.T) {
	const year, day = 366 * 86400, 86400
	each(t, func(t *testing.T, d driver) {
		s := serve(t, d, `
version: 1
headers: ietf
rules:
  - {name: plain, match: {paths: [/plain]}, limits: [{requests: 9, per: 366d}]}
  - {name: offset, match: {paths: [/offset]}, limits: [{requests: 9, per: 366d, offset: 100d}]}
  - {name: months, match: {paths: [/months]}, limits: [{requests: 9, per: month, utc_offset: "-12:00"}]}
  - {name: jitter, match: {paths: [/jitter]}, key: [{header: u}], limits: [{requests: 9, per: 366d, jitter: 50%}]}
`)
		now := time.Now().Unix()
		left := func(offset int64) int64 { return year - (now-offset)%year }
		require.InDelta(t, left(0), s.reset(t, "/plain"), 10)
		require.InDelta(t, left(100*day), s.reset(t, "/offset"), 10)
		west := time.Unix(now, 0).In(time.FixedZone("", -12*3600))
		end := time.Date(west.Year(), west.Month()+1, 1, 0, 0, 0, 0, west.Location()).Unix()
		require.InDelta(t, end-now, s.reset(t, "/months"), 10)
		resets := map[int64]bool{}
		for i := range 8 {
			resets[s.reset(t, "/jitter", "u", fmt.Sprint("key", i))/day] = true
		}
		require.Greater(t, len(resets), 4, "windows of different keys end at different times")
	})
}

// A slot whose VM has ended comes back after the hold, one of a request that runs for too long
// after max_hold.
func TestFieldHold(t *testing.T) {
	t.Parallel()
	const policy = `
version: 1
rules:
  - {name: lost, match: {paths: [/lost]}, algorithm: concurrency, limits: [1], hold: 10s}
  - {name: long, match: {paths: [/long]}, algorithm: concurrency, limits: [1]}
  - {name: runs, match: {paths: [/runs]}, algorithm: concurrency, limits: [1], hold: 10s, max_hold: 10s}
  - {name: keeps, match: {paths: [/keeps]}, algorithm: concurrency, limits: [1], hold: 10s}
`
	upstream := startAnswering(t)
	p := newest(t).start(t, proxyOptions{
		policy: policy, upstream: upstream.URL, workers: 1, wasm: buildtest.Filter(t, "sluice_faults"),
		edit: replacing("route: {cluster: upstream", "route: {timeout: 0s, cluster: upstream"),
	})
	over := make(chan struct{}) // of the requests
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(over)
	run := func(path string) {
		arrived := make(chan struct{})
		defer upstream.onArrival(path, func() { close(arrived); <-over })()
		wg.Go(func() { _, _, _ = p.try(path, "x-id", path) })
		<-arrived
		require.Equal(t, denied, p.status(t, path))
	}
	run("/lost")
	run("/long")
	require.Equal(t, http.StatusServiceUnavailable, p.status(t, "/", "x-fault", "panic"))
	eventually(t, 10*time.Second, "another VM", func() bool { return p.status(t, "/") == allowed })
	lost := time.Now()
	require.Equal(t, denied, p.status(t, "/lost"))
	run("/runs")
	run("/keeps")
	for path, after := range map[string]time.Duration{"/lost": 7 * time.Second, "/runs": 17 * time.Second} {
		for time.Since(lost) < after {
			require.Equal(t, denied, p.status(t, path), path)
			time.Sleep(300 * time.Millisecond)
		}
		eventually(t, 15*time.Second, path+" to be free", func() bool { return p.status(t, path) == allowed })
	}
	require.Equal(t, denied, p.status(t, "/long"))
	require.Equal(t, denied, p.status(t, "/keeps"))
}
