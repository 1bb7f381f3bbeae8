package keyed

import "time"

// WindowOption is an option of one window. [Builder.Build] returns an error for an
// option that does not belong to the window's algorithm.
type WindowOption struct {
	kind  optionKind
	value int64
	text  string
}

type optionKind uint8

const (
	offsetOption optionKind = iota
	utcOffsetOption
	jitterOption
	burstOption
	elasticOption
	nameOption
	optionKinds
)

// Offset shifts an aligned window by d, from 0 to less than its period: a window of
// 7 days with an offset of 4 days starts on Mondays, UTC.
func Offset(d time.Duration) WindowOption {
	return WindowOption{kind: offsetOption, value: int64(d)}
}

// UTCOffset says how far the clock is ahead of UTC on which the months of
// [Builder.Months] start: whole minutes from −12 to 14 hours.
func UTCOffset(d time.Duration) WindowOption {
	return WindowOption{kind: utcOffsetOption, value: int64(d)}
}

// Jitter shifts an aligned window by a constant for each key, up to percent (1 to
// 100) of the period, so that the windows of all keys do not end at the same
// instant. A key's constant is the same in all processes.
func Jitter(percent int) WindowOption {
	return WindowOption{kind: jitterOption, value: int64(percent)}
}

// Burst sets how many tokens a token bucket holds when it is full, at least 1. The
// usage of an evicted key is remembered for 73 years, which is less than a bucket
// with a very large burst and few tokens takes to fill.
func Burst(tokens uint32) WindowOption {
	return WindowOption{kind: burstOption, value: int64(tokens)}
}

// Elastic makes every counted hit move the end of a window per key to a whole period
// after the hit.
//
// Source: with [Builder.CountDenied] it is the deprecated "fixed window with elastic
// expiry" of Python limits.
func Elastic() WindowOption { return WindowOption{kind: elasticOption} }

// Name names a window for [Limiter.SetWindow], [Limiter.IncWindow] and [Usage]. A
// name needs at least one character that is not a digit.
func Name(name string) WindowOption { return WindowOption{kind: nameOption, text: name} }
