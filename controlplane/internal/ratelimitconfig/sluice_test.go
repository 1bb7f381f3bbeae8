package ratelimitconfig_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/ratelimitconfig"
	"github.com/sluice-ratelimit/sluice/shared/limit"
)

const minute = int64(60_000_000_000)

// withLimit is a configuration of one limit, whose text begins on line 2, column 35.
func withLimit(text string) string {
	return "domain: d\ndescriptors: [{key: a, rate_limit: " + text + "}]"
}

// Our words beside a unit change how its window counts; limits are windows in its place, in the
// order of the quota service.
func TestWordsOfSluiceMakeWindows(t *testing.T) {
	for text, want := range map[string][]limit.Window{
		"{unit: minute, requests_per_unit: 6}": {{Algorithm: limit.FixedWindow, Limit: 6, PeriodNs: minute}},
		"{unit: month, requests_per_unit: 6}":  {{Algorithm: limit.FixedWindow, Limit: 6, PeriodNs: 30 * 1440 * minute}},
		"{unit: year, sluice: {}}":             {{Algorithm: limit.FixedWindow, PeriodNs: 365 * 1440 * minute}},
		"{unit: minute, requests_per_unit: 6, sluice: {algorithm: token_bucket, burst: 9}}": {
			{Algorithm: limit.TokenBucket, Limit: 6, PeriodNs: minute, Burst: 9},
		},
		"{unit: hour, requests_per_unit: 6, sluice: {algorithm: token_bucket}}": {
			{Algorithm: limit.TokenBucket, Limit: 6, PeriodNs: 60 * minute, Burst: 6},
		},
		"{unit: hour, requests_per_unit: 6, sluice: {algorithm: sliding_window_log}}": {
			{Algorithm: limit.SlidingWindowLog, Limit: 6, PeriodNs: 60 * minute, Units: 6},
		},
		"{unit: hour, requests_per_unit: 6, sluice: {offset: 10m}}": {
			{Algorithm: limit.FixedWindow, Limit: 6, PeriodNs: 60 * minute, OffsetNs: 10 * minute},
		},
		"{sluice: {limits: [100/hour, 7/minute]}}": {
			{Algorithm: limit.FixedWindow, Limit: 7, PeriodNs: minute},
			{Algorithm: limit.FixedWindow, Limit: 100, PeriodNs: 60 * minute},
		},
		"{sluice: {algorithm: sliding_window_counter, limits: [9/minute, {requests: 5, per: 1h, " +
			"algorithm: token_bucket}]}}": {
			{Algorithm: limit.SlidingWindowCounter, Limit: 9, PeriodNs: minute},
			{Algorithm: limit.TokenBucket, Limit: 5, PeriodNs: 60 * minute, Burst: 5},
		},
	} {
		c, err := read(t, withLimit(text))
		require.NoError(t, err, text)
		require.Equal(t, want, c.Descriptors[0].Limit.Windows, text)
	}
}

