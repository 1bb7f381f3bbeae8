package respond

import (
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/fields"
)

// Reconcile joins our fields of a response with those of the same names that the
// upstream sent, so that a client that reads any of them learns of no more than
// both grant. theirs[i] is what came under the name of ours[i], all its lines joined
// with a comma, empty if there was none; ours[i] becomes the one line to send.
//
// RateLimit and RateLimit-Policy are lists: ours follow theirs. The X-RateLimit fields
// describe one window, the tightest, ours or theirs; X-RateLimit-Limit lists the quotas of
// both. What cannot be read is dropped: a client could not read it either, least of all
// beside ours.
func Reconcile(ours []Field, theirs []string, now int64) {
	limit, remaining, reset := -1, -1, -1
	for i := range ours {
		switch ours[i].Name {
		case "x-ratelimit-limit":
			limit = i
		case "x-ratelimit-remaining":
			remaining = i
		case "x-ratelimit-reset":
			reset = i
		case "ratelimit", "ratelimit-policy":
			if list := strings.Trim(theirs[i], " \t"); strings.HasPrefix(list, `"`) { // as each item since draft 8
				ours[i].Value = joined(list, ours[i].Value)
			}
		}
	}
	if limit < 0 || remaining < 0 || reset < 0 {
		return
	}
	left, _, known := numbers(theirs[remaining])
	_, ends, dated := numbers(theirs[reset])
	ourLeft, _, _ := numbers(ours[remaining].Value)
	_, ourEnds, _ := numbers(ours[reset].Value)
	switch { // a moment, not a wait: ours must not read as one long past
	case dated && ends > sinceEpochMs:
		ourEnds = (ourEnds + uint64(fields.Seconds(now))) * 1000
	case dated && ends > sinceEpoch:
		ourEnds += uint64(fields.Seconds(now))
	}
	quotas := listed(theirs[limit])
	if !known || ourLeft < left || ourLeft == left && ourEnds >= ends {
		ours[limit].Value = joined(ours[limit].Value, quotas)
		ours[reset].Value = strconv.FormatUint(ourEnds, 10)
		return
	}
	_, ourQuotas, _ := strings.Cut(ours[limit].Value, ", ")
	ours[limit].Value = joined(quotas, ourQuotas)
	ours[remaining].Value = strconv.FormatUint(left, 10)
	if !dated {
		ends = ourEnds
	}
	ours[reset].Value = strconv.FormatUint(ends, 10)
}

// A larger reset than any window is long is a moment since the epoch, which some
// services write, in seconds or in milliseconds.
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

// listed returns the quotas of X-RateLimit-Limit, nothing where one is no number.
func listed(list string) (text string) {
	for _, one := range strings.Split(list, ",") {
		quota, parameters, more := strings.Cut(strings.Trim(one, " \t"), ";")
		least, _, ok := numbers(quota)
		if !ok {
			return ""
		}
		if quota = strconv.FormatUint(least, 10); more {
			quota += ";" + parameters
		}
		text = joined(text, quota)
	}
	return text
}

// numbers returns the smallest of a list of numbers, rounded down, and the largest,
// rounded up, if it is one and not empty. What is below zero is zero.
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
