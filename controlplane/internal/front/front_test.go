package front

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/ratelimitconfig"
)

// clock is time that a test moves. It begins five seconds into a year of the limits.
type clock struct{ now time.Time }

func newClock() *clock { return &clock{time.Unix(54*365*86_400+5, 0)} }

func (c *clock) NowNs() int64                { return c.now.UnixNano() }
func (c *clock) AfterFunc(_ int64, _ func()) {}

// rig is a front over a memory store.
type rig struct {
	t     testing.TB
	clock *clock
	*Service
}

func newRig(t testing.TB, o Options, files ...string) *rig {
	t.Helper()
	clock := newClock()
	quotas, err := quotaservice.NewService(t.Context(), quotaservice.Options{
		Store: swapstore.NewMemory(clock.NowNs), Clock: clock,
	})
	require.NoError(t, err)
	o.Now = func() time.Time { return clock.now }
	if o.Counter == nil {
		o.Counter = quotas
	}
	r := &rig{t, clock, New(o)}
	require.NoError(t, r.Use(parse(t, files...), false))
	return r
}

func parse(t testing.TB, files ...string) (configs []*ratelimitconfig.Config) {
	t.Helper()
	for _, text := range files {
		document, err := policyfile.Parse("config.yaml", []byte(text))
		require.NoError(t, err)
		c, err := ratelimitconfig.Read("config.yaml", document)
		require.NoError(t, err)
		configs = append(configs, c)
	}
	return configs
}

// entries makes a descriptor of keys and values in turn.
func entries(pairs ...string) *ratelimitv3.RateLimitDescriptor {
	d := &ratelimitv3.RateLimitDescriptor{}
	for i := 0; i < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return d
}

func hits(n uint64, d *ratelimitv3.RateLimitDescriptor) *ratelimitv3.RateLimitDescriptor {
	d.HitsAddend = wrapperspb.UInt64(n)
	return d
}

func (r *rig) call(descriptors ...*ratelimitv3.RateLimitDescriptor) *rlsv3.RateLimitResponse {
	r.t.Helper()
	answer, err := r.ShouldRateLimit(r.t.Context(), &rlsv3.RateLimitRequest{Domain: "shop", Descriptors: descriptors})
	require.NoError(r.t, err)
	return answer
}

// answers compares an answer with one in JSON.
func (r *rig) answers(want string, descriptors ...*ratelimitv3.RateLimitDescriptor) {
	r.t.Helper()
	got, err := protojson.Marshal(r.call(descriptors...))
	require.NoError(r.t, err)
	require.JSONEq(r.t, want, string(got))
}

const shop = `
domain: shop
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 2, name: users}}
- {key: tenant, value: dark, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: tenant, value: free, rate_limit: {unlimited: true}}
- {key: tenant, value: gold, rate_limit: {unit: day, requests_per_unit: 10, replaces: [{name: users}]}}
- {key: monthly, quota_mode: true, rate_limit: {unit: month, requests_per_unit: 1}}
- {key: weekly, quota_mode: true, rate_limit: {unit: week, requests_per_unit: 1}}
`

