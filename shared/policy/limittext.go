package policy

import (
	"errors"
	"math"
	"strings"
)

// period is a word for a length of time; a loose one is not always as long on
// a calendar.
type period struct {
	name  string
	ns    uint64
	loose bool
}

// periods are the words of Python limits, and week. A month and a year are as
// long there as here: 30 and 360 days.
var periods = []period{
	{"second", 1_000_000_000, false},
	{"minute", 60_000_000_000, false},
	{"hour", 3_600_000_000_000, false},
	{"day", 86_400_000_000_000, false},
	{"week", 7 * 86_400_000_000_000, false},
	{"month", 30 * 86_400_000_000_000, true},
	{"year", 360 * 86_400_000_000_000, true},
}

const limitTextHint = `write one such as "10/minute", "3 per 15 minutes" or "100/1h30m"`

// parseLimit reads a limit as text: REQUESTS, "/" or "per", and a period. The
// period is a word, perhaps with a count before it, or a duration. The word is
// returned where its length is not what a calendar says.
func parseLimit(s string) (requests uint32, periodNs int64, loose string, err error) {
	text := strings.TrimSpace(s)
	if negative, found := strings.CutPrefix(text, "-"); found {
		if count, _ := cutDigits(negative); count != "" {
			return 0, 0, "", requestsFault("-" + count)
		}
	}
	count, rest := cutDigits(text)
	rest = strings.TrimSpace(rest)
	if after, found := strings.CutPrefix(rest, "/"); found {
		rest = after
	} else if len(rest) >= 3 && strings.EqualFold(rest[:3], "per") {
		rest = rest[3:]
	} else {
		count = ""
	}
	if count != "" && strings.ContainsAny(rest, ",;|/") {
		return 0, 0, "", errors.New("invalid limit " + quote(s) + ": write each limit as an item of its own")
	}
	if count == "" {
		return 0, 0, "", limitFault("invalid limit ", s)
	}
	n := decimal(count)
	if n > math.MaxUint32 {
		return 0, 0, "", requestsFault(count)
	}
	rest = strings.TrimSpace(rest)
	times, word := cutDigits(rest)
	if p, known := periodWord(strings.TrimSpace(word)); known {
		k := uint64(1)
		if times != "" {
			k = decimal(times)
		}
		if p.loose {
			loose = p.name
		}
		return uint32(n), int64(min(mulSaturating(k, p.ns), math.MaxInt64)), loose, nil
	}
	ns, err := ParseDuration(rest)
	if err != nil {
		return 0, 0, "", limitFault("invalid period in limit ", s)
	}
	return uint32(n), ns, "", nil
}

// limitFault says what is wrong with a limit, and what is meant if that is plain.
func limitFault(what, s string) error {
	if near := limitMeant(s); near != "" {
		return errors.New(what + quote(s) + ": did you mean " + quote(near) + "?")
	}
	return errors.New(what + quote(s) + ": " + limitTextHint)
}

// periodWord finds a period by its name in any case, in singular or plural.
func periodWord(s string) (period, bool) {
	for _, p := range periods {
		if strings.EqualFold(s, p.name) || strings.EqualFold(s, p.name+"s") {
			return p, true
		}
	}
	return period{}, false
}

func requestsFault(text string) error {
	return errors.New("requests must be a whole number from 0 to " + itoa(math.MaxUint32) + ", not " + clip(text))
}
