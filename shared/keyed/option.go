package keyed

import "time"

// WindowOption is an option of one window. [Builder.Build] returns an error for an
// option that does not belong to the window's algorithm.
type WindowOption struct {
	name string
	set  func(*window)
}

// Offset shifts an aligned window by d, from 0 to less than its period: a window of
// 7 days with an offset of 4 days starts on Mondays, UTC.
func Offset(d time.Duration) WindowOption {
	return WindowOption{"Offset", func(w *window) { w.offset, w.OffsetNs = d, int64(d) }}
}

// UTCOffset says how far the clock is ahead of UTC on which the months of
// [Builder.Months] start: whole minutes from −12 to 14 hours.
func UTCOffset(d time.Duration) WindowOption {
	return WindowOption{"UTCOffset", func(w *window) { w.utcOffset = d }}
}

// Jitter shifts an aligned window by a constant for each key, up to percent (1 to
// 100) of the period, so that the windows of all keys do not end at the same
// instant. A key's constant is the same in all processes.
func Jitter(percent int) WindowOption {
	return WindowOption{"Jitter", func(w *window) { w.jitter, w.Jitter = percent, uint8(percent) }}
}

// Burst sets how many tokens a token bucket holds when it is full, at least 1. The
// usage of an evicted key is remembered for 73 years, which is less than a bucket
// with a very large burst and few tokens takes to fill.
func Burst(tokens uint32) WindowOption {
	return WindowOption{"Burst", func(w *window) { w.Burst = tokens }}
}

// Elastic makes every counted hit move the end of a window per key to a whole period
// after the hit.
//
// Source: with [Builder.CountDenied] it is the deprecated "fixed window with elastic
// expiry" of Python limits.
func Elastic() WindowOption {
	return WindowOption{"Elastic", func(w *window) { w.Elastic = true }}
}

// Name names a window for [Limiter.SetWindow], [Limiter.IncWindow] and [Usage]. A
// name needs at least one character that is not a digit.
func Name(name string) WindowOption {
	return WindowOption{"Name", func(w *window) { w.name = name }}
}
