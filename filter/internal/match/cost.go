package match

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Costs are the compiled costs of a rule.
type Costs struct {
	matched []matchedCost
	other   cost
}

// matchedCost is a cost with its match, compiled twice: some holds if one spelling of
// the request does, all only if every one does.
type matchedCost struct {
	some, all Match
	cost      cost
}

// cost is a compiled policy.Cost.
type cost struct {
	policy.Cost
	number int // of the header or the parameter; see request.Request
}

// CompileCosts compiles the costs of a rule.
func CompileCosts(r *request.Request, p *policy.Rule) Costs {
	costs := Costs{other: compileCost(r, p.Cost)}
	for i := range p.Costs {
		m := &p.Costs[i].Match
		costs.matched = append(costs.matched, matchedCost{Compile(r, m, false), Compile(r, m, true), compileCost(r, p.Costs[i].Cost)})
	}
	return costs
}

// Read returns how many units the request takes. Where an item of the list holds in
// some of the request's spellings only, the items after it are asked as well, and the
// dearest counts.
func (c *Costs) Read(r *request.Request) uint32 {
	dearest := uint32(0)
	for i := range c.matched {
		m := &c.matched[i]
		if !m.some.Holds(r) {
			continue
		}
		dearest = max(dearest, m.cost.read(r))
		if m.all.Holds(r) {
			return dearest
		}
	}
	return max(dearest, c.other.read(r))
}

// compileCost gives the cost its number in the request.
func compileCost(r *request.Request, p policy.Cost) cost {
	c := cost{Cost: p}
	switch {
	case p.Header != "":
		c.number = r.HeaderNumber(p.Header)
	case p.Query != "":
		c.number = r.ParameterNumber(p.Query)
	}
	return c
}

// read returns the cost of the request. A header or parameter that is
// missing, is no number or came more than once counts as the default, so that a
// client cannot choose by repeating it; a number is kept between the rule's
// bounds.
func (c *cost) read(r *request.Request) uint32 {
	var (
		text              string
		present, repeated bool
	)
	switch {
	case c.Header != "":
		text, present = r.JoinedHeader(c.number)
	case c.Query != "":
		text, present, repeated = r.Parameter(c.number)
	default:
		return c.Fixed
	}
	n, ok := parseCost(text)
	if !ok || !present || repeated {
		return c.Default
	}
	return max(c.Min, min(n, c.Max))
}

// parseCost reads a decimal integer, holding one too large or below zero at
// the end of the range.
func parseCost(s string) (n uint32, ok bool) {
	negative := len(s) > 1 && s[0] == '-'
	if negative {
		s = s[1:]
	}
	if s == "" {
		return 0, false
	}
	sum := uint64(0)
	for i := range len(s) {
		digit := s[i] - '0'
		if digit > 9 {
			return 0, false
		}
		sum = min(sum*10+uint64(digit), 1<<32-1)
	}
	if negative {
		return 0, true
	}
	return uint32(sum), true
}
