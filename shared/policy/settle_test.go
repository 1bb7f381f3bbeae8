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

func TestAnswerProblems(t *testing.T) {
	const slots = `"algorithm":"concurrency","limits":["10"]`
	for fields, want := range map[string][]string{
		`"limits":["9/1s"],"settle":{"to":"token"}`:                      {"rules[0].settle.to: wrong_value"},
		`"limits":["9/1s"],"settle":{"to":"header"}`:                     {"rules[0].settle.to: wrong_value"},
		`"limits":["9/1s"],"settle":{"to":[]}`:                           {"rules[0].settle.to: wrong_value"},
		`"limits":["9/1s"],"settle":{"to":{}}`:                           {"rules[0].settle.to: settle_places"},
		`"limits":["9/1s"],"settle":{"to":{"header":"a","trailer":"b"}}`: {"rules[0].settle.to: settle_places"},
		`"limits":["9/1s"],"settle":{"to":{"header":":status"}}`:         {"rules[0].settle.to.header: bad_header_name"},
		`"limits":["9/1s"],"settle":{"to":{"query":"a"}}`:                {"rules[0].settle.to.query: unknown_field"},
		`"limits":["9/1s"],"settle":null`:                                {"rules[0].settle: wrong_value"},
		`"limits":["9/1s"],"settle":{"unknown":"estimate"}`:              {"rules[0].settle.unknown: estimate_misplaced"},
		`"limits":["9/1s"],"settle":{"to":"tokens","unknown":1}`:         {"rules[0].settle.unknown: wrong_value"},
		`"limits":["9/1s"],"settle":{"to":"tokens","unknown":"zero"}`:    {"rules[0].settle.unknown: wrong_value"},
		`"limits":["9/1s"],"settle":{"max":0}`:                           {"rules[0].settle.max: wrong_value"},
		`"limits":["9/1s"],"settle":{"when":{"status":[]}}`:              {"rules[0].settle.when.status: empty_value"},
		`"limits":["9/1s"],"settle":{"when":{"status":401}}`:             {"rules[0].settle.when.status: wrong_value"},
		`"limits":["9/1s"],"settle":{"when":{"status":[99,600,"6xx","4x","500-400","+41",4.5,"401-","4xx-5xx",null]}}`: {
			"rules[0].settle.when.status[0]: bad_status", "rules[0].settle.when.status[1]: bad_status", "rules[0].settle.when.status[2]: bad_status",
			"rules[0].settle.when.status[3]: bad_status", "rules[0].settle.when.status[4]: bad_status", "rules[0].settle.when.status[5]: bad_status",
			"rules[0].settle.when.status[6]: bad_status", "rules[0].settle.when.status[7]: bad_status", "rules[0].settle.when.status[8]: bad_status",
			"rules[0].settle.when.status[9]: bad_status",
		},
		`"limits":["9/1s"],"settle":{"when":{"grpc_status":[17,"okay"]}}`: {"rules[0].settle.when.grpc_status[0]: wrong_value", "rules[0].settle.when.grpc_status[1]: wrong_value"},
		`"limits":["9/1s"],"settle":{"when":{"grpc_status":[]}}`:          {"rules[0].settle.when.grpc_status: empty_value"},
		`"limits":["9/1s"],"settle":{"when":{"headers":{"a":"~("}}}`:      {"rules[0].settle.when.headers.a: bad_expression"},
		`"limits":["9/1s"],"settle":{"when":{"no_answer":0}}`:             {"rules[0].settle.when.no_answer: wrong_value"},

		`"limits":["9/1s"],"hold":"10m","max_hold":"1h"`:                     {"rules[0].hold: hold_misplaced", "rules[0].max_hold: hold_misplaced"},
		`"limits":["9/1s"],"linger":"1s"`:                                    {"rules[0].linger: linger_misplaced"},
		`"limits":["9/1s"],"settle":{},"linger":"1s"`:                        {"rules[0].linger: linger_misplaced"},
		`"limits":["9/1s"],"settle":{},"hold":"9999ms"`:                      {"rules[0].hold: hold_range"},
		`"limits":["9/1s"],"settle":{},"hold":"86400001ms"`:                  {"rules[0].hold: hold_range"},
		`"limits":["9/1s"],"settle":{},"hold":600`:                           {"rules[0].hold: wrong_value"},
		`"limits":["9/1s"],"settle":{},"max_hold":"9m59s"`:                   {"rules[0].max_hold: max_hold_range"},
		`"limits":["9/1s"],"settle":{},"max_hold":"367d"`:                    {"rules[0].max_hold: max_hold_range"},
		slots + `,"linger":"1m1ns"`:                                          {"rules[0].linger: linger_range"},
		`"algorithm":"concurency","limits":["10"],"hold":"1m","linger":"1s"`: {"rules[0].algorithm: wrong_value", "rules[0].limits[0]: bad_limit"},
		slots + `,"settle":{}`:                                               {"rules[0].settle: settle_concurrency"},
		slots + `,"count_denied":true`:                                       {"rules[0].count_denied: held_denials"},
		`"limits":["9/1s"],"settle":{},"count_denied":true`:                  {"rules[0].count_denied: held_denials"},
		slots + `,"scope":"cluster"`:                                         {"rules[0].scope: held_cluster"},
		slots + `,"scope":"cluster","lease":"off"`:                           {"rules[0].lease: held_lease", "rules[0].scope: held_cluster"},
		`"limits":["9/1s"],"settle":{},"lease":5,"on_unavailable":"deny"`:    {"rules[0].lease: held_lease", "rules[0].on_unavailable: cluster_only"},
		`"algorithm":"concurrency","limits":[]`:                              {"rules[0].limits: concurrency_alone"},
		`"algorithm":"concurrency","limits":["10","20"]`:                     {"rules[0].limits: concurrency_alone"},
		`"algorithm":"concurrency","limits":["10/1s"]`:                       {"rules[0].limits[0]: bad_slots"},
		`"algorithm":"concurrency","limits":[-1]`:                            {"rules[0].limits[0]: bad_slots"},
		`"algorithm":"concurrency","limits":[1.5]`:                           {"rules[0].limits[0]: bad_slots"},
		`"algorithm":"concurrency","limits":["4294967296"]`:                  {"rules[0].limits[0]: bad_slots"},
		`"algorithm":"concurrency","limits":["1e1"]`:                         {"rules[0].limits[0]: bad_slots"},
		`"algorithm":"concurrency","limits":[null]`:                          {"rules[0].limits[0]: bad_slots"},
		`"algorithm":"concurrency","limits":[{"requests":9,"per":"1s"}]`:     {"rules[0].limits[0].per: slots_field"},
		`"algorithm":"concurrency","limits":[{"requests":9,"burst":1,"jitter":5,"offset":"1s","elastic":true,"algorithm":"fixed_window"}]`: {
			"rules[0].limits[0].algorithm: slots_field", "rules[0].limits[0].burst: slots_field", "rules[0].limits[0].offset: slots_field",
			"rules[0].limits[0].jitter: slots_field", "rules[0].limits[0].elastic: slots_field",
		},
		`"algorithm":"concurrency","limits":[{"name":"7"}]`:              {"rules[0].limits[0].requests: missing_field", "rules[0].limits[0].name: window_name_number"},
		`"limits":[{"requests":9,"per":"1s","algorithm":"concurrency"}]`: {"rules[0].limits[0].algorithm: concurrency_in_limit"},
		`"limits":["10"]`: {"rules[0].limits[0]: bad_limit"},
		`"limits":[10]`:   {"rules[0].limits[0]: wrong_value"},
		slots + `,"key":["host"],"overrides":[{"key":["a"],"limits":["20/1s"]},{"key":["a"],"limits":["20","30"]}]`: {"rules[0].overrides[0].limits[0]: bad_slots", "rules[0].overrides[1].limits[1]: overridden_twice"},

		`"limits":["9/1s"],"cost":{"request_bytes":{"per_unit":0}}`:                 {"rules[0].cost.request_bytes.per_unit: wrong_value"},
		`"limits":["9/1s"],"cost":{"request_bytes":{"min":9,"max":8}}`:              {"rules[0].cost.request_bytes: cost_min_above_max"},
		`"limits":["9/1s"],"cost":{"request_bytes":{},"query":"a"}`:                 {"rules[0].cost: cost_two_places"},
		`"limits":["9/1s"],"cost":{"request_bytes":{},"default":1,"min":1,"max":2}`: {"rules[0].cost.default: cost_bounds_misplaced", "rules[0].cost.min: cost_bounds_misplaced", "rules[0].cost.max: cost_bounds_misplaced"},
		`"limits":["9/1s"],"cost":{"default":1}`:                                    {"rules[0].cost: cost_without_place"},
	} {
		_, problems := policy.Read(parse(t, `{"version":1,"rules":[{"name":"a",`+fields+`}]}`))
		for i := range problems {
			problems[i].Args = nil
		}
		require.Equal(t, want, messages(problems), fields)
	}
}

