package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// What leases take in a worker is told beside what counters take in an Envoy:
// once for a counter that leases, by how many windows it has.
func TestMemoryOfLeases(t *testing.T) {
	const one = `{"name":"a","limits":["99/1s"],"capacity":9,"lease":2}`
	for rules, want := range map[string]uint64{
		`{"name":"a","limits":["99/1s"],"capacity":9}`:                        0,
		`{"name":"a","limits":["99/1s"],"capacity":9,"lease":1}`:              0,
		`{"name":"a","limits":["99/1s"],"capacity":9,"lease":9,"mode":"off"}`: 0,
		one: 18 << 10,
		one + `,{"name":"b","limits":["99/1s"],"capacity":9,"lease":2,"counter":"a"}`: 18 << 10,
		one + `,{"name":"b","limits":["99/1s","999/1m","9999/1h"],"lease":1000000}`:   (18 + 22) << 10,
	} {
		require.Equal(t, want, valid(t, "d", rules).Memory().LeaseBytes, rules)
	}
}

// A policy that takes more than 64 MiB with leases is warned of, and told what
// of that is due to them.
func TestTheWarningOfMemory(t *testing.T) {
	rules := func(n int, rest string) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(`{"name":"r%d","match":{"paths":["/%d/"]},"capacity":9,"limits":["99/1s"]%s}`, i, i, rest))
		}
		return strings.Join(list, ",")
	}
	const large = `,{"name":"large","match":{"paths":["/large/"]},"limits":["99/1s"],"capacity":2000000`
	for _, c := range []struct {
		name, rules, want string
	}{
		{"little", rules(2, `,"lease":9`), ""},
		{"without leases", rules(1, "") + large + `}`, "rules: counters for 2000009 live keys take up to 71 MiB in each Envoy: lower capacity if fewer keys are live at a time"},
		{"one lease, which matters little", rules(1, "") + large + `,"lease":9}`, "rules: counters for 2000009 live keys take up to 71 MiB in each Envoy: lower capacity if fewer keys are live at a time"},
		{"leases alone", rules(4000, `,"lease":9`), "rules: counters for 36000 live keys take up to 1 MiB in each Envoy, and their leases 71 MiB more in each worker: " +
			"lower capacity if fewer keys are live at a time, and lease only where some are busy"},
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
