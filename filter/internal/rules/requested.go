package rules

import (
	"math"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/request"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// requestedLimit is a compiled policy.RequestedLimit.
type requestedLimit struct {
	*policy.RequestedLimit         // nil: requests do not say the limit
	compiled               KeyPart // its Part
}

// compileRequested compiles where requests say the rule's limits: one for each limit, or none if
// they say no limit at all.
func compileRequested(r *request.Request, p *policy.Rule) (list []requestedLimit) {
	for i := range p.Limits {
		from := p.Limits[i].Requested
		if from == nil {
			continue
		}
		if list == nil {
			list = make([]requestedLimit, len(p.Limits))
		}
		list[i] = requestedLimit{from, CompileKey(r, []policy.KeyPart{from.Part})[0]}
	}
	return list
}

// readLimits reads what the request says of each limit.
func (r *Rule) readLimits(to *policy.Subject, req *request.Request) {
	to.Requested = to.Requested[:0]
	for i := range r.limits {
		var one policy.Requested
		if r.limits[i].RequestedLimit != nil {
			one = r.limits[i].read(req)
		}
		to.Requested = append(to.Requested, one)
	}
}

// read returns the limit that the request says. It is the default if the request says two
// limits, or one that is not a whole number.
func (f *requestedLimit) read(r *request.Request) policy.Requested {
	var (
		text            string
		present, others bool
	)
	if f.Part.Kind == policy.KeyHeader {
		text, present = r.JoinedHeader(f.compiled.number)
	} else {
		text, present = f.compiled.read(r)
	}
	if f.Part.Origin() == policy.Sent {
		text, others = oneOf(text)
	}
	n, ok := ParseNumber(text)
	if !present || others || !ok {
		return policy.Requested{Limit: f.Default}
	}
	return f.Bound(uint32(min(n, math.MaxUint32)))
}

// How costs and limits are read in a header.

// oneOf returns the first value of a header, and whether there is another one.
func oneOf(joined string) (first string, others bool) {
	first, rest, more := strings.Cut(joined, ",")
	first = strings.Trim(first, " \t")
	for value := ""; more && !others; {
		value, rest, more = strings.Cut(rest, ",")
		others = strings.Trim(value, " \t") != first
	}
	return first, others
}

// ParseNumber reads a decimal number of digits alone. A larger one than 2⁶⁰ is read as 2⁶⁰.
func ParseNumber(s string) (n uint64, ok bool) {
	for i := range len(s) {
		digit := s[i] - '0'
		if digit > 9 {
			return 0, false
		}
		n = min(n*10+uint64(digit), 1<<60)
	}
	return n, s != ""
}
