package accesslog

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// One line with a time far ahead would put all that follow out of their order, so a
// time is one at which a log may have been written.
var (
	firstNs = time.Date(1971, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
	lastNs  = time.Now().Add(24 * time.Hour).UnixNano()
)

func inRange(ns int64) (int64, bool) { return ns, ns >= firstNs && ns < lastNs }

// byLayout reads times of one layout of package time.
func byLayout(layout string) func(string) (int64, bool) {
	return func(text string) (int64, bool) {
		t, err := time.Parse(layout, text)
		if err != nil || t.Year() < 1970 || t.Year() > 2200 { // beyond them, UnixNano is undefined
			return 0, false
		}
		return inRange(t.UnixNano())
	}
}

const localLayout = "02/Jan/2006:15:04:05 -0700"

var (
	rfc3339 = byLayout(time.RFC3339Nano)
	local   = byLayout(localLayout)
	noColon = byLayout("2006-01-02T15:04:05.999999999-0700")
)

// epoch reads a number of seconds, or of milli-, micro- or nanoseconds: each has
// three digits more, and only one of them is a time at which a log was written.
func epoch(text string) (int64, bool) {
	if strings.ContainsAny(text, "eE") { // 1.769860801E9, as Java writes it
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || !(f >= 0 && f < math.MaxInt64) {
			return 0, false
		}
		text = strconv.FormatFloat(f, 'f', -1, 64)
	}
	whole, fraction, _ := strings.Cut(text, ".")
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || n < 0 {
		return 0, false
	}
	scale := int64(time.Second)
	for scale > 1 && n > lastNs/scale {
		scale /= 1000
	}
	ns := n * scale
	if fraction != "" {
		f, err := strconv.ParseFloat("0."+fraction, 64)
		if err != nil {
			return 0, false
		}
		ns += int64(math.Round(f * float64(scale)))
	}
	return inRange(ns)
}

// anyTime reads a time of any of the forms that say which instant they are: one without
// a zone does not.
func anyTime(text string) (int64, bool) {
	text = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]") // as Apache's %t
	switch {
	case len(text) < 9:
		return 0, false
	case text[2] == '/':
		return local(text)
	case text[4] == '-':
		if ns, ok := rfc3339(text); ok {
			return ns, true
		}
		return noColon(text)
	}
	return epoch(text)
}

// coarsest returns the grain of the times of a log: the largest that all have. Before the
// first it is 0.
func coarsest(grain, ns int64) int64 {
	if grain == 0 {
		grain = int64(time.Second)
	}
	for grain > 1 && ns%grain != 0 {
		grain /= 1000
	}
	return grain
}
