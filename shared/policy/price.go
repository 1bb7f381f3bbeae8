package policy

import (
	"math"
	"math/bits"
)

// Price is what the tokens of some models cost: units for a million tokens of a class, in
// millionths of a unit. So a price has six decimal places.
type Price struct {
	Model                             Pattern // of the model's name
	Input, Cached, CacheWrite, Output uint64
}

const (
	// MaxPrices is how many prices a rule may have.
	MaxPrices = 100

	// pricePlaces is how many decimal places a price may have.
	pricePlaces = 6
	// tokensPerUnit is how many tokens a price of 1 in Price buys for a unit.
	tokensPerUnit = 1_000_000 * 1_000_000
)

// Tokens are how many tokens an answer took, by their classes. Each token is in one class.
type Tokens struct {
	Input      int64 // without those of the next two classes
	Cached     int64 // of the input: read from a cache
	CacheWrite int64 // of the input: written to a cache
	Output     int64
}

// Cost is what the tokens cost, in units. All classes are added up exactly in 128 bits, and the sum
// is rounded up once. A sum that does not fit is the largest number.
func (p *Price) Cost(t Tokens) int64 {
	var high, low uint64
	add := func(tokens int64, price uint64) {
		h, l := bits.Mul64(uint64(max(tokens, 0)), price)
		var carry uint64
		low, carry = bits.Add64(low, l, 0)
		high += h + carry // fits: a price has 52 bits, and a count 63
	}
	add(t.Input, p.Input)
	add(t.Cached, p.Cached)
	add(t.CacheWrite, p.CacheWrite)
	add(t.Output, p.Output)
	if high >= tokensPerUnit {
		return math.MaxInt64
	}
	units, rest := bits.Div64(high, low, tokensPerUnit)
	if rest > 0 {
		units++
	}
	return int64(min(units, math.MaxInt64)) // fits
}

// PriceOf returns what tokens of a model cost by the first price that fits the model. If none does,
// or the model is not known and "", it is the most by any price that could fit.
func PriceOf(prices []Price, model string, t Tokens) (units int64) {
	for i := range prices {
		p := &prices[i]
		if fits, _ := p.Model.Holds(model, true, false); fits && model != "" {
			return p.Cost(t)
		}
	}
	for i := range prices {
		units = max(units, prices[i].Cost(t))
		if prices[i].Model.Kind == Any {
			break // it hides those behind it
		}
	}
	return units
}

// ThousandTokens returns the most that a thousand tokens of one class cost.
func ThousandTokens(prices []Price) (units int64) {
	const n = 1000
	for _, t := range []Tokens{{Input: n}, {Cached: n}, {CacheWrite: n}, {Output: n}} {
		units = max(units, PriceOf(prices, "", t))
	}
	return units
}

var priceShape = Shape{Form: FormPrice, Min: 0, Max: math.MaxUint32}

// priceObject is an item of "prices".
var priceObject = newObject("price", []field[Price]{
	{"model", required(textOf("model")), "", readModel},
	{"input", required(priceShape), "", func(r *reader, v value, p *Price) { p.Input = r.price(v) }},
	{"cached", priceShape, "", func(r *reader, v value, p *Price) { p.Cached = r.price(v) }},
	{"cache_write", priceShape, "", func(r *reader, v value, p *Price) { p.CacheWrite = r.price(v) }},
	{"output", required(priceShape), "", func(r *reader, v value, p *Price) { p.Output = r.price(v) }},
})

func readPrices(r *reader, v value, s *Settle) {
	r.eachItem(v, func(at value) {
		var p Price
		readObject(r, at, priceObject, &p)
		if !at.has("cached") {
			p.Cached = p.Input
		}
		if !at.has("cache_write") {
			p.CacheWrite = p.Input
		}
		s.Prices = append(s.Prices, p)
	})
}

func readModel(r *reader, v value, p *Price) {
	if text, ok := r.text(v); ok {
		p.Model, _ = r.pattern(v, text, parseKeyPattern, BadPattern)
	}
}

// price reads a number of units with up to six decimal places, as millionths.
func (r *reader) price(v value) uint64 {
	n, ok := scaledOf(v.Text, pricePlaces)
	if v.Kind != Number || !ok || n < 0 || n > v.shape.Max*1_000_000 {
		r.fail(v, WrongValue)
		return 0
	}
	return uint64(n)
}