// TestAnswers: the code, and how each descriptor stands.
func TestAnswers(t *testing.T) {
	r := newRig(t, Options{}, shop)
	const users = `"currentLimit": {"name": "users", "requestsPerUnit": 2, "unit": "MINUTE"}, "durationUntilReset": "55s"`
	r.answers(`{"overallCode": "OK", "statuses": [{"code": "OK", "limitRemaining": 1, `+users+`}]}`, entries("user", "a"))
	r.answers(`{"overallCode": "OK", "statuses": [{"code": "OK", `+users+`}]}`, entries("user", "a"))
	r.answers(`{"overallCode": "OVER_LIMIT", "statuses": [{"code": "OVER_LIMIT", `+users+`}, {"code": "OK"}]}`,
		entries("user", "a"), entries("unknown", "a"))
	r.answers(`{"overallCode": "OVER_LIMIT", "statuses": [{"code": "OVER_LIMIT", `+users+`}]}`, entries("user", "a"))
	const unlimited = `"limitRemaining": 4294967295`
	r.answers(`{"overallCode": "OK", "statuses": [{"code": "OK", `+unlimited+`}]}`, entries("tenant", "free"))
	const gold = `"currentLimit": {"requestsPerUnit": 10, "unit": "DAY"}, "durationUntilReset": "86395s"`
	r.answers(`{"overallCode": "OK", "statuses": [{"code": "OK"}, {"code": "OK", "limitRemaining": 9, `+gold+`}]}`,
		entries("user", "a"), entries("tenant", "gold"))
	const dark = `"currentLimit": {"requestsPerUnit": 1, "unit": "HOUR"}, "durationUntilReset": "3595s"`
	for range 3 {
		r.answers(`{"overallCode": "OK", "statuses": [{"code": "OK", `+dark+`}]}`, entries("tenant", "dark"))
	}
	r.clock.now = r.clock.now.Add(time.Minute)
	require.Equal(t, rlsv3.RateLimitResponse_OK, r.call(entries("user", "a")).GetOverallCode())
}

// TestQuotaMode: a limit in quota mode denies only if all of the call are exceeded.
func TestQuotaMode(t *testing.T) {
	r := newRig(t, Options{}, shop)
	both := func() *rlsv3.RateLimitResponse { return r.call(entries("monthly", ""), entries("weekly", "")) }
	r.call(hits(2, entries("monthly", "")))
	answer := both()
	require.Equal(t, rlsv3.RateLimitResponse_OK, answer.GetOverallCode())
	require.Equal(t, rlsv3.RateLimitResponse_OVER_LIMIT, answer.GetStatuses()[0].GetCode())
	require.Equal(t, rlsv3.RateLimitResponse_OVER_LIMIT, both().GetOverallCode())
	all := newRig(t, Options{Quota: true}, shop)
	all.call(hits(3, entries("user", "a")))
	require.Equal(t, rlsv3.RateLimitResponse_OVER_LIMIT, all.call(entries("user", "a")).GetOverallCode())
	require.Equal(t, rlsv3.RateLimitResponse_OK, all.call(entries("user", "a"), entries("no", "limit")).GetOverallCode())
}

// TestHits: the addend of a descriptor goes before that of the call, of which 0 is 1.
func TestHits(t *testing.T) {
	r := newRig(t, Options{}, `
domain: shop
descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 100}}]`)
	call := func(addend uint32, d *ratelimitv3.RateLimitDescriptor) uint32 {
		answer, err := r.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{
			Domain: "shop", HitsAddend: addend, Descriptors: []*ratelimitv3.RateLimitDescriptor{d},
		})
		require.NoError(t, err)
		return answer.GetStatuses()[0].GetLimitRemaining()
	}
	require.EqualValues(t, 99, call(0, entries("user", "a")))
	require.EqualValues(t, 89, call(10, entries("user", "a")))
	require.EqualValues(t, 69, call(10, hits(20, entries("user", "a"))))
	require.EqualValues(t, 69, call(10, hits(0, entries("user", "a"))))
	require.EqualValues(t, 0, call(1, hits(math.MaxUint64, entries("user", "a"))))
}

// TestHeaders: they are those of the limit that denies, or else of the one that is nearest.
func TestHeaders(t *testing.T) {
	r := newRig(t, Options{Headers: [3]string{"limit", "remaining", "reset"}}, shop)
	headers := func(descriptors ...*ratelimitv3.RateLimitDescriptor) (values []string) {
		for i, h := range r.call(descriptors...).GetResponseHeadersToAdd() {
			require.Equal(t, r.o.Headers[i], h.GetKey())
			values = append(values, h.GetValue())
		}
		return values
	}
	require.Equal(t, []string{"2", "1", "55"}, headers(entries("user", "a")))
	require.Equal(t, []string{"2", "1", "55"}, headers(entries("user", "b"), hits(1, entries("tenant", "free"))))
	require.Equal(t, []string{"2", "0", "55"}, headers(hits(2, entries("user", "a")), entries("monthly", "")))
	require.Empty(t, headers(entries("unknown", "a")))
}

