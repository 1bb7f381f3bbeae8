package policy_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

func TestClusterDefaults(t *testing.T) {
	const rule = `{"name":"a","limits":["9/1s"],"scope":"cluster"}`
	defaults := &policy.Quota{Cluster: "sluice_quota", TimeoutNs: 100_000_000}
	for doc, want := range map[string]*policy.Quota{
		`{"version":1,"rules":[` + rule + `]}`:                                 defaults,
		`{"version":1,"quota":{},"rules":[` + rule + `]}`:                      defaults,
		`{"version":1,"rules":[{"name":"a","limits":["9/1s"]}]}`:               nil,
		`{"version":1,"quota":{}}`:                                             defaults,
		`{"version":1,"quota":{"timeout":"1ms"},"rules":[` + rule + `]}`:       {Cluster: "sluice_quota", TimeoutNs: policy.MinTimeoutNs},
		`{"version":1,"quota":{"cluster":"q"},"rules":[` + rule + `]}`:         {Cluster: "q", TimeoutNs: 100_000_000},
		`{"version":1,"quota":{"timeout":"10s","cluster":"x y"}}`:              {Cluster: "x y", TimeoutNs: policy.MaxTimeoutNs},
		`{"version":1,"quota":{"cluster":"` + strings.Repeat("a", 256) + `"}}`: {Cluster: strings.Repeat("a", 256), TimeoutNs: 100_000_000},
	} {
		p, problems := policy.Read(parse(t, doc))
		require.Empty(t, messages(problems), doc)
		require.Equal(t, want, p.Quota, doc)
	}
	p, _ := policy.ReadPushed(parse(t, `{"version":1,"revision":"7","rules":[`+rule+`]}`))
	require.Equal(t, policy.ScopeCluster, p.Rules[0].Scope)
	require.Equal(t, uint32(quota.LeaseAuto), p.Rules[0].Lease)
	require.Equal(t, policy.UnavailableLocal, p.Rules[0].OnUnavailable)
}

