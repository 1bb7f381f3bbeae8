// Package fields writes the response fields RateLimit-Policy and RateLimit of
// draft-ietf-httpapi-ratelimit-headers-10: lists with an item for each window.
//
// It builds for wasm, and must never read a clock.
package fields

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// Window is what the fields call a window.
type Window struct {
	Rule, Override string // Override is empty if none holds or it has no name
	Name           string // else the index stands in its place
	Index          int
	Only           bool // the rule has no other window, so neither is needed
}

// AppendPolicy appends the window's item in RateLimit-Policy: its quota q and its length w in
// seconds. There is no w for requests in flight, for a window that is no whole number of
// seconds, nor for a token bucket whose burst differs from what it gains in a period.
func (n *Window) AppendPolicy(b []byte, w *limit.Window, now int64) []byte {
	b = strconv.AppendUint(append(n.append(b), ";q="...), uint64(w.Max()), 10)
	if length := w.LengthNs(now); length > 0 && length%1_000_000_000 == 0 && w.Max() == w.Limit {
		b = strconv.AppendInt(append(b, ";w="...), length/1_000_000_000, 10)
	}
	return b
}

// AppendLimit appends the window's item in RateLimit: the units left r, and the seconds t
// until it has forgotten what it has counted. There is no t for requests in flight.
func (n *Window) AppendLimit(b []byte, w *limit.Window, left uint32, seconds int64) []byte {
	b = strconv.AppendUint(append(n.append(b), ";r="...), uint64(left), 10)
	if w.Algorithm == limit.Concurrency {
		return b
	}
	return strconv.AppendInt(append(b, ";t="...), seconds, 10)
}

// append begins an item with its name in a structured-field string: the rule's name, a
// colon and the override's, and, if the rule has several windows, a slash and the window's.
func (n *Window) append(b []byte) []byte {
	if len(b) > 0 {
		b = append(b, ", "...)
	}
	b = appendName(append(b, '"'), n.Rule)
	if n.Override != "" {
		b = appendName(append(b, ':'), n.Override)
	}
	switch {
	case n.Only:
	case n.Name != "":
		b = appendName(append(b, '/'), n.Name)
	default:
		b = strconv.AppendInt(append(b, '/'), int64(n.Index), 10)
	}
	return append(b, '"')
}

// appendName escapes a name. Characters that a structured-field string cannot hold become
// "?".
func appendName(b []byte, s string) []byte {
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ' || r > '~':
			b = append(b, '?')
		default:
			b = append(b, byte(r))
		}
	}
	return b
}

// Seconds rounds a wait up to whole seconds; one in the past is 0.
func Seconds(ns int64) int64 {
	if ns <= 0 {
		return 0
	}
	return (ns-1)/1_000_000_000 + 1
}
