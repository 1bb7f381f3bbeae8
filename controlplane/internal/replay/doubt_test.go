package replay

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What only one of two policies denies is told, and what one denies is the same beside another. A
// policy in shadow mode denies nobody; whom it would deny is told beside it.
func TestAgainst(t *testing.T) {
	const enforced = `{version: 1, rules: [{name: b, key: [client_ip], limits: ["7/1s"]}]}`
	lines := traffic(2, 2000)
	o := options(t, `{version: 1, rules: [{name: a, key: [{header: x-user-id}], limits: ["2/1s"]}]}`, lines)
	o.Against = &File{"other.yaml", []byte(enforced)}
	want, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Positive(t, want.Alone)
	require.Positive(t, want.Against.Alone)
	require.Equal(t, want.Denied-want.Alone, want.Against.Denied-want.Against.Alone, "what both deny")
	require.Equal(t, want.Against.Alone, want.Against.Rules[0].Alone.Requests)
	require.Equal(t, want.Against.Rules[0].Alone.Clients, int64(len(want.Against.Rules[0].Alone.Top)))

	o.Against.Text = []byte(strings.Replace(enforced, "name: b", "name: b, mode: shadow", 1))
	shadow, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Zero(t, shadow.Against.Denied)
	require.Equal(t, want.Against.Denied, shadow.Against.Shadow)
	require.Zero(t, shadow.Against.Alone)
	require.Equal(t, want.Against.Alone, shadow.Against.ShadowAlone, "what the first policy allows")
	rule, enforcedRule := shadow.Against.Rules[0], want.Against.Rules[0]
	require.Equal(t, enforcedRule.Alone, rule.ShadowAlone)
	require.Equal(t, want.Denied, shadow.Alone, "a shadow policy denies none of them")
	require.Zero(t, shadow.ShadowAlone)

	// Nobody is new to a policy that is the other one in shadow mode.
	o.Policy, o.Against = *o.Against, &File{"shadow.yaml", o.Against.Text}
	o.Policy.Text = []byte(enforced)
	same, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Zero(t, same.Against.ShadowAlone)
	require.Equal(t, same.Denied, same.Alone)
	require.Equal(t, want.Against.Denied, same.Denied, "the same beside another policy")
}
