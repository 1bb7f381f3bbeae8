package policy

import "math"

// costObject is "cost" where it is an object.
var costObject = newObject("cost", []field[Cost]{
	{"header", token, "", func(r *reader, v value, c *Cost) { c.Header = r.headerName(v) }},
	{"query", text, "", func(r *reader, v value, c *Cost) { c.Query = r.shortText(v) }},
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
	{"per_unit", integer(1, math.MaxUint32), "1", func(r *reader, v value, b *ByteCost) { b.PerUnit = uint32(r.integer(v)) }},
	{"min", integer(0, math.MaxUint32), "1", func(r *reader, v value, b *ByteCost) { b.Min = uint32(r.integer(v)) }},
	{"max", integer(1, math.MaxUint32), "1000000", func(r *reader, v value, b *ByteCost) { b.Max = uint32(r.integer(v)) }},
})

// matchedCostObject is one item of "cost" where it is a list.
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
		v.shape = &costs.Any[len(costs.Any)-1]
		readCosts(r, v, rule)
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
		v.shape = &oneCost.Any[0]
		c.Fixed = uint32(r.integer(v))
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