// A rule with settle has a window less, and rules of one counter hold alike.
func TestHoldsOfCounters(t *testing.T) {
	const per = `"1/1s","1/2s","1/3s","1/4s","1/5s","1/6s","1/7s","1/8s","1/9s","1/10s","1/11s","1/12s","1/13s","1/14s","1/15s"`
	const a, b = `{"name":"a","limits":["9/1s"]`, `,{"name":"b","counter":"a","limits":["8/1s"]`
	const c, d = `{"name":"a","algorithm":"concurrency","limits":["10"]`, `,{"name":"b","counter":"a","algorithm":"concurrency","limits":["9"]`
	for rules, want := range map[string][]string{
		`{"name":"a","settle":{},"limits":[` + per + `]}`:         nil,
		`{"name":"a","settle":{},"limits":[` + per + `,"1/16s"]}`: {"rules[0].limits: settle_windows"},
		a + `,"settle":{}}` + b + `,"settle":{"to":"tokens"}}`:    nil,
		a + `,"settle":{}}` + b + `}`:                             {"rules[1].hold: counter_hold"},
		a + `,"settle":{}}` + b + `,"settle":{},"hold":"1m"}`:     {"rules[1].hold: counter_hold"},
		c + `,"linger":"5s"}` + d + `}`:                           nil,
		c + `}` + d + `,"hold":"1m"}`:                             {"rules[1].hold: counter_hold"},
		c + `}` + b + `,"settle":{}}`:                             {"rules[1].limits: counter_windows"},
	} {
		_, problems := policy.Read(parse(t, `{"version":1,"rules":[`+rules+`]}`))
		require.Equal(t, want, messages(problems), rules)
	}
}
