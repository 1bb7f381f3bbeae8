package e2e

import (
	"fmt"
	"regexp"
	"strconv"
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
)

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
	{TestFieldScope, "policy.quota quota.cluster quota.timeout rule.scope rule.lease rule.on_unavailable"},
	{TestFieldOnErrorAndContention, "rule.on_error rule.on_contention"},
	{TestFieldOffsetAndJitter, "limit.offset limit.jitter limit.utc_offset"},
	{TestWhoTheClientIs, "client_ip.v6_prefix"},
	{TestKeyJWTAndRoute, "key.route key.jwt jwt.provider jwt.claim"},
	{TestALimitThatTheTokenSays, "requests.jwt requests.trusted"},
	{TestFieldHold, "rule.hold rule.max_hold"},
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
