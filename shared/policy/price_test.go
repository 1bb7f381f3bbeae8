package policy_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// priced reads the prices of a rule.
func priced(t *testing.T, prices string) []policy.Price {
	t.Helper()
	p, problems := policy.Read(parse(t, `{"version":1,"rules":[{"name":"r","limits":["1/1h"],`+
		`"settle":{"to":"price","prices":`+prices+`}}]}`))
	require.Empty(t, messages(problems))
	return p.Rules[0].Settle.Prices
}

// costOf is what tokens cost by prices as a policy has them, in fractions without bounds.
func costOf(tokens [4]int64, prices [4]string) *big.Int {
	sum := new(big.Rat)
	for i := range tokens {
		price, ok := new(big.Rat).SetString(prices[i])
		if !ok {
			panic(prices[i])
		}
		sum.Add(sum, price.Mul(price, new(big.Rat).SetInt64(tokens[i])))
	}
	sum.Quo(sum, big.NewRat(1_000_000, 1))
	units, rest := new(big.Int).QuoRem(sum.Num(), sum.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		units.Add(units, big.NewInt(1))
	}
	return units
}

// The sum over random tokens and prices is exact, and rounded up once.
func TestPricesAddUpExactly(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	tokens := func() int64 { return dice.Int64N(1 << (1 + dice.IntN(55))) }
	price := func() string {
		switch whole := strconv.FormatInt(dice.Int64N(1<<(1+dice.IntN(32))), 10); dice.IntN(4) {
		case 0:
			return whole
		case 1:
			return "0." + strconv.Itoa(1 + dice.IntN(999_999))[:1]
		case 2:
			return strconv.FormatInt(dice.Int64N(10_000), 10) + "e-" + strconv.Itoa(dice.IntN(7))
		default:
			return whole + "." + strconv.Itoa(1_000_000 + dice.IntN(1_000_000))[1:]
		}
	}
	most := big.NewInt(math.MaxInt64)
	for range 20_000 {
		n := [4]int64{tokens(), tokens(), tokens(), tokens()}
		of := [4]string{price(), price(), price(), price()}
		rows := priced(t, `[{"model":"*","input":`+of[0]+`,"cached":`+of[1]+`,"cache_write":`+of[2]+`,"output":`+of[3]+`}]`)
		want := costOf(n, of)
		if want.Cmp(most) > 0 {
			want = most
		}
		got := policy.PriceOf(rows, "m", policy.Tokens{Input: n[0], Cached: n[1], CacheWrite: n[2], Output: n[3]})
		require.Equal(t, want.Int64(), got, "%v at %v", n, of)
	}
}

func TestPricesAtTheirBounds(t *testing.T) {
	const large = 1 << 55 // the input is the sum of four counts
	all := policy.Tokens{Input: large, Cached: large, CacheWrite: large, Output: large}
	one := policy.Tokens{Input: 1, Output: 1}
	for _, step := range []struct {
		prices string
		tokens policy.Tokens
		units  int64
	}{
		{`[{"model":"*","input":0,"output":0}]`, all, 0},
		{`[{"model":"*","input":0.000001,"output":0}]`, policy.Tokens{Input: 1}, 1},
		{`[{"model":"*","input":0.000001,"output":0}]`, policy.Tokens{Output: 1}, 0},
		{`[{"model":"*","input":500000,"output":500000}]`, one, 1}, // each half a unit: rounded once
		{`[{"model":"*","input":500000,"output":500000.000001}]`, one, 2},
		{`[{"model":"*","input":1e6,"output":0}]`, policy.Tokens{Input: 7}, 7},
		{`[{"model":"*","input":4294967295,"output":4294967295}]`, all, math.MaxInt64},
		{`[{"model":"*","input":4294967295,"output":0}]`, policy.Tokens{Input: 1_000_000}, math.MaxUint32},
		{`[{"model":"*","input":10,"output":0}]`, policy.Tokens{Input: -5}, 0},
	} {
		require.Equal(t, step.units, policy.PriceOf(priced(t, step.prices), "m", step.tokens), step.prices)
	}
}

// The first row that fits the model counts. Without one, the answer costs the most that it could.
func TestFirstPriceThatFitsTheModel(t *testing.T) {
	rows := priced(t, `[{"model":"small-*","input":1,"output":9},{"model":"*-mini","input":2,"output":2},`+
		`{"model":"~gpt-[45](\\..*)?","input":3,"output":3},{"model":"=a*","input":4,"output":4},`+
		`{"model":"large","input":5,"output":5}]`)
	input := policy.Tokens{Input: 1_000_000}
	output := policy.Tokens{Output: 1_000_000}
	for model, units := range map[string]int64{
		"small-mini": 1, "gpt-5-mini": 2, "gpt-5": 3, "gpt-4.1": 3, "a*": 4, "large": 5,
		"larger": 5, "": 5, "Large": 5,
	} {
		require.Equal(t, units, policy.PriceOf(rows, model, input), model)
	}
	require.EqualValues(t, 9, policy.PriceOf(rows, "", output), "the dearest row is that of this answer")
	rest := priced(t, `[{"model":"a","input":7,"output":1},{"model":"*","input":2,"output":2},`+
		`{"model":"b","input":90,"output":9}]`)
	require.EqualValues(t, 2, policy.PriceOf(rest, "b", input))
	require.EqualValues(t, 7, policy.PriceOf(rest, "", input), "no answer can have the row behind *")
}

func TestDefaultsOfPrices(t *testing.T) {
	for text, want := range map[string]policy.Price{
		`"input":5,"output":6`:            {Input: 5e6, Cached: 5e6, CacheWrite: 5e6, Output: 6e6},
		`"input":5,"cached":0,"output":6`: {Input: 5e6, CacheWrite: 5e6, Output: 6e6},
		`"input":0.075,"cache_write":1.25,"output":1e-6`: {
			Input: 75_000, Cached: 75_000, CacheWrite: 1_250_000, Output: 1,
		},
		`"input":1.500000000,"cached":4294967295,"output":2e3`: {
			Input: 1_500_000, Cached: 4_294_967_295e6, CacheWrite: 1_500_000, Output: 2e9,
		},
	} {
		got := priced(t, `[{"model":"m",`+text+`}]`)[0]
		want.Model = policy.Pattern{Kind: policy.Exact, Text: "m"}
		require.Equal(t, want, got, text)
	}
}