// TestMetadata: the call, and what the limits say that pass.
func TestMetadata(t *testing.T) {
	r := newRig(t, Options{Metadata: true}, `
domain: shop
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 1}, metadata: {plan: free, of: {user: 1}}}
- {key: tenant, rate_limit: {unit: minute, requests_per_unit: 9}, metadata: {plan: gold, of: {tenant: 2}}}`)
	metadata := func() string {
		answer := r.call(hits(1, entries("user", "a")), entries("tenant", "t"))
		text, err := protojson.Marshal(answer.GetDynamicMetadata())
		require.NoError(t, err)
		return string(text)
	}
	const call = `"domain": "shop", "descriptors": [{"entries": ["user=a"], "hitsAddend": 1}, {"entries": ["tenant=t"]}]`
	require.JSONEq(t, `{`+call+`, "metadata": {"plan": "free", "of": {"user": 1, "tenant": 2}}}`, metadata())
	require.JSONEq(t, `{`+call+`, "metadata": {"plan": "gold", "of": {"tenant": 2}}}`, metadata())
}

// TestGlobalShadow: no call is denied, and the denials are counted.
func TestGlobalShadow(t *testing.T) {
	r := newRig(t, Options{Shadow: true}, shop)
	answer := r.call(hits(3, entries("user", "a")))
	require.Equal(t, rlsv3.RateLimitResponse_OK, answer.GetOverallCode())
	require.Equal(t, rlsv3.RateLimitResponse_OVER_LIMIT, answer.GetStatuses()[0].GetCode())
	require.InDelta(t, 1, testutil.ToFloat64(r.metrics.globalShadow), 0)
}

// TestAllOrNone: with count_denied false a denied call counts nowhere.
func TestAllOrNone(t *testing.T) {
	r := newRig(t, Options{}, shop)
	configs := parse(t, shop)
	configs[0].CountDenied = false
	require.NoError(t, r.Use(configs, false))
	gold := func() uint32 { return r.call(hits(0, entries("tenant", "gold"))).GetStatuses()[0].GetLimitRemaining() }
	require.Equal(t, rlsv3.RateLimitResponse_OVER_LIMIT, r.call(hits(3, entries("user", "a"))).GetOverallCode())
	answer := r.call(hits(11, entries("tenant", "gold")), entries("monthly", ""))
	require.Equal(t, rlsv3.RateLimitResponse_OVER_LIMIT, answer.GetOverallCode())
	require.EqualValues(t, 10, gold())
	require.EqualValues(t, 1, r.call(hits(0, entries("monthly", ""))).GetStatuses()[0].GetLimitRemaining())
	r.call(hits(4, entries("tenant", "gold")), entries("tenant", "dark"))
	r.call(hits(4, entries("tenant", "gold")), entries("tenant", "dark"))
	require.EqualValues(t, 2, gold(), "a limit in shadow mode denies nothing")
}

// TestErrors: what ends with an error, and what the caller may not ask for.
func TestErrors(t *testing.T) {
	counter := failing{errors.New("the store is away")}
	may := func(_ context.Context, domain string) error {
		if strings.HasPrefix(domain, "other") {
			return errors.New("not yours")
		}
		return nil
	}
	r := newRig(t, Options{Counter: counter, Allow: may}, shop)
	for name, c := range map[string]struct {
		request *rlsv3.RateLimitRequest
		code    codes.Code
	}{
		"no domain": {&rlsv3.RateLimitRequest{
			Descriptors: []*ratelimitv3.RateLimitDescriptor{entries("user", "a")},
		}, codes.Unknown},
		"no descriptors": {&rlsv3.RateLimitRequest{Domain: "shop"}, codes.Unknown},
		"not allowed": {&rlsv3.RateLimitRequest{
			Domain: "other" + strings.Repeat("!", 10_000), Descriptors: []*ratelimitv3.RateLimitDescriptor{entries("user", "a")},
		}, codes.PermissionDenied},
		"store": {&rlsv3.RateLimitRequest{
			Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{entries("user", "a")},
		}, codes.Unavailable},
	} {
		answer, err := r.ShouldRateLimit(t.Context(), c.request)
		require.Nil(t, answer, name)
		require.Equal(t, c.code, status.Code(err), name)
		require.Less(t, len(err.Error()), 200, name)
	}
	require.InDelta(t, 1, testutil.ToFloat64(r.metrics.errors.WithLabelValues("redis_error")), 0)
	require.InDelta(t, 3, testutil.ToFloat64(r.metrics.errors.WithLabelValues("service_error")), 0)
	_, err := New(Options{}).ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{
		Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{entries("user", "a")},
	})
	require.ErrorIs(t, err, errNoConfig)
}