func TestClusterProblems(t *testing.T) {
	const cluster = `"scope":"cluster",`
	one := func(fields string) string {
		return `{"version":1,"rules":[{"name":"a","limits":["9/1s"],` + strings.TrimSuffix(fields, ",") + `}]}`
	}
	two := func(a, b string) string {
		return `{"version":1,"rules":[{"name":"a","key":["host"],` + a + `},{"name":"b","counter":"a","key":["host"],` + b + `}]}`
	}
	const limits, high = `"limits":["9/1s","50/1m"]`, `"limits":["50/1m","10/1s"]`
	const gold = `,"overrides":[{"key":["gold"],"limits":["70/1m","9/1s"]},{"key":["*"],"unlimited":true}]`
	const same = `,"overrides":[{"key":["gold"],"limits":["50/1m","9/1s"]}]`
	const bucket = `"algorithm":"token_bucket","limits":[{"requests":9,"per":"1s","burst":300}]`
	for doc, want := range map[string][]string{
		`{"version":1,"quota":{"cluster":""}}`:                                        {"quota.cluster: empty_value"},
		`{"version":1,"quota":{"cluster":7}}`:                                         {"quota.cluster: wrong_value"},
		`{"version":1,"quota":{"cluster":"` + strings.Repeat("a", 257) + `"}}`:        {"quota.cluster: too_long"},
		`{"version":1,"quota":{"timeout":"0"}}`:                                       {"quota.timeout: timeout_range"},
		`{"version":1,"quota":{"timeout":"999999ns"}}`:                                {"quota.timeout: timeout_range"},
		`{"version":1,"quota":{"timeout":"10001ms"}}`:                                 {"quota.timeout: timeout_range"},
		`{"version":1,"quota":{"timeout":100}}`:                                       {"quota.timeout: wrong_value"},
		`{"version":1,"quota":{"timeout":"soon"}}`:                                    {"quota.timeout: bad_duration"},
		`{"version":1,"quota":null}`:                                                  {"quota: wrong_value"},
		`{"version":1,"quota":{"addr":"a"}}`:                                          {"quota.addr: unknown_field"},
		one(`"scope":"proxy","lease":"off"`):                                          {"rules[0].lease: cluster_only"},
		one(`"lease":5,"on_unavailable":"local"`):                                     {"rules[0].lease: cluster_only", "rules[0].on_unavailable: cluster_only"},
		one(`"scope":"clutser","lease":5,"on_unavailable":"deny"`):                    {"rules[0].scope: wrong_value"},
		one(cluster + `"lease":0`):                                                    {"rules[0].lease: wrong_value"},
		one(cluster + `"lease":4294967295`):                                           {"rules[0].lease: wrong_value"},
		one(cluster + `"lease":1.5`):                                                  {"rules[0].lease: wrong_value"},
		one(cluster + `"lease":"5"`):                                                  {"rules[0].lease: wrong_value"},
		one(cluster + `"lease":false,"count_denied":true`):                            {"rules[0].lease: wrong_value"},
		one(cluster + `"lease":4294967294`):                                           nil,
		one(cluster + `"lease":1e3`):                                                  nil,
		one(cluster + `"on_unavailable":"open"`):                                      {"rules[0].on_unavailable: wrong_value"},
		one(cluster + `"count_denied":true`):                                          {"rules[0].count_denied: leased_denials"},
		one(cluster + `"count_denied":true,"lease":5`):                                {"rules[0].count_denied: leased_denials"},
		one(cluster + `"count_denied":true,"lease":"off"`):                            nil,
		one(cluster + `"count_denied":true,"lease":"off","algorithm":"token_bucket"`): {"rules[0].count_denied: count_denied"},

		elastic(cluster):                                 {"rules[0].limits[1].elastic: leased_elastic"},
		elastic(cluster + `"lease":3,`):                  {"rules[0].limits[1].elastic: leased_elastic"},
		elastic(cluster + `"lease":"off",`):              nil,
		elastic(``):                                      nil,
		two(cluster+limits, limits):                      {"rules[1].scope: counter_scope"},
		two(limits, cluster+limits):                      {"rules[1].scope: counter_scope"},
		two(cluster+limits, cluster+limits):              nil,
		two(limits, high):                                nil,
		two(cluster+limits, cluster+high):                {"rules[1].limits: counter_limits"},
		two(cluster+limits, cluster+`"limits":["9/1s"]`): {"rules[1].limits: counter_windows"},
		two(cluster+`"lease":"off",`+limits, cluster+`"lease":"off",`+high):                                                nil,
		two(cluster+`"lease":5,`+limits, cluster+limits):                                                                   {"rules[1].lease: counter_lease"},
		two(cluster+`"lease":5,`+limits, cluster+`"lease":5,"on_unavailable":"deny",`+limits):                              nil,
		two(cluster+limits+gold, cluster+limits+gold):                                                                      nil,
		two(cluster+limits+gold, cluster+limits):                                                                           {"rules[1].limits: counter_limits"},
		two(cluster+limits+gold, cluster+limits+strings.Replace(gold, "70", "71", 1)):                                      {"rules[1].limits: counter_limits"},
		two(cluster+limits+gold, cluster+limits+strings.Replace(gold, "gold", "gold*", 1)):                                 {"rules[1].limits: counter_limits"},
		two(cluster+limits+gold, cluster+limits+strings.Replace(gold, `"70/1m",`, "", 1)):                                  {"rules[1].limits: counter_limits"},
		two(cluster+limits+gold, cluster+limits+strings.Replace(gold, `"limits":["70/1m","9/1s"]`, `"unlimited":true`, 1)): {"rules[1].limits: counter_limits"},
		two(cluster+limits+same, cluster+limits+strings.Replace(same, `"50/1m",`, "", 1)):                                  {"rules[1].limits: counter_limits"},
		two(cluster+limits+gold, cluster+limits+strings.Replace(gold, "gold", "silver", 1)):                                {"rules[1].limits: counter_limits"},
		two(cluster+bucket, cluster+bucket):                                                                                nil,
		two(cluster+bucket, cluster+strings.Replace(bucket, "300", "301", 1)):                                              {"rules[1].limits: counter_limits"},
	} {
		_, problems := policy.Read(parse(t, doc))
		var got []string
		for i := range problems {
			problems[i].Args = nil
			got = append(got, problems[i].Error())
		}
		require.Equal(t, want, got, doc)
	}
}

func elastic(fields string) string {
	return `{"version":1,"rules":[{"name":"a",` + fields + `"algorithm":"fixed_window_per_key",
		"limits":["9/1s",{"requests":9,"per":"1m","elastic":true}]}]}`
}

// A number may be a window's name: the first that it fits is meant.
func TestLimitNamed(t *testing.T) {
	r := policy.Rule{Limits: []policy.Limit{{Name: "burst"}, {}, {Name: "1"}, {Name: "0"}}}
	for text, want := range map[string]int{"burst": 0, "0": 0, "1": 1, "2": 2, "3": 3, "4": -1, "01": -1, "-1": -1, "daily": -1} {
		require.Equal(t, want, r.LimitNamed(text), text)
	}
}
