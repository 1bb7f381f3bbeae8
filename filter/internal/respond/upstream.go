package respond

import (
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/fields"
)

// Reconcile joins our fields of a response with the upstream's fields of the same names, so that
// a client never reads more than both allow. theirs[i] is what the upstream sent under the name of
// ours[i], all lines joined with a comma, empty if it sent none. ours[i] becomes the line to send.
//
// RateLimit and RateLimit-Policy are lists: ours follow theirs. Fields of draft 7 and before
// become items of these lists. The X-RateLimit fields describe the tightest window, ours or
// theirs; X-RateLimit-Limit lists the quotas of both. What cannot be read is dropped: a client
// could not read it either.
func Reconcile(ours []Field, theirs []string, now int64) {
	for i := range ours {
		switch ours[i].Name {
		case "ratelimit":
			ours[i].Value = joined(items(theirs[i], remainingOfDraft7), ours[i].Value)
		case "ratelimit-policy":
			ours[i].Value = joined(items(theirs[i], quotasOfDraft7), ours[i].Value)
		case "x-ratelimit-limit":
			reconcileTightest(ours[i:i+3], theirs[i:i+3], now)
		}
	}
}

// reconcileTightest joins the X-RateLimit fields, which are three in a row: see appendXRateLimit.
func reconcileTightest(ours []Field, theirs []string, now int64) {
	limit := &ours[0].Value
	left, reset := &ours[1].Value, &ours[2].Value
	theirLeft, _, haveLeft := numbers(theirs[1])
	_, theirReset, haveReset := numbers(theirs[2])
	ourLeft, _, _ := numbers(*left)
	_, ourReset, _ := numbers(*reset)
	switch { // their reset is a point in time, so ours has to be one too
	case haveReset && theirReset > sinceEpochMs:
		ourReset = (ourReset + uint64(fields.Seconds(now))) * 1000
	case haveReset && theirReset > sinceEpoch:
		ourReset += uint64(fields.Seconds(now))
	}
	theirQuotas := listed(theirs[0])
	if !haveLeft || ourLeft < theirLeft || ourLeft == theirLeft && ourReset >= theirReset { // ours is the tightest
		*limit = joined(*limit, theirQuotas)
		*reset = strconv.FormatUint(ourReset, 10)
		return
	}
	_, ourQuotas, _ := strings.Cut(*limit, ", ") // our limit does not hold
	*limit = joined(theirQuotas, ourQuotas)
	*left = strconv.FormatUint(theirLeft, 10)
	if !haveReset {
		theirReset = ourReset
	}
	*reset = strconv.FormatUint(theirReset, 10)
}

// A reset that is longer than any window is a point in time, in seconds or milliseconds since the
// epoch. Some services write it so.
const (
	sinceEpoch   = 1_000_000_000
	sinceEpochMs = 100 * sinceEpoch
)

// joined joins two lists, either of which may be empty.
func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ", " + b
}

// items returns a list of RateLimit or RateLimit-Policy. Each item begins with a text in quotes;
// else the list is of an older draft, and is converted.
func items(list string, older func(string) string) string {
	list = strings.Trim(list, " \t")
	if strings.HasPrefix(list, `"`) {
		return list
	}
	return older(list)
}

// remainingOfDraft7 makes an item of "limit=100, remaining=50, reset=5".
func remainingOfDraft7(list string) string {
	remaining, reset := "", ""
	for _, item := range strings.Split(list, ",") {
		name, value, _ := strings.Cut(strings.Trim(item, " \t"), "=")
		least, most, ok := numbers(value)
		switch {
		case ok && name == "remaining":
			remaining = `"upstream";r=` + strconv.FormatUint(least, 10)
		case ok && name == "reset" && most < sinceEpoch:
			reset = ";t=" + strconv.FormatUint(most, 10)
		}
	}
	if remaining == "" {
		return ""
	}
	return remaining + reset
}

// quotasOfDraft7 makes a list of "100;w=60, 1000;w=3600".
func quotasOfDraft7(list string) string {
	return eachQuota(list, func(i int, quota, parameters string) string {
		name := `"upstream`
		if i > 0 {
			name += "-" + strconv.Itoa(i+1)
		}
		one := name + `";q=` + quota
		for _, p := range strings.Split(parameters, ";") {
			if window, isWindow := strings.CutPrefix(strings.Trim(p, " \t"), "w="); isWindow {
				if _, seconds, ok := numbers(window); ok {
					one += ";w=" + strconv.FormatUint(seconds, 10)
				}
			}
		}
		return one
	})
}

// listed returns the quotas of X-RateLimit-Limit.
func listed(list string) string {
	return eachQuota(list, func(_ int, quota, parameters string) string {
		if parameters == "" {
			return quota
		}
		return quota + ";" + parameters
	})
}

// eachQuota converts each quota of a list with its parameters by item, and returns the new list;
// "" if one quota is not a number.
func eachQuota(list string, item func(i int, quota, parameters string) string) (text string) {
	for i, one := range strings.Split(list, ",") {
		quota, parameters, _ := strings.Cut(strings.Trim(one, " \t"), ";")
		least, _, ok := numbers(quota)
		if !ok {
			return ""
		}
		text = joined(text, item(i, strconv.FormatUint(least, 10), parameters))
	}
	return text
}

// numbers returns the smallest of a list of numbers, rounded down, and the largest, rounded up. A
// negative number counts as zero. ok is false if an item is not a number.
func numbers(list string) (smallest, largest uint64, ok bool) {
	for _, item := range strings.Split(list, ",") {
		item = strings.Trim(item, " \t")
		digits, negative := strings.CutPrefix(item, "-")
		whole, fraction, _ := strings.Cut(digits, ".")
		n, err := strconv.ParseUint(whole, 10, 52)
		if err != nil || strings.Trim(fraction, "0123456789") != "" {
			return 0, 0, false
		}
		up := n
		if strings.Trim(fraction, "0") != "" {
			up++
		}
		if negative {
			n, up = 0, 0
		}
		if !ok || n < smallest {
			smallest = n
		}
		largest, ok = max(largest, up), true
	}
	return smallest, largest, ok
}
