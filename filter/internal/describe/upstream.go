package describe

import (
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
)

// Sent is a field of an upstream's response: all its lines, joined with a comma.
type Sent struct {
	Present bool
	Value   string
}

// Reconcile joins our fields of a response with those of the same names that the
// upstream sent, so that a client that reads any of them learns of no more than
// both grant. theirs[i] came under the name of fields[i]; fields[i] becomes the
// text to send. keep[i] says that theirs stays beside it, on a line of its own;
// otherwise it is removed.
//
// RateLimit and RateLimit-Policy are lists: ours follow theirs in one line. The
// X-RateLimit fields describe one window, the tightest, ours or theirs;
// X-RateLimit-Limit lists the quotas of both. A value that is no whole number
// cannot be compared: it stays, with ours beside it.
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
		ourEnds += uint64(engine.Seconds(now))
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

// sinceEpoch is more seconds than any window is long: a larger reset is seconds
// since the epoch, which some services write.
const sinceEpoch = 1_000_000_000

// listed joins two lists, either of which may be empty.
func listed(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ", " + b
}

// numbers returns the smallest and the largest of a list of whole numbers, if it
// is one and not empty.
func numbers(list string) (smallest, largest uint64, ok bool) {
	for _, item := range strings.Split(list, ",") {
		n, err := strconv.ParseUint(strings.Trim(item, " \t"), 10, 63)
		if err != nil {
			return 0, 0, false
		}
		if !ok || n < smallest {
			smallest = n
		}
		largest, ok = max(largest, n), true
	}
	return smallest, largest, ok
}
