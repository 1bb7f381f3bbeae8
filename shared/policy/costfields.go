package policy

import (
	"math"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// costObject is "cost" if it is an object.
var costObject = newObject("cost", []field[Cost]{
	{"header", tokenShape, "", func(r *reader, v value, c *Cost) { c.Header = r.headerName(v) }},
	{"query", textShape, "", func(r *reader, v value, c *Cost) { c.Query = r.shortText(v) }},
	{"request_bytes", objectOf("request_bytes"), "", func(r *reader, v value, c *Cost) {
		c.RequestBytes = &ByteCost{}
		if b := c.RequestBytes; readObject(r, v, byteCostObject, b) && b.Min > b.Max {
			r.fail(v, CostMinAboveMax, itoa(int64(b.Min)), itoa(int64(b.Max)))
		}
	}},
	{"default", integer(0, math.MaxUint32), "1", func(r *reader, v value, c *Cost) { c.Default = uint32(r.integer(v)) }},
	{"min", integer(0, math.MaxUint32), "1", func(r *reader, v value, c *Cost) { c.Min = uint32(r.integer(v)) }},
	{"max", integer(1, math.MaxUint32), "1000000", func(r *reader, v value, c *Cost) { c.Max = uint32(r.integer(v)) }},
})

// byteCostObject is "request_bytes" of a cost.
var byteCostObject = newObject("request_bytes", []field[ByteCost]{
	{"per_unit", integer(1, math.MaxUint32), "1", func(r *reader, v value, b *ByteCost) {
		b.PerUnit = uint32(r.integer(v))
	}},
	{"min", integer(0, math.MaxUint32), "1", func(r *reader, v value, b *ByteCost) { b.Min = uint32(r.integer(v)) }},
	{"max", integer(1, math.MaxUint32), "1000000", func(r *reader, v value, b *ByteCost) { b.Max = uint32(r.integer(v)) }},
})

// matchedCostObject is one item of "cost" if it is a list.
var matchedCostObject = newObject("matched_cost", []field[MatchedCost]{
	{"match", objectOf("match"), "", func(r *reader, v value, c *MatchedCost) { readObject(r, v, matchObject, &c.Match) }},
	{"cost", required(oneCost), "", func(r *reader, v value, c *MatchedCost) { readOneCost(r, v, &c.Cost) }},
})

// oneCost is what a request costs, costs what each does.
var (
	oneCost = choice("one_cost", integer(1, math.MaxUint32), objectOf("cost"))
	costs   = choice("cost", append(oneCost.Any, listOf(objectOf("matched_cost"), 1, MaxCosts))...)
)

func readCost(r *reader, v value, rule *Rule) {
	if v.Kind == List {
		readCosts(r, v.as(FormList), rule)
	} else {
		readOneCost(r, v, &rule.Cost)
	}
}

// readCosts reads a list whose last item may be the cost of all other requests.
func readCosts(r *reader, v value, rule *Rule) {
	rule.Cost.Fixed = 1
	if !r.items(v) {
		return
	}
	for i := range v.Items {
		var c MatchedCost
		at := v.item(i)
		switch {
		case !readSound(r, at, matchedCostObject, &c):
		case !c.Match.IsEmpty():
			rule.Costs = append(rule.Costs, c)
		case i < len(v.Items)-1:
			r.fail(at, CostForAllEarly)
		default:
			rule.Cost = c.Cost
		}
	}
}

func readOneCost(r *reader, v value, c *Cost) {
	if v.Kind == Number {
		c.Fixed = uint32(r.integer(v.as(FormInteger)))
		return
	}
	if !readSound(r, v, costObject, c) {
		return
	}
	switch v.hasOf("header", "query", "request_bytes") {
	case 0:
		r.fail(v, CostWithoutPlace)
	case 1:
	default:
		r.fail(v, CostTwoPlaces)
	}
	if c.RequestBytes != nil {
		r.refuse(v, CostBoundsMisplaced, "default", "min", "max")
		*c = Cost{RequestBytes: c.RequestBytes}
		return
	}
	if c.Min > c.Max {
		r.fail(v, CostMinAboveMax, itoa(int64(c.Min)), itoa(int64(c.Max)))
	} else if c.Default < c.Min || c.Default > c.Max {
		r.fail(v, CostBeyondBounds, itoa(int64(c.Default)), itoa(int64(c.Min)), itoa(int64(c.Max)))
	}
}

const (
	// MinHoldNs is the shortest hold, as of the quota service.
	MinHoldNs = limit.MinHoldNs
	// MaxHoldNs is the longest.
	MaxHoldNs = limit.MaxHoldNs
	// MaxLingerNs is how long a slot may stay after the client's reset.
	MaxLingerNs int64 = 60_000_000_000
	// MaxSettledWindows is how many windows a rule with settle may have.
	MaxSettledWindows = MaxWindows - 1

	minStatus, maxStatus = 100, 599
)

var settleObject = newObject("settle", []field[Settle]{
	{"to", settleTo, string(SettleCost), readSettleTo},
	{"prices", listOf(objectOf("price"), 1, MaxPrices), "", readPrices},
	{"when", objectOf("answer"), "", func(r *reader, v value, s *Settle) { readObject(r, v, answerObject, &s.When) }},
	{"unknown", choice("unknown", word(UnknownEstimate, UnknownCost, UnknownNothing), integer(0, 0)), "", readUnknown},
	{"max", integer(1, math.MaxUint32), "", func(r *reader, v value, s *Settle) { s.Max = uint32(r.integer(v)) }},
	{"identity", boolShape, "", func(r *reader, v value, s *Settle) { s.Identity = r.boolean(v) }},
})

// settleToObject is "to" if it is an object.
var settleToObject = oneOf(newObject("settle_to", []field[Settle]{
	{"header", tokenShape, "", func(r *reader, v value, s *Settle) { s.To, s.Field = SettleHeader, r.headerName(v) }},
	{"trailer", tokenShape, "", func(r *reader, v value, s *Settle) { s.To, s.Field = SettleTrailer, r.headerName(v) }},
}))

// answerObject is "when".
var answerObject = newObject("answer", []field[Answer]{
	{"status", listOf(choice("status"), 1, 0), "", readStatuses},
	{"grpc_status", listOf(choice("answer_grpc_status"), 1, 0), "", readAnswerGRPCStatuses},
	{"headers", Shape{Form: FormPatterns}, "", func(r *reader, v value, a *Answer) { a.Headers = r.headerMatches(v) }},
	{"no_answer", boolShape, "true", func(r *reader, v value, a *Answer) { a.NoAnswer = r.boolean(v) }},
})

var settleTo = choice("settle_to", word(SettleCost, SettleTokens, SettleInputTokens, SettleOutputTokens,
	SettlePrice, SettleRequestBytes, SettleResponseBytes, SettleMilliseconds), objectOf("settle_to"))

func readSettle(r *reader, v value, rule *Rule) {
	s := &Settle{When: Answer{NoAnswer: true}, Max: math.MaxUint32}
	rule.Settle = s
	if !readObject(r, v, settleObject, s) {
		return
	}
	switch {
	case s.To == SettlePrice && !v.has("prices"):
		r.fail(v.field("to"), PriceWithoutPrices)
	case s.To != "" && s.To != SettlePrice:
		r.refuse(v, PricesMisplaced, "prices")
	}
	switch {
	case v.has("unknown"):
		if s.Unknown == UnknownEstimate && s.To != "" && !s.To.Tokens() {
			r.fail(v.field("unknown"), EstimateMisplaced)
		}
	case s.To.Tokens():
		s.Unknown = UnknownEstimate
	default:
		s.Unknown = UnknownCost
	}
	if !v.has("identity") {
		s.Identity = s.To.Tokens()
	}
}

func readSettleTo(r *reader, v value, s *Settle) {
	switch v.Kind {
	case Object:
		if readSound(r, v, settleToObject, s) && len(v.Fields) != 1 {
			r.fail(v, SettlePlaces)
		}
	case String:
		s.To = Settled(r.word(v.as(FormWord)))
	default:
		r.fail(v, WrongValue)
	}
}

func readUnknown(r *reader, v value, s *Settle) {
	n, isNumber := v.Integer()
	switch u := Unknown(v.Text); {
	case isNumber && n == 0:
		s.Unknown = UnknownNothing
	case v.Kind == String && (u == UnknownEstimate || u == UnknownCost || u == UnknownNothing):
		s.Unknown = u
	default:
		r.fail(v, WrongValue)
	}
}

func readStatuses(r *reader, v value, a *Answer) {
	r.eachItem(v, func(at value) {
		s, ok := parseStatus(at.Node)
		if !ok {
			r.fail(at, BadStatus)
		}
		a.Status = append(a.Status, s)
	})
}

// parseStatus reads 401, "401", "4xx" or "400-499".
func parseStatus(n *Node) (StatusRange, bool) {
	if n.Kind == Number {
		status, ok := n.Integer()
		return StatusRange{uint16(status), uint16(status)}, ok && status >= minStatus && status <= maxStatus
	}
	low, high, isRange := strings.Cut(n.Text, "-")
	if class, ok := strings.CutSuffix(low, "xx"); ok && !isRange && len(class) == 1 {
		low = class + "00"
		high = class + "99"
		isRange = true
	}
	if !isRange {
		high = low
	}
	from, okFrom := cutStatus(low)
	to, okTo := cutStatus(high)
	return StatusRange{from, to}, n.Kind == String && okFrom && okTo && from <= to
}

func cutStatus(s string) (uint16, bool) {
	digits, rest := cutDigits(s)
	n := decimal(digits)
	return uint16(n), len(digits) == 3 && rest == "" && n >= minStatus && n <= maxStatus
}

func readAnswerGRPCStatuses(r *reader, v value, a *Answer) {
	r.eachItem(v, func(at value) {
		if number, ok := r.grpcStatus(at); ok {
			a.GRPCStatus = append(a.GRPCStatus, number)
		}
	})
}

// fitsHold checks what only rules that hold have, and gives them what depends on other
// fields of theirs.
func (r *reader) fitsHold(v value, rule *Rule) {
	isConcurrency := r.rule.algorithm == limit.Concurrency
	isKnown := r.rule.algorithm != 0
	if !isConcurrency {
		rule.LingerNs = 0
		if isKnown {
			r.refuse(v, LingerMisplaced, "linger")
		}
	}
	if rule.Settle == nil && !isConcurrency {
		if isKnown {
			r.refuse(v, HoldMisplaced, "hold", "max_hold")
		}
		rule.HoldNs, rule.MaxHoldNs = 0, 0
		return
	}
	if rule.MaxHoldNs > 0 && (rule.MaxHoldNs < rule.HoldNs || rule.MaxHoldNs > limit.MaxPeriodNs) {
		r.fail(v.field("max_hold"), MaxHoldRange, itoa(rule.MaxHoldNs), itoa(rule.HoldNs))
	}
	if isConcurrency {
		rule.holdSlots()
	}
	if rule.Settle == nil {
		return
	}
	if isConcurrency {
		r.fail(v.field("settle"), SettleConcurrency)
	}
	if len(rule.Limits) > MaxSettledWindows {
		r.fail(v.field("limits"), SettleWindows)
	}
}