func TestRefusesWordsOfSluiceThatMeanNothing(t *testing.T) {
	for text, want := range map[string]string{
		"{unlimited: true, sluice: {}}": ":36: descriptors[0].rate_limit.sluice: does not go with unlimited: keep one " +
			"of the two",
		"{unit: day, sluice: {burst: 3}}": ":64: descriptors[0].rate_limit.sluice.burst: only token_bucket has a " +
			"burst: remove it, or set algorithm to token_bucket",
		"{unit: day, sluice: {limit: 3}}": `:57: descriptors[0].rate_limit.sluice.limit: unknown field: did you mean ` +
			`"limits"?`,
		"{unit: day, sluice: {limits: [3/minute]}}": ":36: descriptors[0].rate_limit.sluice.limits: stand in place " +
			"of unit and requests_per_unit: keep one of the two",
		"{sluice: {algorithm: token_bucket}}": `:36: descriptors[0].rate_limit.unit: must be second, minute, hour, ` +
			`day, week, month or year, not ""`,
		"{sluice: {limits: []}}": ":54: descriptors[0].rate_limit.sluice.limits: must have at least one limit",
		"{sluice: {limits: [3/minute], burst: 3}}": ":45: descriptors[0].rate_limit.sluice: burst and offset do not " +
			"go with limits: write them in the limits they are for",
		"{sluice: {limits: [3/minute], count_denied: false}}": ":80: descriptors[0].rate_limit.sluice.count_denied: " +
			"holds for a whole domain: write sluice: {count_denied: false} beside domain",
		"{sluice: {limits: [3/fortnight]}}": `:55: descriptors[0].rate_limit.sluice.limits[0]: "3/fortnight" is not ` +
			`a limit, because its period is not known: write one such as "10/minute", "5/1s" or "3 per 15 minutes"`,
		"{sluice: {limits: [{requests: 3, per: m}]}}": `:74: descriptors[0].rate_limit.sluice.limits[0].per: "m" is ` +
			`not a duration: write one such as "10s", "1h30m" or "7d", with the units ns, us, ms, s, m, h, d, w`,
		"{sluice: {limits: [{requests: 3, per: 1m, name: n}]}}": ":55: " +
			"descriptors[0].rate_limit.sluice.limits[0].name: is not possible here: the rate_limit has a name",
		"{sluice: {limits: [{requests: 3, per: 1m, jitter: 5}]}}": ":55: " +
			"descriptors[0].rate_limit.sluice.limits[0].jitter: is not possible here: all keys have the same windows",
		"{sluice: {algorithm: concurrency, limits: [3]}}": ":57: descriptors[0].rate_limit.sluice.algorithm: " +
			"concurrency is not possible here: a call does not say when its request ends",
		"{unit: day, requests_per_unit: 3, sluice: {algorithm: concurrency}}": ":90: " +
			"descriptors[0].rate_limit.sluice.algorithm: concurrency is not possible here: a call does not say when its " +
			"request ends",
		"{unit: day, requests_per_unit: 3, sluice: {algorithm: bucket}}": `:90: ` +
			`descriptors[0].rate_limit.sluice.algorithm: must be one of fixed_window, fixed_window_per_key, ` +
			`sliding_window_log, sliding_window_counter, token_bucket, concurrency, not "bucket"`,
		"{unit: day, requests_per_unit: 999, sluice: {algorithm: sliding_window_log}}": ":67: " +
			"descriptors[0].rate_limit.requests_per_unit: a sliding_window_log remembers each request, at most 512 of " +
			"them, not 999: use sliding_window_counter",
		"{unit: day, requests_per_unit: 9, sluice: {offset: 1d}}": ":87: descriptors[0].rate_limit.sluice.offset: " +
			"must be less than per, which is 1d, not 1d",
		"{unit: day, requests_per_unit: 9, sluice: {algorithm: token_bucket, burst: 0}}": ":111: " +
			"descriptors[0].rate_limit.sluice.burst: must be at least 1, not 0: a bucket that holds nothing always denies",
		"{sluice: {limits: [{requests: {header: x, default: 1, max: 2, trusted: true}, per: 1m}]}}": ":55: " +
			"descriptors[0].rate_limit.sluice.limits[0].requests: must be a number: a call does not say the limit",
	} {
		_, err := read(t, withLimit(text))
		require.EqualError(t, err, "c.yaml:2"+want, text)
	}
}

// A domain may say that a denied call counts nowhere. Of several files, one is enough.
func TestADomainSaysWhetherDeniedCallsCount(t *testing.T) {
	c, err := read(t, "domain: d\nsluice: {count_denied: false}")
	require.NoError(t, err)
	plain, err := read(t, "domain: d")
	require.NoError(t, err)
	joined, err := ratelimitconfig.Join([]*ratelimitconfig.Config{plain, c}, true)
	require.NoError(t, err)
	require.False(t, ratelimitconfig.Compile(joined).CountDenied("d"))
	require.True(t, ratelimitconfig.Compile([]*ratelimitconfig.Config{plain}).CountDenied("d"))
	_, err = read(t, "domain: d\nsluice: {algorithm: token_bucket}")
	require.EqualError(t, err, "c.yaml:2:10: sluice.algorithm: unknown field: the fields here are count_denied")
}
