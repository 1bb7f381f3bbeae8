package settle

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/filter/internal/usage"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// held is what each request of these tests held.
const held = 100

type fields map[string]string

// answer is one to a request of 4000 bytes.
type answer struct {
	status   uint16
	grpc     int // its gRPC status, and 1 more: 0 = it never came
	headers  fields
	more     [2]string // a header that comes once more
	trailers fields
	bytes    int64
	ns       int64
	path     string
	usage    *usage.Usage // nil: nobody read it
}

func (a *answer) Status() uint16       { return a.status }
func (a *answer) RequestBytes() int64  { return 4000 }
func (a *answer) ResponseBytes() int64 { return a.bytes }
func (a *answer) DurationNs() int64    { return a.ns }

func (a *answer) Path() string { return a.path }

func (a *answer) GRPCStatus() int { return a.grpc - 1 }

func (a *answer) Header(name string) (string, bool) {
	value, present := a.headers[name]
	return value, present
}

func (a *answer) HeaderValues(name string) (values []string) {
	if value, present := a.headers[name]; present {
		values = append(values, value)
	}
	if a.more[0] == name {
		values = append(values, a.more[1])
	}
	return values
}

func (a *answer) Trailer(name string) (string, bool) {
	value, present := a.trailers[name]
	return value, present
}

func (a *answer) Usage() (usage.Usage, bool) {
	if a.usage == nil {
		return usage.Usage{}, false
	}
	return *a.usage, true
}

var (
	none     = answer{}
	slow     = answer{ns: 1_400_000_001}
	ok       = answer{status: 200, bytes: 900, ns: 1_000_001}
	failed   = answer{status: 503, bytes: 900}
	costs7   = answer{status: 200, headers: fields{"x-cost": "7", "x-kind": "paid"}, trailers: fields{"x-cost": "8"}}
	costsBad = answer{status: 200, headers: fields{"x-cost": "7.5"}, trailers: fields{"x-cost": "-8"}}
	costsAll = answer{status: 200, headers: fields{"x-cost": "18446744073709551616"}}
	cookies  = answer{
		status: 200, headers: fields{"set-cookie": "a=1; expires=Thu, 01 Jan 2026 00:00:00 GMT"},
		more: [2]string{"set-cookie", "failed=1"},
	}
	grpcOK = answer{status: 200, grpc: 1}
	grpc7  = answer{status: 200, grpc: 8}
)

func read(u usage.Usage) answer { return answer{status: 200, bytes: 900, usage: &u} }

var (
	told = read(usage.Usage{
		Input: 30, Output: 40, InputKnown: true, OutputKnown: true, TextEvents: 2000, TextBytes: 90000, Bytes: 100000,
	})
	cut     = read(usage.Usage{Input: 500, InputKnown: true, Output: 2, TextEvents: 3, TextBytes: 16, Bytes: 900})
	unsaid  = read(usage.Usage{TextEvents: 300, TextBytes: 1000, Bytes: 9000})
	spoken  = read(usage.Usage{TextEvents: 3, TextBytes: 1200, Bytes: 9000})
	partial = read(usage.Usage{Input: 1500, Output: 700, TextEvents: 3, TextBytes: 12, Bytes: 9000})
	encoded = read(usage.Usage{Failure: usage.Encoded, Bytes: 4800, TextEvents: 9000, TextBytes: 90000})
	broken  = read(usage.Usage{Failure: usage.Malformed, Bytes: 4800, Input: 1500, Output: 1300})
	empty   = read(usage.Usage{Failure: usage.Foreign})
	whole   = read(usage.Usage{Total: 815, TextEvents: 3, TextBytes: 4000, Bytes: 9000})
	begun   = read(usage.Usage{Bytes: 9000})
	huge    = read(usage.Usage{Input: 1 << 53, Output: 1 << 53, InputKnown: true, OutputKnown: true})
)

