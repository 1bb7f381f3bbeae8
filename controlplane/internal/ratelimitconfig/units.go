package ratelimitconfig

import (
	"slices"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// unitOfTime is a unit of a limit. Its windows begin on the clock: at whole multiples of its length
// since 1970 in UTC, as in the service. So a month is 30 days, a year 365, and a week begins on a
// Thursday.
type unitOfTime struct {
	name    string
	number  rlsv3.RateLimitResponse_RateLimit_Unit
	seconds int64
}

var units = []unitOfTime{
	{"second", rlsv3.RateLimitResponse_RateLimit_SECOND, 1},
	{"minute", rlsv3.RateLimitResponse_RateLimit_MINUTE, 60},
	{"hour", rlsv3.RateLimitResponse_RateLimit_HOUR, 60 * 60},
	{"day", rlsv3.RateLimitResponse_RateLimit_DAY, 24 * 60 * 60},
	{"week", rlsv3.RateLimitResponse_RateLimit_WEEK, 7 * 24 * 60 * 60},
	{"month", rlsv3.RateLimitResponse_RateLimit_MONTH, 30 * 24 * 60 * 60},
	{"year", rlsv3.RateLimitResponse_RateLimit_YEAR, 365 * 24 * 60 * 60},
}

// windows is the window of so many requests in the unit.
func (u *unitOfTime) windows(requests uint32) []limit.Window {
	return []limit.Window{{Algorithm: limit.FixedWindow, Limit: requests, PeriodNs: u.seconds * 1_000_000_000}}
}

func unitNamed(name string) *unitOfTime {
	i := slices.IndexFunc(units, func(u unitOfTime) bool { return u.name == name })
	if i < 0 {
		return nil
	}
	return &units[i]
}

// numberOf is the number of the unit with that name, UNKNOWN if there is none.
func numberOf(name string) rlsv3.RateLimitResponse_RateLimit_Unit {
	if u := unitNamed(name); u != nil {
		return u.number
	}
	return rlsv3.RateLimitResponse_RateLimit_UNKNOWN
}
