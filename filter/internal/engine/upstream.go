package engine

import (
	"strconv"
	"strings"
)

// Sent is what an upstream's response says in a field: all its lines, joined
// with a comma.
type Sent struct {
	Present bool
	Value   string
}

// Reconcile joins the fields of a response with those of the same name that
// its upstream sent, so that whichever a client reads tells it no more than
// either source grants. theirs[i] is what came under the name of fields[i],
// which becomes the text to send; keep[i] says whether theirs stays beside it, on
// a line of its own, rather than making way.
//
// RateLimit and RateLimit-Policy are lists: ours follow theirs in one line. The
// X-RateLimit fields tell of one window, the one with least remaining, ours or
// theirs; X-RateLimit-Limit lists the quotas of both. What is no whole number
// cannot be compared and stays, with ours beside it.
func Reconcile(fields []Field, theirs []Sent, keep []bool, now int64) {
	limit, remaining, reset := -1, -1, -1
	for i := range fields {
		keep[i] = false
		switch fields[i].Name {
		case "x-ratelimit-limit":
			limit = i
		case "x-ratelimit-remaining":
			remaining = i
		case "x-ratelimit-reset":
			reset = i
		default:
			fields[i].Value = listed(theirs[i].Value, fields[i].Value)
		}
	}
	if limit < 0 || remaining < 0 || reset < 0 {
		return
	}
	left, _, known := numbers(theirs[remaining].Value)
	_, ends, dated := numbers(theirs[reset].Value)
	if theirs[remaining].Present && !known || theirs[reset].Present && !dated {
		keep[limit], keep[remaining], keep[reset] = true, true, true
		return
	}
	ourLeft, _, _ := numbers(fields[remaining].Value)
	_, ourEnds, _ := numbers(fields[reset].Value)
	if dated && ends > sinceEpoch { // a moment, not a wait: ours must not read as one long past
		ourEnds += uint64(max(0, ceilDiv(now, second)))
		fields[reset].Value = strconv.FormatUint(ourEnds, 10)
	}
	if !known || ourLeft < left || ourLeft == left && ourEnds >= ends {
		fields[limit].Value = listed(fields[limit].Value, theirs[limit].Value)
		return
	}
	_, quotas, _ := strings.Cut(fields[limit].Value, ", ")
	fields[limit].Value = listed(theirs[limit].Value, quotas)
	fields[remaining].Value = strconv.FormatUint(left, 10)
	if dated {
		fields[reset].Value = strconv.FormatUint(ends, 10)
	}
}

// sinceEpoch is more seconds than any window is long: a reset beyond it is a
// time on the clock, as some services write it.
const sinceEpoch = 1_000_000_000

// listed joins two lists, either of which may be empty.
func listed(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ", " + b
}

// numbers gives the smallest and the largest of a list of whole numbers; they
// are not known for none and for anything else.
func numbers(list string) (least, most uint64, known bool) {
	for _, item := range strings.Split(list, ",") {
		n, err := strconv.ParseUint(strings.Trim(item, " \t"), 10, 63)
		if err != nil {
			return 0, 0, false
		}
		if !known || n < least {
			least = n
		}
		most, known = max(most, n), true
	}
	return least, most, known
}
