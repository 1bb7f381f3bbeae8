package match

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Cost is a compiled policy.Cost.
type Cost struct {
	policy.Cost
	number int // of the header or the parameter; see request.Request
}

// CompileCost gives the cost its number in the request.
func CompileCost(r *request.Request, p policy.Cost) Cost {
	c := Cost{Cost: p}
	switch {
	case p.Header != "":
		c.number = r.HeaderNumber(p.Header)
	case p.Query != "":
		c.number = r.ParameterNumber(p.Query)
	}
	return c
}

// Read returns how many units the request takes. A header or parameter that is
// missing, is no number or came more than once counts as the default, so that a
// client cannot choose by repeating it; a number is kept between the rule's
// bounds.
func (c *Cost) Read(r *request.Request) uint32 {
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
