package settle

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/filter/internal/usage"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// rows are prices of some models and of all others, in units for a token and not for a million: 1e6.
const rows = `[{"model":"small-*","input":10e6,"cached":1e6,"cache_write":12e6,"output":100e6},` +
	`{"model":"*:0","input":3e6,"output":3e6},{"model":"*","input":20e6,"cached":2e6,"output":50e6}]`

// said returns a usage of 1000 tokens of input with its caches, and 7 of output.
func said(model string) usage.Usage {
	return usage.Usage{
		Input: 1000, InputKnown: true, CacheRead: 600, CacheWritten: 100, Output: 7, OutputKnown: true, Model: model,
		TextEvents: 3, TextBytes: 4000, Bytes: 9000,
	}
}

// bedrock is an answer of Bedrock's API with that usage.
func bedrock(model string) answer {
	u := said(model)
	u.IsBedrock = true
	return read(u)
}

func (a answer) at(path string) answer {
	a.path = path
	return a
}

// prices are answers to requests of 4000 bytes that held 100 units, and what they cost.
var prices = []struct {
	name, settle string
	answer       answer
	units        uint32
	by           metrics.By
}{
	{"each class has its price", ``, read(said("small-1")), 3000 + 600 + 1200 + 700, metrics.ByAnswer},
	{"cache_write is as dear as input", ``, read(said("large")), 6000 + 1200 + 2000 + 350, metrics.ByAnswer},
	{"a model that is not said", ``, read(said("")), 6000 + 1200 + 2000 + 350, metrics.ByAnswer},
	{"max", `,"max":99`, read(said("small-1")), 99, metrics.ByAnswer},
	{"when", `,"when":{"status":["4xx"]}`, read(said("small-1")), 0, metrics.ByNone},
	{"the path of Bedrock", ``, bedrock("").at("/model/small-1/converse"), 5500, metrics.ByAnswer},
	{"streams of Bedrock", ``, bedrock("").at("/model/small-1/converse-stream?x=/a/b"), 5500, metrics.ByAnswer},
	{"a model that names itself on Bedrock", ``, bedrock("small-1").at("/model/large/invoke"), 5500, metrics.ByAnswer},
	{"a path before Bedrock's", ``, bedrock("").at("/aws/model/small-1/invoke-with-response-stream"), 5500,
		metrics.ByAnswer},
	{"escapes in Bedrock's path", ``, bedrock("").at("/model/eu.small-1%3A0/invoke"), 3021, metrics.ByAnswer},
	{"paths of others", ``, bedrock("").at("/models/small-1/invoke"), 9550, metrics.ByAnswer},
	{"operations of others", ``, bedrock("").at("/model/small-1/generate"), 9550, metrics.ByAnswer},
	// A client writes the path: it does not choose the price of what another API answers.
	{"another API, Bedrock's path", ``, read(said("large")).at("/v1/chat/model/small-1/invoke"), 9550, metrics.ByAnswer},
	{"the same, without a name", ``, read(said("")).at("/v1/chat/model/small-1/invoke"), 9550, metrics.ByAnswer},
	{"the same, unread", ``, ok.at("/v1/chat/model/small-1/invoke"), 10_000 + 100*225, metrics.ByEstimate},
	{"a path of Bedrock without a model", ``, read(said("small-1")).at("/model//invoke"), 5500, metrics.ByAnswer},
	{"short paths", ``, read(said("small-1")).at("invoke"), 5500, metrics.ByAnswer},

	{"the input alone is known", ``, read(usage.Usage{
		Input: 1000, InputKnown: true, CacheRead: 600, Output: 2, TextBytes: 40, TextEvents: 1, Model: "small-1",
	}), 4000 + 600 + 1000, metrics.ByEstimate},
	{"nothing is known but the model", ``, read(usage.Usage{TextBytes: 40, Model: "small-1"}), 10_000 + 1000,
		metrics.ByEstimate},
	{"nothing is known", ``, unsaid, 10_000 + 100*300, metrics.ByEstimate}, // by the first row: its output is dearer
	{"nobody read it", ``, ok, 10_000 + 100*225, metrics.ByEstimate},
	{"the answer never came", ``, none, 20_000, metrics.ByEstimate},
	{"the answer never came, Bedrock", ``, none.at("/model/small-1/invoke"), 10_000, metrics.ByEstimate},
	{"the answer never came, cost", `,"unknown":"cost"`, none, 20_000, metrics.ByEstimate},
	{"unknown is cost", `,"unknown":"cost"`, unsaid, held, metrics.ByCost},
	{"unknown is 0", `,"unknown":0`, unsaid, 0, metrics.ByNone},
	{"a broken answer", ``, broken, 1500*10 + 1300*100, metrics.ByEstimate},
	// Of a total the request's part is input, and output has at least the answer's text.
	{"a total", ``, read(usage.Usage{Total: 1815, TextBytes: 4, Model: "small-1"}), 10_000 + 81_500, metrics.ByEstimate},
	{"a total, unknown is 0", `,"unknown":0`, read(usage.Usage{Total: 1815, TextBytes: 4, Model: "small-1"}),
		10_000 + 81_500, metrics.ByEstimate},
	{"a total, unknown is cost", `,"unknown":"cost"`, read(usage.Usage{Total: 1815, TextBytes: 4, Model: "small-1"}),
		10_000 + 81_500, metrics.ByEstimate},
	{"a total with much text", ``, read(usage.Usage{Total: 1815, TextBytes: 6000, Model: "small-1"}), 3150 + 150_000,
		metrics.ByEstimate},
	{"a total below the text", ``, read(usage.Usage{Total: 10, TextBytes: 6000, Model: "small-1"}), 1000,
		metrics.ByEstimate},
	{"an estimate below what was held", ``, read(usage.Usage{Total: 2, Model: "small-1"}), held, metrics.ByEstimate},
}

