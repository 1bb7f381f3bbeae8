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

func TestQuotaProblems(t *testing.T) {
	for doc, want := range map[string]string{
		`{"cluster":"` + strings.Repeat("a", 257) + `"}`: "quota.cluster: too_long",
		`{"timeout":"0"}`:        "quota.timeout: timeout_range",
		`{"timeout":"999999ns"}`: "quota.timeout: timeout_range",
		`{"timeout":"10001ms"}`:  "quota.timeout: timeout_range",
	} {
		_, problems := policy.Read(parse(t, `{"version":1,"quota":`+doc+`}`))
		for i := range problems {
			problems[i].Args = nil
		}
		require.Equal(t, []string{want}, messages(problems), doc)
	}
}

// A number may be a window's name: the first that it fits is meant.
func TestLimitNamed(t *testing.T) {
	r := policy.Rule{Limits: []policy.Limit{{Name: "burst"}, {}, {Name: "1"}, {Name: "0"}}}
	for text, want := range map[string]int{"burst": 0, "0": 0, "1": 1, "2": 2, "3": 3, "4": -1, "01": -1, "-1": -1, "daily": -1} {
		require.Equal(t, want, r.LimitNamed(text), text)
	}
}