// costs are a rule's settle, an answer, and what a request costs that held 100.
var costs = []struct {
	settle string
	answer answer
	units  uint32
	by     metrics.By
}{
	{`{}`, ok, held, metrics.ByCost},
	{`{}`, failed, held, metrics.ByCost},
	{`{}`, none, held, metrics.ByCost},
	{`{"max":60}`, ok, 60, metrics.ByCost},
	{`{"when":{"no_answer":false}}`, none, 0, metrics.ByNone},

	// Of answers that were sent, when.status decides; no answer meets any.
	{`{"when":{"status":[401,"4xx","500-502"]}}`, ok, 0, metrics.ByNone},
	{`{"when":{"status":[401,"4xx","500-503"]}}`, failed, held, metrics.ByCost},
	{`{"when":{"status":[401]}}`, none, held, metrics.ByCost},
	{`{"when":{"status":[401],"no_answer":false}}`, none, 0, metrics.ByNone},
	{`{"when":{"grpc_status":[7]}}`, grpc7, held, metrics.ByCost},
	{`{"when":{"grpc_status":[7]}}`, grpcOK, 0, metrics.ByNone},
	{`{"when":{"grpc_status":[7]}}`, ok, held, metrics.ByCost}, // it never came
	{`{"when":{"headers":{"x-kind":"paid"}}}`, costs7, held, metrics.ByCost},
	{`{"when":{"headers":{"x-kind":"paid"}}}`, ok, 0, metrics.ByNone},
	{`{"when":{"headers":{"x-kind":"paid"}}}`, none, held, metrics.ByCost},
	{`{"when":{"headers":{"x-kind":"p*","x-cost":"8"}}}`, costs7, 0, metrics.ByNone},
	// One value that fits is enough; none is the whole of all.
	{`{"when":{"headers":{"set-cookie":"failed=1"}}}`, cookies, held, metrics.ByCost},
	{`{"when":{"headers":{"set-cookie":"failed*"}}}`, cookies, held, metrics.ByCost},
	{`{"when":{"headers":{"set-cookie":"*GMT"}}}`, cookies, held, metrics.ByCost},
	{`{"when":{"headers":{"set-cookie":"~a=1.*"}}}`, cookies, held, metrics.ByCost},
	{`{"when":{"headers":{"set-cookie":"*"}}}`, cookies, held, metrics.ByCost},
	{`{"when":{"headers":{"set-cookie":"!"}}}`, cookies, 0, metrics.ByNone},
	{`{"when":{"headers":{"set-cookie":"!"}}}`, ok, held, metrics.ByCost},
	{`{"when":{"headers":{"set-cookie":" 01 Jan*"}}}`, cookies, 0, metrics.ByNone},
	{`{"when":{"headers":{"set-cookie":"~a=1.*failed=1"}}}`, cookies, 0, metrics.ByNone},
	{`{"when":{"status":["2xx"],"grpc_status":[7],"headers":{"x-kind":"paid"}}}`, grpc7, 0, metrics.ByNone},

	{`{"to":"request_bytes"}`, ok, 4000, metrics.ByAnswer},
	{`{"to":"response_bytes"}`, ok, 900, metrics.ByAnswer},
	{`{"to":"response_bytes","max":899}`, ok, 899, metrics.ByAnswer},
	{`{"to":"milliseconds"}`, ok, 2, metrics.ByAnswer},
	// Who leaves early pays what the proxy knows, if that is more than was held.
	{`{"to":"milliseconds"}`, none, held, metrics.ByCost},
	{`{"to":"milliseconds","unknown":0}`, slow, 1401, metrics.ByAnswer},
	{`{"to":"request_bytes"}`, none, 4000, metrics.ByAnswer},
	{`{"to":"request_bytes","max":3000}`, none, 3000, metrics.ByAnswer},
	{`{"to":"response_bytes"}`, none, held, metrics.ByCost},
	{`{"to":{"header":"x-cost"}}`, slow, held, metrics.ByCost},
	{`{"to":{"header":"x-cost"}}`, costs7, 7, metrics.ByAnswer},
	{`{"to":{"trailer":"x-cost"}}`, costs7, 8, metrics.ByAnswer},
	{`{"to":{"header":"x-cost"}}`, ok, held, metrics.ByCost},
	{`{"to":{"header":"x-cost"}}`, costsBad, held, metrics.ByCost},
	{`{"to":{"trailer":"x-cost"}}`, costsBad, held, metrics.ByCost},
	{`{"to":{"trailer":"x-cost"}}`, ok, held, metrics.ByCost},
	{`{"to":{"header":"x-cost"}}`, costsAll, math.MaxUint32, metrics.ByAnswer},
	{`{"to":{"header":"x-cost"},"unknown":0}`, ok, 0, metrics.ByNone},
	{`{"to":{"header":"x-cost"},"unknown":0}`, none, held, metrics.ByCost},

	{`{"to":"tokens"}`, told, 70, metrics.ByAnswer}, // though it held more
	{`{"to":"input_tokens"}`, told, 30, metrics.ByAnswer},
	{`{"to":"output_tokens"}`, told, 40, metrics.ByAnswer},
	{`{"to":"tokens"}`, whole, 815, metrics.ByAnswer}, // whatever its parts are
	{`{"to":"tokens","unknown":0}`, whole, 815, metrics.ByAnswer},
	{`{"to":"input_tokens"}`, whole, 1000, metrics.ByEstimate},
	{`{"to":"output_tokens"}`, whole, 1000, metrics.ByEstimate},
	{`{"to":"tokens"}`, huge, math.MaxUint32, metrics.ByAnswer},
	{`{"to":"tokens","max":20000}`, huge, 20_000, metrics.ByAnswer},
	{`{"to":"tokens","when":{"status":["4xx"]}}`, told, 0, metrics.ByNone},
	{`{"to":"tokens"}`, cut, 504, metrics.ByEstimate}, // 16 bytes of text
	{`{"to":"input_tokens"}`, cut, 500, metrics.ByAnswer},
	{`{"to":"output_tokens"}`, cut, held, metrics.ByEstimate},
	{`{"to":"tokens","unknown":"cost"}`, cut, held, metrics.ByCost},
	{`{"to":"tokens","unknown":0}`, cut, 0, metrics.ByNone},
	{`{"to":"tokens"}`, unsaid, 1300, metrics.ByEstimate},
	{`{"to":"tokens"}`, spoken, 1300, metrics.ByEstimate},
	{`{"to":"output_tokens"}`, unsaid, 300, metrics.ByEstimate},
	{`{"to":"tokens"}`, begun, 1000, metrics.ByEstimate}, // no text yet
	{`{"to":"tokens"}`, partial, 2200, metrics.ByEstimate},
	{`{"to":"tokens"}`, encoded, 2200, metrics.ByEstimate},
	{`{"to":"output_tokens"}`, encoded, 1200, metrics.ByEstimate},
	{`{"to":"tokens"}`, broken, 2800, metrics.ByEstimate}, // what it said is no less than a floor
	{`{"to":"tokens"}`, ok, 1225, metrics.ByEstimate},     // nobody read it
	{`{"to":"output_tokens"}`, empty, held, metrics.ByEstimate},
	{`{"to":"tokens","max":1000}`, unsaid, 1000, metrics.ByEstimate},
	{`{"to":"tokens"}`, none, 1000, metrics.ByEstimate},
	{`{"to":"output_tokens"}`, none, held, metrics.ByEstimate},
	{`{"to":"tokens","when":{"status":["2xx"]}}`, none, 1000, metrics.ByEstimate},
	{`{"to":"tokens","when":{"no_answer":false}}`, none, 0, metrics.ByNone},
	// What unknown says is of answers that should have said it.
	{`{"to":"tokens","unknown":"cost"}`, none, 1000, metrics.ByEstimate},
	{`{"to":"tokens","unknown":0}`, none, 1000, metrics.ByEstimate},
}

