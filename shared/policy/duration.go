package policy

import (
	"errors"
	"math"
	"math/bits"
	"strings"
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
			return 0, durationFault(s)
		}
		var carry uint64
		total, carry = bits.Add64(total, n, 0)
		if carry > 0 || total > math.MaxInt64 {
			return 0, errors.New("duration " + quote(s) + " is too long: the most is 366d")
		}
		rest = after
	}
	return int64(total), nil
}

func durationFault(s string) error {
	if near := durationMeant(s); near != "" {
		return errors.New("invalid duration " + quote(s) + ": did you mean " + quote(near) + "?")
	}
	return errors.New("invalid duration " + quote(s) + `: write one such as "10s", "1h30m" or "7d", with the units ns, us, ms, s, m, h, d, w`)
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
		part, _ := bits.Div64(hi, lo, scale)
		return addSaturating(mulSaturating(decimal(whole), u.ns), part), rest[end:], true
	}
	return 0, "", false
}

// decimal is the value of digits, saturating.
func decimal(digits string) uint64 {
	n := uint64(0)
	for i := 0; i < len(digits); i++ {
		n = addSaturating(mulSaturating(n, 10), uint64(digits[i]-'0'))
	}
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
		// Weeks only where nothing else is needed: 1w, but 8d and 366d.
		if u.name == "w" && rest%u.ns != 0 || rest < u.ns {
			continue
		}
		b.WriteString(itoa(int64(rest / u.ns)))
		b.WriteString(u.name)
		rest %= u.ns
	}
	return b.String()
}
