package policy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// A policy whose counters may take more than 64 MiB is warned of.
func TestTheWarningOfMemory(t *testing.T) {
	const small = `{"name":"small","match":{"paths":["/small/"]},"capacity":9,"limits":["99/1s"]}`
	const large = small + `,{"name":"large","match":{"paths":["/large/"]},"limits":["99/1s"],"capacity":2000000}`
	for _, c := range []struct {
		name, rules, want string
	}{
		{"little", small, ""},
		{"much", large, "rules: counters for 2000009 live keys take up to 71 MiB in each Envoy: lower capacity if fewer keys are live at a time"},
	} {
		_, errs, warnings := policy.Read(parse(t, `{"version":1,"rules":[`+c.rules+`]}`))
		require.Empty(t, messages(errs), c.name)
		if c.want == "" {
			require.Empty(t, messages(warnings), c.name)
		} else {
			require.Equal(t, []string{c.want}, messages(warnings), c.name)
		}
	}
}