func TestPriceOfAnAnswer(t *testing.T) {
	for _, step := range prices {
		p := hosttest.Policy(t, `{"name":"r","limits":["10000/1h"],"cost":100,"settle":{"to":"price","prices":`+
			rows+step.settle+`}}`)
		units, by, _ := Cost(&p.Rules[0], held, &step.answer)
		require.Equal(t, int(step.units), int(units), step.name)
		require.Equal(t, step.by, by, step.name)
	}
}

// The recorded answer of each API costs, to the unit, what a fraction without bounds says.
func TestRecordedAnswersCostWhatTheirClassesSay(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	known := 0
	for _, a := range buildtest.ModelAnswers(t) {
		if !a.InputKnown || !a.OutputKnown {
			continue
		}
		known++
		var s usage.Scanner
		s.Reset(a.ContentType, "")
		s.ReadModel()
		s.Write([]byte(a.Body))
		x := read(s.End())
		for range 50 {
			var millionths [4]int64 // of input, cached, cache_write, output
			text := [4]string{}
			for i := range millionths {
				millionths[i] = dice.Int64N(1 << (1 + dice.IntN(45)))
				text[i] = fmt.Sprintf("%d.%06d", millionths[i]/1e6, millionths[i]%1e6)
			}
			model := a.Model
			if model == "" {
				model = "*"
			}
			p := hosttest.Policy(t, fmt.Sprintf(`{"name":"r","limits":["10000/1h"],"settle":{"to":"price","prices":[`+
				`{"model":"none","input":0,"output":0},{"model":%q,"input":%s,"cached":%s,"cache_write":%s,"output":%s},`+
				`{"model":"*","input":0,"output":0}]}}`, model, text[0], text[1], text[2], text[3]))
			units, by, tokens := Cost(&p.Rules[0], held, &x)
			require.Equal(t, metrics.ByAnswer, by, a.Name)
			counts := [4]int64{a.Input - a.CacheRead - a.CacheWritten, a.CacheRead, a.CacheWritten, a.Output}
			require.Equal(t, policy.Tokens{
				Input: counts[0], Cached: counts[1], CacheWrite: counts[2], Output: counts[3],
			}, tokens, a.Name)
			sum := new(big.Int)
			for i := range counts {
				sum.Add(sum, new(big.Int).Mul(big.NewInt(counts[i]), big.NewInt(millionths[i])))
			}
			sum.Add(sum, big.NewInt(1e12-1)).Div(sum, big.NewInt(1e12))
			require.Equal(t, min(sum.Int64(), math.MaxUint32), int64(units), "%s: %v at %v", a.Name, counts, text)
		}
	}
	require.Greater(t, known, 40)
}
