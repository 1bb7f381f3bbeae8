package wording

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// durationMeant is the duration that s most likely stands for, with the words
// and abbreviations that other programs take; "" where there is none.
func durationMeant(s string) string {
	s = strings.ToLower(strings.ReplaceAll(s, " ", ""))
	count, word := cutDigits(s)
	if count == "" {
		count = "1"
	}
	for _, m := range []struct{ words, unit string }{
		{"|s|sec|secs|second|seconds|", "s"}, {"|m|min|mins|minute|minutes|", "m"}, {"|h|hr|hrs|hour|hours|", "h"},
		{"|d|day|days|", "d"}, {"|w|wk|week|weeks|", "w"}, {"|ms|msec|millis|millisecond|milliseconds|", "ms"},
	} {
		if word != "" && strings.Contains(m.words, "|"+word+"|") {
			return count + m.unit
		}
	}
	const maxCount = 1000 // beyond it no window is as long
	n, err := strconv.Atoi(count)
	switch {
	case err != nil || n == 0 || n > maxCount:
	case word == "mo", word == "mon", word == "month", word == "months":
		return strconv.Itoa(30*n) + "d"
	case word == "y", word == "yr", word == "year", word == "years":
		return strconv.Itoa(365*n) + "d"
	case word == "" && s != "":
		return count + "s"
	}
	return ""
}

// limitMeant is the limit that s most likely stands for, as "10 req/s" and
// "10 requests per minute" do; "" where there is none.
func limitMeant(s string) string {
	count, rest := cutDigits(strings.ToLower(strings.TrimSpace(s)))
	if count == "" {
		return ""
	}
	rest = strings.TrimSpace(rest)
	for _, noun := range []string{"requests", "request", "reqs", "req", "hits", "hit", "calls", "r"} {
		if after, found := strings.CutPrefix(rest, noun); found {
			rest = strings.TrimSpace(after)
			break
		}
	}
	for _, by := range []string{"/", "per", "in", "every", ":", "@"} {
		after, found := strings.CutPrefix(rest, by)
		if !found {
			continue
		}
		after = strings.TrimSpace(after)
		if period := strings.TrimSuffix(after, "s"); slices.Contains(periods, period) {
			return count + "/" + period
		}
		if ns, err := policy.ParseDuration(after); err == nil && ns > 0 {
			return count + "/" + after
		}
		if d := durationMeant(after); d != "" {
			return count + "/" + d
		}
	}
	return ""
}

// periods are the words for periods of one length.
var periods = []string{"second", "minute", "hour", "day", "week"}

const limitHint = `write one such as "10/minute", "3 per 15 minutes" or "100/1h30m"`

func badLimit(code policy.Code, s string) string {
	switch code {
	case policy.BadLimitRequests:
		unsigned, negative := strings.CutPrefix(strings.TrimSpace(s), "-")
		count, _ := cutDigits(unsigned)
		if negative {
			count = "-" + count
		}
		return "requests must be a whole number from 0 to 4294967295, not " + policy.Clip(count)
	case policy.ManyLimits:
		return "invalid limit " + quote(s) + ": write each limit as an item of its own"
	default: // BadLimit, BadLimitPeriod
	}
	what := "invalid limit "
	if code == policy.BadLimitPeriod {
		what = "invalid period in limit "
	}
	if near := limitMeant(s); near != "" {
		return what + quote(s) + ": did you mean " + quote(near) + "?"
	}
	return what + quote(s) + ": " + limitHint
}

func badDuration(s string) string {
	if near := durationMeant(s); near != "" {
		return "invalid duration " + quote(s) + ": did you mean " + quote(near) + "?"
	}
	return "invalid duration " + quote(s) + `: write one such as "10s", "1h30m" or "7d", with the units ns, us, ms, s, m, h, d, w`
}

func cutDigits(s string) (digits, rest string) {
	rest = strings.TrimLeft(s, "0123456789")
	return s[:len(s)-len(rest)], rest
}
