package policy_test

import (
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// What waits for the answer is read in every notation, with its defaults.
func TestReadAnswers(t *testing.T) {
	data, err := os.ReadFile("testdata/answers.json")
	require.NoError(t, err)
	p, problems := policy.Read(parse(t, string(data)))
	require.Empty(t, messages(problems))
	wellFormed(t, p)
	ten := 10 * minute
	anyAnswer := policy.Answer{NoAnswer: true}
	slots := func(n uint32, name string, hold int64) policy.Limit {
		return policy.Limit{Name: name, Window: limit.Window{Algorithm: limit.Concurrency, Limit: n, PeriodNs: hold}}
	}
	type held struct {
		settle                *policy.Settle
		hold, maxHold, linger int64
		slots                 []policy.Limit
	}
	want := map[string]held{
		"tokens": {settle: &policy.Settle{
			To: policy.SettleTokens, Unknown: policy.UnknownEstimate, Max: 500_000, Identity: true, When: policy.Answer{
				Status: []policy.StatusRange{{200, 299}, {401, 401}, {403, 403}, {500, 599}}, GRPCStatus: []uint8{0, 8},
				Headers: []policy.HeaderMatch{{Name: "x-cache", Value: policy.Pattern{Kind: policy.Absent}}},
			},
		}, hold: day, maxHold: 366 * day},
		"failed-logins": {settle: &policy.Settle{To: policy.SettleCost, Unknown: policy.UnknownCost, Max: 5, When: policy.Answer{
			Status: []policy.StatusRange{{401, 401}, {403, 403}}, NoAnswer: true,
		}}, hold: ten},
		"header":    {settle: &policy.Settle{To: policy.SettleHeader, Field: "x-cost", When: anyAnswer, Unknown: policy.UnknownNothing, Max: 1, Identity: true}, hold: 10 * second, maxHold: 10 * second},
		"trailer":   {settle: &policy.Settle{To: policy.SettleTrailer, Field: "x-cost", When: anyAnswer, Unknown: policy.UnknownNothing, Max: math.MaxUint32}, hold: ten},
		"output":    {settle: &policy.Settle{To: policy.SettleOutputTokens, When: anyAnswer, Unknown: policy.UnknownCost, Max: 1}, hold: ten},
		"in-flight": {hold: ten, linger: second, slots: []policy.Limit{slots(10, "", ten)}},
		"upstream":  {hold: ten, slots: []policy.Limit{slots(10, "", ten)}},
		"named":     {hold: 30 * second, maxHold: hour, linger: minute, slots: []policy.Limit{slots(math.MaxUint32, "slots", 30*second)}},
	}
	require.Len(t, p.Rules, len(want))
	for i := range p.Rules {
		r := &p.Rules[i]
		got := held{settle: r.Settle, hold: r.HoldNs, maxHold: r.MaxHoldNs, linger: r.LingerNs}
		if r.Concurrency() {
			got.slots = r.Limits
		}
		require.Equal(t, want[r.Name], got, r.Name)
		require.True(t, r.Holds(), r.Name)
	}
	require.Equal(t, policy.Cost{RequestBytes: &policy.ByteCost{PerUnit: 4, Min: 200, Max: 8000}}, p.Rules[0].Cost)
	require.Equal(t, policy.Cost{RequestBytes: &policy.ByteCost{PerUnit: 1, Min: 1, Max: 1_000_000}}, p.Rules[1].Costs[0].Cost)
	overrides := p.Rules[5].Overrides
	require.Equal(t, []policy.Limit{slots(20, "", ten)}, overrides[0].Limits)
	require.Equal(t, []policy.Limit{slots(0, "", ten)}, overrides[1].Limits)
}

// A rule that holds nothing has none of it.
func TestHoldsNothing(t *testing.T) {
	r := valid(t, "d", `{"name":"a","limits":["9/1s"]}`).Rules[0]
	require.False(t, r.Holds())
	require.False(t, r.Concurrency())
	require.Zero(t, r.HoldNs+r.MaxHoldNs+r.LingerNs)
}
