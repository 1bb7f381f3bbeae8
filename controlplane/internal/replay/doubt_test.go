package replay

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
)

// Where requests cost differing units, use is not counted; where they cost many, it
// ends at the largest number.
func TestUseOfCosts(t *testing.T) {
	lines := traffic(1, 10)
	o := options(t, `{version: 1, rules: [{name: a, cost: [{match: {methods: [GET]}, cost: 5}], limits: ["10/1h"]}]}`, lines)
	report, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Empty(t, report.Rules[0].Use)
	o = options(t, `{version: 1, rules: [{name: a, cost: 3000000000, limits: ["4000000000/1h"]}]}`, lines)
	report, err = Run(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, uint32(math.MaxUint32), report.Rules[0].Use[0].Max)
}

// Of a log without requests there are no figures, nor of one against the order of time.
func TestLogsWithoutFigures(t *testing.T) {
	o := options(t, rules, traffic(1, 50))
	o.Log.Names = []string{write(t, "tcp.log", `{"start_time":"2026-01-31T12:00:00Z","method":null,"path":null,"response_code":0,`+
		`"downstream_remote_address":"192.0.2.1:80","x_user_id":null}`+"\n")}
	_, err := Run(t.Context(), o)
	require.ErrorIs(t, err, ErrNoRequests)

	lines := traffic(1, 1000)
	for i := range lines {
		lines[i].atMs = noonMs - int64(i)*1000
	}
	_, err = Run(t.Context(), options(t, rules, lines))
	var disorder *accesslog.Error
	require.ErrorAs(t, err, &disorder)
	require.Contains(t, disorder.Hint, "--sort")
}

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

// A request that rules deny both for real and in shadow is denied, and no more.
func TestShadowBesideEnforced(t *testing.T) {
	lines := make([]logged, 10)
	for i := range lines {
		lines[i] = logged{noonMs + int64(i), "u", "/", "192.0.2.1", 200}
	}
	o := options(t, `{version: 1, rules: [{name: a, limits: ["5/1h"]}, {name: b, mode: shadow, limits: ["3/1h"]}]}`, lines)
	report, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.EqualValues(t, 5, report.Denied)
	require.EqualValues(t, 2, report.Shadow)
}
