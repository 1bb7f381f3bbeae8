package policy

import (
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// algorithms by their names in a policy, with why all but the first know no
// offset.
var algorithms = []struct {
	name   string
	is     limit.Algorithm
	starts string
}{
	{"fixed_window", limit.FixedWindow, ""},
	{"fixed_window_per_key", limit.FixedWindowPerKey, "a window of fixed_window_per_key starts with its key's first hit"},
	{"sliding_window_log", limit.SlidingWindowLog, "a sliding_window_log looks back from each hit"},
	{"sliding_window_counter", limit.SlidingWindowCounter, "the grid of a sliding_window_counter is that of the Unix epoch"},
	{"token_bucket", limit.TokenBucket, "a token_bucket has no window that starts"},
}

var algorithmShape = func() shape {
	var list []string
	for _, a := range algorithms {
		list = append(list, a.name)
	}
	return word(list...)
}()

// readAlgorithm answers 0 for what it has refused.
func readAlgorithm(r *reader, v value) limit.Algorithm {
	w := r.word(v)
	for _, a := range algorithms {
		if a.name == w {
			return a.is
		}
	}
	return 0
}

func algorithmName(a limit.Algorithm) string {
	for _, known := range algorithms {
		if known.is == a {
			return known.name
		}
	}
	return ""
}

// fitsAlgorithm checks a limit against its algorithm, whose fields it may have
// and those alone.
func (r *reader) fitsAlgorithm(v value, l *Limit) {
	if l.Algorithm == 0 {
		return
	}
	r.fitsFixedWindow(v, l)
	if l.Elastic && l.Algorithm != limit.FixedWindowPerKey {
		r.fail(fieldAt(v, "elastic"), "only fixed_window_per_key can be elastic: remove it, or set algorithm to fixed_window_per_key")
	}
	requests := v
	if v.node.Kind == Object {
		requests = fieldAt(v, "requests")
	}
	switch l.Algorithm {
	case limit.SlidingWindowLog:
		if l.Limit > limit.MaxLog {
			r.fail(requests, "a sliding_window_log remembers each request, at most "+itoa(limit.MaxLog)+" of them, not "+itoa(int64(l.Limit))+": use sliding_window_counter")
		}
	case limit.TokenBucket:
		if !has(v, "burst") {
			l.Burst = l.Limit
		} else if at := fieldAt(v, "burst"); l.Burst == 0 && l.Limit > 0 && isZero(at.node) {
			r.fail(at, "must be at least 1, not 0: a bucket that holds nothing always denies")
		}
		return
	default: // nothing of their own
	}
	if has(v, "burst") {
		r.fail(fieldAt(v, "burst"), "only token_bucket has a burst: remove it, or set algorithm to token_bucket")
	}
}

// isZero tells a 0 from what could not be read.
func isZero(n *Node) bool {
	i, fault := integerOf(n.Text)
	return n.Kind == Number && fault == nil && i == 0
}

// fitsFixedWindow checks what only a fixed_window may have.
func (r *reader) fitsFixedWindow(v value, l *Limit) {
	fixed := l.Algorithm == limit.FixedWindow
	if l.Jitter > 0 && !fixed {
		r.fail(fieldAt(v, "jitter"), "only fixed_window has jitter: remove it, or set algorithm to fixed_window")
	}
	if l.OffsetNs == 0 || l.PeriodNs == 0 {
		return
	}
	switch at := fieldAt(v, "offset"); {
	case !fixed:
		for _, a := range algorithms {
			if a.is == l.Algorithm {
				r.fail(at, "only fixed_window has an offset: "+a.starts)
			}
		}
	case l.OffsetNs >= l.PeriodNs:
		r.fail(at, "must be less than per, which is "+FormatDuration(l.PeriodNs)+", not "+FormatDuration(l.OffsetNs))
	}
}

// cautions warns of a limit that does what it says, and perhaps not what its
// writer means.
func (r *reader) cautions(v value, l *Limit) {
	if l.Algorithm == limit.SlidingWindowCounter && l.Limit == 1 {
		r.warn(v, "a sliding_window_counter of 1 lets two requests through across a boundary, one late in a window and one early in the next: use sliding_window_log, which is exact")
	}
	if l.Fill() >= limit.MaxFillNs {
		r.warn(v, "a bucket that takes more than 73 years to fill is remembered for 73 of a client that lost its place to others: lower burst")
	}
}

// windowName is all that makes a window what it is, in words.
func windowName(w limit.Window) string {
	s := algorithmName(w.Algorithm) + " of " + FormatDuration(w.PeriodNs)
	var with []string
	if w.OffsetNs > 0 {
		with = append(with, "offset "+FormatDuration(w.OffsetNs))
	}
	if w.Jitter > 0 {
		with = append(with, "jitter "+itoa(int64(w.Jitter))+"%")
	}
	if w.Elastic {
		with = append(with, "elastic")
	}
	if len(with) > 0 {
		s += " with " + strings.Join(with, " and ")
	}
	return s
}
