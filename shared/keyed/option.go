package keyed

import "time"

// WindowOption changes one window. One that does not belong to the window's
// algorithm makes [Builder.Build] fail.
type WindowOption struct {
	kind  optionKind
	value int64
	text  string
}

type optionKind uint8

const (
	offsetOption optionKind = iota
	jitterOption
	burstOption
	elasticOption
	nameOption
	optionKinds
)

// Offset shifts the grid of an aligned window by d, which is less than its
// period: a window of 7 days with an offset of 4 days starts on Mondays, UTC.
func Offset(d time.Duration) WindowOption {
	return WindowOption{kind: offsetOption, value: int64(d)}
}

// Jitter shifts each key's grid of an aligned window by a constant of the key,
// up to percent (1 to 100) of the period, so that not all keys' windows end at
// the same instant. A key's constant is the same in all processes.
func Jitter(percent int) WindowOption {
	return WindowOption{kind: jitterOption, value: int64(percent)}
}

// Burst is the most tokens that a token bucket holds, at least 1. What an evicted
// key had used is remembered for 73 years, which is less than a bucket of a very
// large burst and few tokens takes to fill.
func Burst(tokens uint32) WindowOption {
	return WindowOption{kind: burstOption, value: int64(tokens)}
}

// Elastic makes every counted hit move the end of a window per key to a whole
// period from then. With [Builder.CountDenied] it is the deprecated "fixed
// window with elastic expiry" of Python limits.
func Elastic() WindowOption { return WindowOption{kind: elasticOption} }

// Name names a window for [Limiter.SetWindow], [Limiter.IncWindow] and [Usage].
// It has at least one character that is no digit.
func Name(name string) WindowOption { return WindowOption{kind: nameOption, text: name} }
