package e2e

import (
	"cmp"
	"math/big"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// budgetPrice is what a model's tokens cost whose name begins so: of input, cached, cache_write and
// output, for a million.
type budgetPrice struct {
	model  string
	prices [4]string
}

// budgetPrices are the prices of a policy here.
type budgetPrices []budgetPrice

var proxyPrices = budgetPrices{
	{"gpt-5", [4]string{"312500", "31250.25", "312500", "987654.321"}},
	{"claude-", [4]string{"30000.5", "3000.000001", "37500", "150000"}},
	{"gemini-", [4]string{"125000", "12500.75", "125000", "500000.5"}},
	{"eu.amazon.", [4]string{"80000", "20000.1", "99999.9", "320000"}},
	{"", [4]string{"200000", "100000.5", "250000", "600000"}},
}

const (
	budgetLimit = 10_000
	budgetBound = 1100 // no answer costs more
	bedrockPath = "/model/eu.amazon.nova-lite-v1%3A0/converse"
)

// settle is the rules' field that charges the prices.
func (b budgetPrices) settle() (yaml string) {
	yaml = `    settle:
      to: price
      when: {status: ["2xx"]}
      prices:
`
	for _, p := range b {
		yaml += `        - {model: "` + p.model + `*", input: ` + p.prices[0] + `, cached: ` + p.prices[1] +
			`, cache_write: ` + p.prices[2] + `, output: ` + p.prices[3] + "}\n"
	}
	return yaml
}

// tokensOf are an answer's tokens: input, cached, cache_write and output.
type tokensOf [4]int64

// cost is what a model's answer costs by the first price of its name, and by the dearest one if it
// has no name.
func (b budgetPrices) cost(model string, tokens tokensOf) (units int64) {
	for i := range b {
		one := b[i].cost(tokens)
		if model != "" && strings.HasPrefix(model, b[i].model) {
			return one
		}
		units = max(units, one)
	}
	return units
}

func (p *budgetPrice) cost(tokens tokensOf) int64 {
	const digits = 6 // of a price's fraction
	sum := new(big.Int)
	for i, n := range tokens {
		whole, fraction, _ := strings.Cut(p.prices[i], ".")
		price, _ := new(big.Int).SetString(whole+fraction+strings.Repeat("0", digits-len(fraction)), 10)
		sum.Add(sum, price.Mul(price, big.NewInt(n)))
	}
	sum.Add(sum, big.NewInt(1e12-1))
	return sum.Div(sum, big.NewInt(1e12)).Int64()
}

// budgetPolicy charges prices to two tenants: one whose requests hold what an answer can cost, and
// one whose requests hold 1.
func budgetPolicy() string {
	rule := func(name, tenant, cost string) string {
		return `  - name: ` + name + `
    match: {methods: [POST], headers: {x-user-id: ` + tenant + `}}
    limits: [` + strconv.Itoa(budgetLimit) + `/` + far + `]
    cost: ` + cost + "\n" + proxyPrices.settle()
	}
	return "version: 1\n" + managed + "rules:\n" + rule("bounded", "bounded", strconv.Itoa(budgetBound)) +
		rule("low", "low", "1")
}

// budgetAnswer is an answer with its tokens and what they cost, and the path of its API.
type budgetAnswer struct {
	path, contentType, body string
	tokens                  tokensOf
	cost                    int64
}

// recordedAnswers are all that name their tokens. No answer costs more than bound.
func recordedAnswers(t *testing.T, prices budgetPrices, bound int64) (list []budgetAnswer) {
	for _, a := range buildtest.ModelAnswers(t) {
		if !a.InputKnown || !a.OutputKnown {
			continue
		}
		b := budgetAnswer{path: "/v1", contentType: a.ContentType, body: a.Body}
		model := a.Model
		if a.IsBedrock {
			model, b.path = cmp.Or(model, "eu.amazon."), bedrockPath
		}
		b.tokens = tokensOf{a.Input - a.CacheRead - a.CacheWritten, a.CacheRead, a.CacheWritten, a.Output}
		b.cost = prices.cost(model, b.tokens)
		require.LessOrEqual(t, b.cost, bound, a.Name)
		list = append(list, b)
	}
	return list
}

// chunks writes the answer in pieces of random sizes.
func (b *budgetAnswer) chunks(w http.ResponseWriter, dice *rand.Rand) {
	w.Header().Set("content-type", b.contentType)
	inChunks(w, b.body, dice)
}

func inChunks(w http.ResponseWriter, rest string, dice *rand.Rand) {
	for rest != "" {
		n := min(len(rest), 1+dice.IntN(cmp.Or(dice.IntN(400), 1)))
		_, _ = w.Write([]byte(rest[:n]))
		w.(http.Flusher).Flush()
		rest = rest[n:]
	}
}

// TestBudget: 100 answers at once, of all APIs and divided at random, are charged what they cost, to
// the unit. If requests hold what an answer can cost, the budget is never exceeded.
func TestBudget(t *testing.T) {
	t.Parallel()
	answers := recordedAnswers(t, proxyPrices, budgetBound)
	everyEnvoy(t, func(t *testing.T, d driver) {
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if n, err := strconv.Atoi(r.Header.Get("x-answer")); err == nil {
				seed, _ := strconv.ParseUint(r.Header.Get("x-seed"), 10, 64)
				answers[n].chunks(w, rand.New(rand.NewPCG(seed, 0)))
			}
		}))
		defer upstream.Close()
		p := d.start(t, proxyOptions{policy: budgetPolicy(), upstream: upstream.URL, workers: 4})
		dice := rand.New(rand.NewPCG(1, 2))
		cost := func(tenant string) (charged int64, passed int) {
			picks, statuses := make([]int, 100), make([]int, 100)
			for i := range picks {
				picks[i] = dice.IntN(len(answers))
			}
			seed := dice.Uint64()
			atOnce(len(picks), func(i int) {
				res, _, err := p.try(answers[picks[i]].path, ":method", http.MethodPost, ":body", "400", "x-user-id", tenant,
					"x-answer", strconv.Itoa(picks[i]), "x-seed", strconv.FormatUint(seed+uint64(i), 10))
				if err == nil {
					statuses[i] = res.StatusCode
				}
			})
			for i, status := range statuses {
				if status == http.StatusOK {
					charged += answers[picks[i]].cost
					passed++
				} else {
					require.Equal(t, denied, status)
				}
			}
			return charged, passed
		}

		charged, all := int64(0), 0
		for {
			more, passed := cost("bounded")
			charged, all = charged+more, all+passed
			require.Equal(t, charged, used(t, p, "bounded"))
			require.LessOrEqual(t, charged, int64(budgetLimit))
			if passed == 0 {
				break
			}
		}
		require.Greater(t, charged, int64(budgetLimit-budgetBound))
		t.Logf("%s: %d answers took %d of %d units", t.Name(), all, charged, budgetLimit)

		charged, _ = cost("low")
		require.Equal(t, charged, used(t, p, "low"))
	})
}
