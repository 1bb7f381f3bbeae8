package rules

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Costs are the compiled costs of a rule. The last one is for all other requests.
type Costs []matchedCost

// matchedCost is a cost with its match, compiled twice: some holds if one spelling of the
// request matches, all only if every spelling does.
type matchedCost struct {
	some, all Match
	cost      cost
}

// cost is a compiled policy.Cost. The announced length of the body is a header, too.
type cost struct {
	policy.Cost

	number             int // of the header or the parameter; see request.Request
	low, high, missing uint32
	perUnit            uint64
}

// CompileCosts compiles the costs of a rule.
func CompileCosts(r *request.Request, p *policy.Rule) Costs {
	var costs Costs
	for i := range p.Costs {
		m := &p.Costs[i].Match
		costs = append(costs, matchedCost{Compile(r, m, false), Compile(r, m, true), compileCost(r, p.Costs[i].Cost)})
	}
	return append(costs, matchedCost{cost: compileCost(r, p.Cost)})
}

// Read returns how many units the request costs, and whether it says a cost that cannot be
// read. If an item of the list matches only some spellings of the request, the items after it
// are asked as well, and the highest cost counts.
func (c Costs) Read(r *Request) (dearest uint32, unreadable bool) {
	for i := range c {
		m, last := &c[i], i == len(c)-1
		if !last && !m.some.Holds(r) {
			continue
		}
		units, bad := m.cost.read(&r.Request)
		dearest, unreadable = max(dearest, units), unreadable || bad
		if last || m.all.Holds(r) {
			break
		}
	}
	return dearest, unreadable
}

func compileCost(r *request.Request, p policy.Cost) cost {
	c := cost{Cost: p, low: p.Min, high: p.Max, missing: p.Default, perUnit: 1}
	switch b := p.RequestBytes; {
	case p.Header != "":
		c.number = r.HeaderNumber(p.Header)
	case p.Query != "":
		c.number = r.ParameterNumber(p.Query)
	case b != nil:
		c.number = r.HeaderNumber("content-length")
		c.low, c.high = b.Min, b.Max
		c.perUnit = uint64(b.PerUnit)
		c.missing = b.Max // its body may be of any length
	}
	return c
}

// read returns the cost of the request, within the rule's bounds. It is the default if the
// request says none, and the maximum if an upstream may read another one than is read here, so
// that no client lowers its cost by a spelling.
func (c *cost) read(r *request.Request) (units uint32, unreadable bool) {
	var (
		text              string
		present, doubtful bool
	)
	switch {
	case c.Query != "":
		text, present, doubtful = r.Parameter(c.number)
	case c.Header != "" || c.RequestBytes != nil:
		text, present = r.JoinedHeader(c.number)
		text, doubtful = oneOf(text)
	default:
		return c.Fixed, false
	}
	switch {
	case present || doubtful:
	case c.RequestBytes != nil && !r.HasBody():
		return c.low, false
	default:
		return c.missing, false
	}
	n, ok := ParseNumber(text)
	if !ok || doubtful {
		return c.high, true
	}
	return max(c.low, uint32(min((n+c.perUnit-1)/c.perUnit, uint64(c.high)))), false
}
