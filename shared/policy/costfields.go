package policy

import "math"

// costFields is "cost" where it is an object.
var costFields = []field[Cost]{
	{
		name: "header", shape: shape{form: formText},
		doc:  "Request header that holds the cost; this or query.",
		read: func(r *reader, v value, c *Cost) { c.Header = r.headerNameAt(v) },
	},
	{
		name: "query", shape: shape{form: formText},
		doc:  "Query parameter that holds the cost; this or header.",
		read: func(r *reader, v value, c *Cost) { c.Query = r.shortText(v) },
	},
	{
		name: "default", shape: integer(0, math.MaxUint32), def: "1",
		doc: "Cost where the header or parameter is missing, repeated or no whole number.",
		read: func(r *reader, v value, c *Cost) {
			n := r.integer(v)
			c.Default = uint32(n)
		},
	},
	{
		name: "min", shape: integer(0, math.MaxUint32), def: "1",
		doc: "Smallest cost; with 0 a client can switch its limit off.",
		read: func(r *reader, v value, c *Cost) {
			n := r.integer(v)
			c.Min = uint32(n)
		},
	},
	{
		name: "max", shape: integer(1, math.MaxUint32), def: "1000000",
		doc: "Largest cost.",
		read: func(r *reader, v value, c *Cost) {
			n := r.integer(v)
			c.Max = uint32(n)
		},
	},
}

func readCost(r *reader, v value, rule *Rule) {
	switch v.node.Kind {
	case Number:
		v.shape = integer(1, math.MaxUint32)
		n := r.integer(v)
		rule.Cost.Fixed = uint32(n)
		return
	case Object:
	default:
		r.mismatch(v)
		return
	}
	before := len(r.errs) + r.dropped
	c := &rule.Cost
	readObject(r, v, costFields, c)
	if len(r.errs)+r.dropped > before {
		return
	}
	switch {
	case !has(v, "header") && !has(v, "query"):
		r.fail(v, "must name where the cost is: write {header: x-cost} or {query: cost}")
	case has(v, "header") && has(v, "query"):
		r.fail(v, "has a header and a query parameter: keep one")
	}
	if c.Min > c.Max {
		r.fail(v, "min is "+itoa(int64(c.Min))+" and max "+itoa(int64(c.Max))+": min must not be above max")
	} else if c.Default < c.Min || c.Default > c.Max {
		r.fail(v, "default is "+itoa(int64(c.Default))+": it must be from min to max, "+itoa(int64(c.Min))+" to "+itoa(int64(c.Max)))
	}
}
