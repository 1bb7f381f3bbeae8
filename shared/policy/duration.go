package policy

import (
	"errors"
	"math"
	"math/bits"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// units are Go's and two more, longest first. A day is 24 hours and a week 7
// days, on the clock that knows no daylight saving time.
var units = []struct {
	name string
	ns   uint64
}{
	{"w", 7 * 24 * 3_600_000_000_000},
	{"d", 24 * 3_600_000_000_000},
	{"h", 3_600_000_000_000},
	{"m", 60_000_000_000},
	{"s", 1_000_000_000},
	{"ms", 1_000_000},
	{"us", 1_000},
	{"µs", 1_000}, // U+00B5, micro sign
	{"μs", 1_000}, // U+03BC, Greek letter mu
	{"ns", 1},
}

// The errors of ParseDuration.
var (
	ErrBadDuration  = errors.New("not a duration")
	ErrLongDuration = errors.New("duration too long")
)

// ParseDuration reads a duration in Go's notation plus d and w, such as 10s,
// 1h30m or 7d, in nanoseconds. Durations here have no sign.
func ParseDuration(s string) (int64, error) {
	if s == "0" {
		return 0, nil
	}
	var total uint64
	for rest := s; rest != "" || s == ""; {
		n, after, ok := cutTerm(rest)
		if !ok {
			return 0, ErrBadDuration
		}
		total = addSaturating(total, n)
		if total > math.MaxInt64 {
			return 0, ErrLongDuration
		}
		rest = after
	}
	return int64(total), nil
}

// cutTerm cuts a number and its unit from s, saturating. What is finer than a
// nanosecond is dropped, as in Go.
func cutTerm(s string) (ns uint64, rest string, ok bool) {
	whole, rest := cutDigits(s)
	fraction := ""
	if strings.HasPrefix(rest, ".") {
		fraction, rest = cutDigits(rest[1:])
	}
	if whole == "" && fraction == "" {
		return 0, "", false
	}
	end := 0
	for end < len(rest) && rest[end] != '.' && !isDigit(rest[end]) {
		end++
	}
	for _, u := range units {
		if u.name != rest[:end] {
			continue
		}
		// Seventeen digits of a week are finer than a nanosecond.
		const digits = 17
		f, scale := uint64(0), uint64(1)
		for i := 0; i < len(fraction) && i < digits; i++ {
			f, scale = f*10+uint64(fraction[i]-'0'), scale*10
		}
		hi, lo := bits.Mul64(f, u.ns)
		below, _ := bits.Div64(hi, lo, scale)
		return addSaturating(mulSaturating(decimal(whole), u.ns), below), rest[end:], true
	}
	return 0, "", false
}

// decimal is the value of digits, saturating.
func decimal(digits string) uint64 {
	n, _ := strconv.ParseUint(digits, 10, 64) // of too many the greatest
	return n
}

func mulSaturating(a, b uint64) uint64 {
	if hi, lo := bits.Mul64(a, b); hi == 0 {
		return lo
	}
	return math.MaxUint64
}

func addSaturating(a, b uint64) uint64 {
	if sum, carry := bits.Add64(a, b, 0); carry == 0 {
		return sum
	}
	return math.MaxUint64
}

// FormatDuration writes ns so that ParseDuration reads the same: 90s is 1m30s.
func FormatDuration(ns int64) string {
	if ns <= 0 {
		return "0s"
	}
	var b strings.Builder
	rest := uint64(ns)
	for _, u := range units {
		// Weeks only if nothing else is needed: 1w, but 8d and 366d.
		if u.name == "w" && rest%u.ns != 0 || rest < u.ns {
			continue
		}
		b.WriteString(itoa(int64(rest / u.ns)))
		b.WriteString(u.name)
		rest %= u.ns
	}
	return b.String()
}

// periods are the words of Python limits, and week.
var periods = []struct {
	name string
	ns   uint64 // of months: limit.MonthNs for each
}{
	{"second", 1_000_000_000},
	{"minute", 60_000_000_000},
	{"hour", 3_600_000_000_000},
	{"day", 86_400_000_000_000},
	{"week", 7 * 86_400_000_000_000},
	{"month", uint64(limit.MonthNs)},
	{"year", 12 * uint64(limit.MonthNs)},
}

// Period is the length of a window.
type Period struct {
	Ns       int64
	Calendar bool // whole months: limit.MonthNs for each
}

// PeriodOf returns how long a policy says that the window is.
func PeriodOf(w limit.Window) string {
	if w.Algorithm == limit.Calendar {
		return FormatMonths(w.Months())
	}
	return FormatDuration(w.PeriodNs)
}

// FormatMonths writes a number of months so that ParsePeriod reads the same.
func FormatMonths(months int64) string {
	switch months {
	case 1:
		return "month"
	case 12:
		return "year"
	}
	return itoa(months) + " months"
}

// FormatUTCOffset writes ns, which are whole minutes, as ParseUTCOffset reads it.
func FormatUTCOffset(ns int64) string {
	sign := "+"
	if ns < 0 {
		sign, ns = "-", -ns
	}
	minutes := ns / 60_000_000_000
	return sign + twoDigits(minutes/60) + ":" + twoDigits(minutes%60)
}

func twoDigits(n int64) string { return string([]byte{byte('0' + n/10), byte('0' + n%10)}) }

// ParseUTCOffset reads how far a clock is ahead of UTC, such as +02:00, in nanoseconds.
func ParseUTCOffset(s string) (ns int64, ok bool) {
	if len(s) != len("+02:00") || s[0] != '+' && s[0] != '-' || s[3] != ':' {
		return 0, false
	}
	for _, i := range [...]int{1, 2, 4, 5} {
		if !isDigit(s[i]) {
			return 0, false
		}
	}
	hours, minutes := int64(decimal(s[1:3])), int64(decimal(s[4:]))
	ns = (hours*60 + minutes) * 60_000_000_000
	if s[0] == '-' {
		ns = -ns
	}
	return ns, minutes < 60 && ns >= -limit.WestNs && ns <= limit.EastNs
}

// parseLimit reads a limit as text: REQUESTS, "/" or "per", and a period. The
// period is a word, perhaps with a count before it, or a duration. The code is
// "" for a text that is one.
func parseLimit(s string) (requests uint32, per Period, code Code) {
	unsigned, negative := strings.CutPrefix(strings.TrimSpace(s), "-")
	count, rest := cutDigits(unsigned)
	if negative && count != "" {
		return 0, Period{}, BadLimitRequests
	}
	rest = strings.TrimSpace(rest)
	if after, found := strings.CutPrefix(rest, "/"); found {
		rest = after
	} else if len(rest) >= 3 && strings.EqualFold(rest[:3], "per") {
		rest = rest[3:]
	} else {
		count = ""
	}
	n := decimal(count)
	switch {
	case count == "":
		return 0, Period{}, BadLimit
	case strings.ContainsAny(rest, ",;|/"):
		return 0, Period{}, ManyLimits
	case n > math.MaxUint32:
		return 0, Period{}, BadLimitRequests
	}
	per, err := ParsePeriod(rest)
	if err != nil {
		return 0, Period{}, BadLimitPeriod
	}
	return uint32(n), per, ""
}

// ParsePeriod reads a duration, or one of the words of a text limit with or without
// a count before it, such as minute or 15 minutes.
func ParsePeriod(s string) (Period, error) {
	s = strings.TrimSpace(s)
	times, word := cutDigits(s)
	each := periodWord(strings.TrimSpace(word))
	if each == 0 {
		ns, err := ParseDuration(s)
		return Period{Ns: ns}, err
	}
	k := uint64(1)
	if times != "" {
		k = decimal(times)
	}
	return Period{int64(min(mulSaturating(k, each), math.MaxInt64)), each >= uint64(limit.MonthNs)}, nil
}

// periodWord finds a period by its name in any case, in singular or plural.
func periodWord(s string) (ns uint64) {
	for _, p := range periods {
		if strings.EqualFold(s, p.name) || strings.EqualFold(s, p.name+"s") {
			return p.ns
		}
	}
	return 0
}
