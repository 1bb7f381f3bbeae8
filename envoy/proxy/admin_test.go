package proxy

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The labels are those that the stats_tags of a rendered bootstrap make.
func TestSample(t *testing.T) {
	for name, want := range map[string]string{
		"rate_limit_panics_total":                                            "rate_limit_panics_total",
		"rule=.=a;.;rate_limit_allowed_total":                                `rate_limit_allowed_total{rule="a"}`,
		"rule=.=a;.;b\"\\;.;rate_limit_allowed_total":                        `rate_limit_allowed_total{rule="a;.;b\"\\"}`,
		"domain=.=shop;.;rule=.=a.b;.;rate_limit_live_keys":                  `rate_limit_live_keys{domain="shop",rule="a.b"}`,
		"rule=.=a;.;override=.=gold;.;rate_limit_override_denied_total":      `rate_limit_override_denied_total{rule="a",override="gold"}`,
		"domain=.=d;.;rule=.=a;.;override=.=g;.;rate_limit_override_x_total": `rate_limit_override_x_total{domain="d",rule="a",override="g"}`,
	} {
		require.Equal(t, want, sample(name))
	}
}
