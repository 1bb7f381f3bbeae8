package proxy

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The stats_tags of a rendered bootstrap make the same labels.
func TestNamesBecomeLabels(t *testing.T) {
	for name, want := range map[string]string{
		"panics_total":                               `panics_total`,
		"rule=.=a;.;allowed_total":                   `allowed_total{rule="a"}`,
		"rule=.=a;.;b\"\\;.;allowed_total":           `allowed_total{rule="a;.;b\"\\"}`,
		"domain=.=shop;.;rule=.=a.b;.;live_keys":     `live_keys{domain="shop",rule="a.b"}`,
		"rule=.=a;.;override=.=g;.;x_total":          `x_total{rule="a",override="g"}`,
		"domain=.=d;.;rule=.=a;.;override=.=g;.;y_z": `y_z{domain="d",rule="a",override="g"}`,
	} {
		require.Equal(t, want, sample(name))
	}
}
