package main_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	policies "github.com/sluice-ratelimit/sluice/shared/policy"
)

// The log has the path and code of each problem of a refused policy, up to a
// bound.
func TestLogOfARefusedPolicy(t *testing.T) {
	for _, text := range []string{
		`{"version":1,"headers":"ieft","rules":[{"name":"r","limits":["10/fortnight"],"response":{"status":200,` +
			`"headers":{"x":"%RUEL%"}}}]}`,
		`{"version":1,"rules":[` + strings.TrimSuffix(strings.Repeat(`{"name":"r"},`, 60), ",") + `]}`,
	} {
		doc, err := policies.ParseJSON([]byte(text))
		require.NoError(t, err)
		_, problems := policies.ReadPushed(doc)
		b := start(t)
		require.Error(t, b.Configure([]byte(text)))
		var want []string
		for i := range problems {
			if i == 50 {
				want = append(want,
					fmt.Sprintf("critical: sluice: policy refused: and %d more problems: sluice validate prints them",
						len(problems)-50))
				break
			}
			require.Zero(t, problems[i].Line)
			want = append(want, "critical: sluice: policy refused: "+problems[i].Error())
		}
		require.Equal(t, want, b.log[:len(want)])
		require.NotContains(t, strings.Join(b.log[len(want):], "\n"), "policy refused")
	}
}
