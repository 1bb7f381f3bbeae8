package accesslog

import (
	"bytes"
	"math"
	"strconv"
	"time"
)

// One line with a time far ahead would put all that follow out of their order, so a
// time is one at which a log may have been written.
var (
	firstNs = time.Date(1971, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
	lastNs  = time.Now().Add(24 * time.Hour).UnixNano()
)

// inRange refuses times at which no log was written.
func inRange(ns int64) (int64, bool) { return ns, ns >= firstNs && ns < lastNs }

// byLayout reads times of one layout of package time.
func byLayout(layout string) func([]byte) (int64, bool) {
	return func(text []byte) (int64, bool) {
		t, err := time.Parse(layout, string(text))
		if err != nil || t.Year() < 1970 || t.Year() > 2200 { // beyond them, UnixNano is undefined
			return 0, false
		}
		return inRange(t.UnixNano())
	}
}

var (
	rfc3339 = byLayout(time.RFC3339Nano)
	local   = byLayout("02/Jan/2006:15:04:05 -0700")
	noColon = byLayout("2006-01-02T15:04:05.999999999-0700")
)

// epoch reads a number of seconds, or of milli-, micro- or nanoseconds: each has
// three digits more, and only one of them is a time at which a log was written.
func epoch(text []byte) (int64, bool) {
	whole, fraction, _ := bytes.Cut(text, []byte("."))
	n, err := strconv.ParseInt(string(whole), 10, 64)
	if err != nil || n < 0 {
		return 0, false
	}
	scale := int64(time.Second)
	for scale > 1 && n > lastNs/scale {
		scale /= 1000
	}
	ns := n * scale
	if len(fraction) > 0 {
		f, err := strconv.ParseFloat("0."+string(fraction), 64)
		if err != nil || math.IsInf(f, 0) {
			return 0, false
		}
		ns += int64(math.Round(f * float64(scale)))
	}
	return inRange(ns)
}

// anyTime reads a time of any of the usual forms.
func anyTime(text []byte) (int64, bool) {
	switch {
	case len(text) < 9:
		return 0, false
	case text[2] == '/':
		return local(text)
	case text[4] == '-' && len(text) > 10:
		if ns, ok := rfc3339(text); ok {
			return ns, true
		}
		return noColon(text)
	}
	return epoch(text)
}

// resolution is the grain of the times of a log: the largest that all have.
type resolution struct {
	grain int64
	seen  bool
}

func (r *resolution) add(ns int64) {
	if !r.seen {
		r.grain, r.seen = int64(time.Second), true
	}
	for r.grain > 1 && ns%r.grain != 0 {
		r.grain /= 1000
	}
}