func TestCostOfAnAnswer(t *testing.T) {
	for _, step := range costs {
		p := hosttest.Policy(t, `{"name":"r","limits":["10000/1h"],"cost":100,"settle":`+step.settle+`}`)
		units, by, _ := Cost(&p.Rules[0], held, &step.answer)
		require.Equal(t, step.units, units, "%s, %+v", step.settle, step.answer)
		require.Equal(t, step.by, by, "%s, %+v", step.settle, step.answer)
	}
}

// TestLeavingEarlyIsNotCheaper: by any rule, who leaves pays no less than was held, no less the
// later that is, and no more than max.
func TestLeavingEarlyIsNotCheaper(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		pick := func(of ...string) string { return of[dice.IntN(len(of))] }
		p := hosttest.Policy(t, `{"name":"r","limits":["10000/1h"],"cost":100,"settle":{"to":`+
			pick(`"cost"`, `"tokens"`, `"input_tokens"`, `"output_tokens"`, `"request_bytes"`, `"response_bytes"`,
				`"milliseconds"`, `{"header":"c"}`, `{"trailer":"c"}`, `"price","prices":`+rows)+
			`,"unknown":`+pick(`0`, `"cost"`)+pick(``, `,"max":60`, `,"max":4294967295`)+
			`,"when":`+pick(`{}`, `{"status":[401]}`, `{"grpc_status":[7],"headers":{"x":"y"}}`)+`}}`)
		s := p.Rules[0].Settle
		before := min(held, s.Max)
		left := gone{}
		for range 20 {
			units, by, _ := Cost(&p.Rules[0], held, &left)
			require.NotEqual(t, metrics.ByNone, by, "%+v", s)
			require.GreaterOrEqual(t, units, before, "%+v", s)
			require.LessOrEqual(t, units, s.Max, "%+v", s)
			known := map[policy.Settled]int64{
				policy.SettleRequestBytes: left.came, policy.SettleMilliseconds: left.ns / 1e6,
				policy.SettleTokens: left.came / 4, policy.SettleInputTokens: left.came / 4,
				policy.SettlePrice: 20 * (left.came / 4),
			}[s.To]
			require.GreaterOrEqual(t, int64(units), min(known, int64(s.Max)), "%+v", s)
			before = units
			left.came += dice.Int64N(1 << (1 + dice.IntN(34)))
			left.ns += dice.Int64N(1 << (1 + dice.IntN(50)))
		}
	}
}

// gone is a client that has left before there was an answer.
type gone struct {
	answer
	came int64 // of its body
	ns   int64
}

func (g *gone) RequestBytes() int64 { return g.came }
func (g *gone) DurationNs() int64   { return g.ns }

// Slots are free again, whatever the answer.
func TestCostOfSlots(t *testing.T) {
	p := hosttest.Policy(t, `{"name":"r","algorithm":"concurrency","limits":["10"]}`)
	units, by, _ := Cost(&p.Rules[0], 1, &none)
	require.Zero(t, units)
	require.Equal(t, metrics.ByNone, by)
}