type failing struct{ err error }

func (f failing) Count(
	context.Context, []quotaservice.Use, func([]quotaservice.Total) bool,
) ([]quotaservice.Total, error) {
	return nil, f.err
}

// TestMetrics: each hit is over the limit or within it, and the last fifth is near.
func TestMetrics(t *testing.T) {
	r := newRig(t, Options{NearRatio: 0.8}, `
domain: shop
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 10}}
- {key: dark, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 10}}`)
	read := func() (read [6]float64) {
		l := r.metrics.of("shop.user")
		for i, c := range []float64{
			testutil.ToFloat64(l.total), testutil.ToFloat64(l.within), testutil.ToFloat64(l.near),
			testutil.ToFloat64(l.over), testutil.ToFloat64(l.remembered), testutil.ToFloat64(l.shadow),
		} {
			read[i] = c
		}
		return read
	}
	for _, step := range []struct {
		units uint64
		want  [6]float64
	}{
		{7, [6]float64{7, 7, 0, 0, 0, 0}},
		{2, [6]float64{9, 9, 1, 0, 0, 0}},
		{0, [6]float64{9, 9, 1, 0, 0, 0}},
		{3, [6]float64{12, 9, 2, 2, 0, 0}},
		{4, [6]float64{16, 9, 2, 6, 4, 0}},
	} {
		r.call(hits(step.units, entries("user", "a")))
		require.Equal(t, step.want, read(), "%d", step.units)
	}
	r.call(hits(12, entries("dark", "a")))
	require.InDelta(t, 2, testutil.ToFloat64(r.metrics.of("shop.dark").shadow), 0)
}

// TestIgnoredFieldsAreLogged: with their line, and the limits hold.
func TestIgnoredFieldsAreLogged(t *testing.T) {
	var log bytes.Buffer
	r := newRig(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, `
domain: shop
descriptors:
- key: user
  rate_limit: {unit: minute, requests_per_unit: 1, shadow_mode: true}`)
	require.Contains(t, log.String(), "config.yaml:5:")
	require.Contains(t, log.String(), "shadow_mode")
	r.call(entries("user", "a"))
	require.Equal(t, rlsv3.RateLimitResponse_OVER_LIMIT, r.call(entries("user", "a")).GetOverallCode())
}

// TestMetricsAreBounded: clients' values do not make series without end.
func TestMetricsAreBounded(t *testing.T) {
	m := newMetrics()
	for i := range maxLimits + 100 {
		m.of("shop.user_" + string(rune(0x4e00+i))).total.Inc()
	}
	require.Equal(t, maxLimits+1, testutil.CollectAndCount(m.total))
	require.InDelta(t, 100, testutil.ToFloat64(m.total.WithLabelValues(otherLimits, "", "")), 0)
	m = newMetrics()
	m.of("shop.user_" + strings.Repeat("a", maxMetric)).total.Inc()
	m.of("shop.user_a").total.Inc()
	require.InDelta(t, 1, testutil.ToFloat64(m.total.WithLabelValues(otherLimits, "", "")), 0)
	require.InDelta(t, 1, testutil.ToFloat64(m.total.WithLabelValues("shop", "user_a", "")), 0)
}
