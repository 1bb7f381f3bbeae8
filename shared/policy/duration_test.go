package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

func TestParseLimit(t *testing.T) {
	const second, minute, hour, day = int64(1e9), int64(60e9), int64(3600e9), int64(86400e9)
	tests := []struct {
		text     string
		requests uint32
		ns       int64
	}{
		{"10/minute", 10, minute},
		{"10/1s", 10, second},
		{"3 per 15 minutes", 3, 15 * minute},
		{"100/1h30m", 100, hour + 30*minute},
		{"1/day", 1, day},
		{"10 per hour", 10, hour},
		{"10/2hours", 10, 2 * hour},
		{"10 / 2 hours", 10, 2 * hour},
		{"10per2Weeks", 10, 14 * day},
		{" 1 PER SECOND ", 1, second},
		{"0/second", 0, second},
		{"007/1s", 7, second},
		{"4294967295/366d", 4294967295, 366 * day},
		{"1/1w2d3h4m5s6ms7us8ns", 1, 9*day + 3*hour + 4*minute + 5*second + 6_007_008},
		{"1/0.5s", 1, second / 2},
	}
	for _, tt := range tests {
		requests, per, code := parseLimit(tt.text)
		require.Empty(t, code, tt.text)
		require.Equal(t, tt.requests, requests, tt.text)
		require.Equal(t, Period{Ns: tt.ns}, per, tt.text)
	}
	for _, text := range []string{
		"", " ", "/", "10", "10/", "/1s", "per second", "10 second", "10/second!", "10/s", "10/1", "1.5/s", "10/1s 2s",
		"10//1s",
		"10/minute;20/hour", "10/minute, 20/hour", "x/1s", "10/1 s", "１/second", "10/minutess", "10 pers", "10per",
		"+1/1s", "10/+1s",
	} {
		_, _, code := parseLimit(text)
		require.NotEmpty(t, code, text)
	}
}

// The words stand in a limit that is text and in the per of one that is an object.
func TestParsePeriod(t *testing.T) {
	for text, want := range map[string]Period{
		"minute": {Ns: 60e9}, "15 Minutes": {Ns: 900e9}, "1h30m": {Ns: 5400e9}, " day ": {Ns: 86400e9},
		"2weeks": {Ns: 14 * 86400e9},
		"0":      {}, "99999999999999999999 days": {Ns: 1<<63 - 1},
		"month": {limit.MonthNs, true}, "1 Year": {12 * limit.MonthNs, true}, "6months": {6 * limit.MonthNs, true},
		"0 months": {0, true},
	} {
		per, err := ParsePeriod(text)
		require.NoError(t, err, text)
		require.Equal(t, want, per, text)
	}
	for _, months := range []int64{1, 2, 3, 4, 6, 12} {
		w := limit.NewCalendar(months, 0, 0)
		per, err := ParsePeriod(PeriodOf(w))
		require.NoError(t, err)
		require.Equal(t, Period{w.PeriodNs, true}, per)
	}
	for _, text := range []string{"", "15", "min", "fortnight", "minute 15", "1 s", "-1 day", "1.5 hours"} {
		_, err := ParsePeriod(text)
		require.ErrorIs(t, err, ErrBadDuration, text)
	}
}

func TestParseUTCOffset(t *testing.T) {
	const minute = int64(60e9)
	for text, want := range map[string]int64{
		"+00:00": 0, "+02:00": 120 * minute, "-05:30": -330 * minute, "-12:00": -720 * minute, "+14:00": 840 * minute,
		"-00:01": -minute,
	} {
		ns, ok := ParseUTCOffset(text)
		require.True(t, ok, text)
		require.Equal(t, want, ns, text)
		require.Equal(t, text, FormatUTCOffset(ns))
	}
	for _, text := range []string{
		"", "02:00", "+2:00", "+0200", "+02", "+02:60", "-12:01", "+14:01", "+20:00", "+02:0x", "+0x:00", "Z", "UTC",
		" +02:00", "+02:00 ", "+02.00", "*02:00",
	} {
		_, ok := ParseUTCOffset(text)
		require.False(t, ok, text)
	}
}

func TestParseDuration(t *testing.T) {
	tests := []struct {
		text string
		want int64
		back string
	}{
		{"0", 0, "0s"},
		{"0s", 0, "0s"},
		{"90s", 90e9, "1m30s"},
		{"1.5h", 5400e9, "1h30m"},
		{".5s", 5e8, "500ms"},
		{"1.s", 1e9, "1s"},
		{"24h", 86400e9, "1d"},
		{"7d", 604800e9, "1w"},
		{"8d", 691200e9, "8d"},
		{"1w1d", 691200e9, "8d"},
		{"366d", 366 * 86400e9, "366d"},
		{"1µs", 1e3, "1us"},
		{"1μs", 1e3, "1us"},
		{"0.0000000009s", 0, "0s"},
		{"9223372036854775807ns", 1<<63 - 1, "106751d23h47m16s854ms775us807ns"},
	}
	for _, tt := range tests {
		ns, err := ParseDuration(tt.text)
		require.NoError(t, err, tt.text)
		require.Equal(t, tt.want, ns, tt.text)
		require.Equal(t, tt.back, FormatDuration(ns), tt.text)
	}
	for text, want := range map[string]error{
		"":                      ErrBadDuration,
		"9223372036854775808ns": ErrLongDuration,
		"99999999999999999999w": ErrLongDuration,
	} {
		_, err := ParseDuration(text)
		require.ErrorIs(t, err, want)
	}
	for _, text := range []string{"1", "s", "-1s", "+1s", "1 s", "1S", "1y", ".s", "1..5s", "1s ", "1e3s"} {
		_, err := ParseDuration(text)
		require.Error(t, err, text)
	}
}

// What is accepted can be written and read back, and durations without our own
// units are Go's, to the nanosecond that a float may lose.
func FuzzLimitText(f *testing.F) {
	for _, seed := range []string{"10/minute", "3 per 15 minutes", "100/1h30m", "1/1w2d", "1/0.1s",
		"1/1.9999999999999999999h", "9/18446744073709551615 days", "4294967296/1s", "1/99999999999999999999999999s"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if ns, err := ParseDuration(text); err == nil {
			back, err := ParseDuration(FormatDuration(ns))
			require.NoError(t, err)
			require.Equal(t, ns, back)
			if !strings.ContainsAny(text, "dw") {
				goes, err := time.ParseDuration(text)
				require.NoError(t, err)
				terms := int64(1 + strings.Count(text, "."))
				require.LessOrEqual(t, max(ns-int64(goes), int64(goes)-ns), terms)
			}
		} else if goes, err := time.ParseDuration(text); err == nil {
			require.True(t, strings.HasPrefix(text, "-") || strings.HasPrefix(text, "+"), "refuses %v", goes)
		}
		requests, per, code := parseLimit(text)
		if code != "" || per.Calendar {
			return
		}
		written := itoa(int64(requests)) + "/" + FormatDuration(per.Ns)
		requests2, per2, code := parseLimit(written)
		require.Empty(t, code, written)
		require.Equal(t, requests, requests2)
		require.Equal(t, per, per2)
	})
}
