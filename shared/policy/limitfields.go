package policy

import (
	"math"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// writtenLimit is a limit as the policy has it.
type writtenLimit struct {
	Limit
	months      bool // the period is of whole months
	utcOffsetNs int64
}

// limitObject is one item of "limits" that is an object.
var limitObject = newObject("limit", []field[writtenLimit]{
	{"requests", required(requests), "", readRequests},
	{"per", required(period), "", func(r *reader, v value, l *writtenLimit) {
		if per, ok := parsed(r, v, ParsePeriod); ok {
			r.period(v, per, l)
		}
	}},
	{"name", name, "", func(r *reader, v value, l *writtenLimit) { l.Name = r.windowName(v) }},
	{"algorithm", ofLimits, "", func(r *reader, v value, l *writtenLimit) {
		if l.Algorithm = 0; v.Kind == String && v.Text == AlgorithmName(limit.Concurrency) {
			r.fail(v, ConcurrencyInLimit)
		} else {
			l.Algorithm = r.algorithm(v)
		}
	}},
	{"burst", integer(0, math.MaxUint32), "", func(r *reader, v value, l *writtenLimit) { l.Burst = uint32(r.integer(v)) }},
	{"offset", duration, "", func(r *reader, v value, l *writtenLimit) { l.OffsetNs, _ = r.duration(v) }},
	{"utc_offset", choice("utc_offset", textOf("utc_offset")), "", func(r *reader, v value, l *writtenLimit) {
		ns, ok := ParseUTCOffset(v.Text)
		if l.utcOffsetNs = ns; !ok || v.Kind != String {
			r.fail(v, WrongValue)
		}
	}},
	{"jitter", choice("percent", integer(1, 100), textOf("percent")), "", func(r *reader, v value, l *writtenLimit) { l.Jitter = r.percent(v) }},
	{"elastic", boolean, "false", func(r *reader, v value, l *writtenLimit) { l.Elastic = r.boolean(v) }},
})

// windowName reads a name that is no index.
func (r *reader) windowName(v value) string {
	s := r.name(v)
	if s != "" && strings.Trim(s, "0123456789") == "" {
		r.fail(v, WindowNameNumber)
	}
	return s
}

// algorithmNames are what a policy calls the algorithms, by their numbers. A window of
// months is written as a fixed one.
var algorithmNames = [...]string{
	limit.FixedWindow: "fixed_window", limit.FixedWindowPerKey: "fixed_window_per_key", limit.SlidingWindowLog: "sliding_window_log",
	limit.SlidingWindowCounter: "sliding_window_counter", limit.TokenBucket: "token_bucket", limit.Calendar: "fixed_window",
	limit.Concurrency: "concurrency", // of whole rules
}

// AlgorithmName is what a policy calls the algorithm.
func AlgorithmName(a limit.Algorithm) string { return algorithmNames[a] }

// algorithm answers 0 for what it has refused.
func (r *reader) algorithm(v value) limit.Algorithm {
	return limit.Algorithm(slices.Index(algorithmNames[:], r.word(v)))
}

// ofLimits are the algorithms that limits may have each for itself.
var ofLimits = word(algorithmNames[limit.FixedWindow:limit.Calendar]...)

// period sets the length of a window to per if a window may have that length.
func (r *reader) period(v value, per Period, l *writtenLimit) {
	w := limit.Window{Algorithm: limit.FixedWindow, PeriodNs: per.Ns}
	if per.Calendar {
		w.Algorithm = limit.Calendar
	}
	switch {
	case w.InRange():
		l.PeriodNs, l.months = per.Ns, per.Calendar
	case per.Calendar:
		r.fail(v, MonthCount, itoa(per.Ns/limit.MonthNs))
	default:
		r.fail(v, PeriodRange, itoa(per.Ns))
	}
}

func readLimits(r *reader, v value, rule *Rule) {
	if !r.items(v) {
		return
	}
	start := r.count()
	if r.rule.algorithm == limit.Concurrency && len(v.Items) != 1 {
		r.fail(v, ConcurrencyAlone)
		return
	}
	if len(v.Items) > 0 {
		rule.Limits = make([]Limit, len(v.Items))
	}
	for i := range rule.Limits {
		at, l := v.item(i), &rule.Limits[i]
		before := r.count()
		readLimit(r, at, l)
		if r.count() == before {
			r.distinct(at, v, rule.Limits[:i], l)
		} else {
			*l = Limit{} // keeps the indexes of the others
		}
	}
	r.rule.limits = r.rule.algorithm != 0 && r.count() == start
}

func readLimit(r *reader, v value, out *Limit) {
	if r.rule.algorithm == limit.Concurrency {
		r.slots(v, out)
		return
	}
	l := writtenLimit{Limit: Limit{Window: limit.Window{Algorithm: r.rule.algorithm}}}
	if v.Kind == String {
		requests, per, code := parseLimit(v.Text)
		if code != "" {
			r.fail(v, code)
			return
		}
		if r.period(v, per, &l); l.PeriodNs > 0 {
			l.Window.Limit = requests
		}
	} else if !readObject(r, v, limitObject, &l) {
		return
	}
	if l.Algorithm != 0 {
		r.fitsAlgorithm(v, &l)
	}
	*out = l.Limit
}

// distinct refuses a window that is, or is named, like one before it.
func (r *reader) distinct(v, list value, before []Limit, l *Limit) {
	for i := range before {
		other := &before[i]
		if other.PeriodNs != 0 && other.Same(l.Window) {
			r.failWindow(v, WindowTwice, list.Item(i), l.Window)
		}
		if l.Name != "" && other.Name == l.Name {
			r.failTwice(v, WindowNameTwice, list.item(i), l.Name)
		}
	}
}

func (r *reader) failWindow(v value, code Code, first Place, windows ...limit.Window) {
	r.add(Problem{Code: code, Line: v.Line, Column: v.Column, Node: v.Node, Windows: windows, at: v.Place, first: first}, nil)
}

// fitsAlgorithm checks a limit against its algorithm, whose fields it may have
// and those alone.
func (r *reader) fitsAlgorithm(v value, l *writtenLimit) {
	r.fitsGrid(v, l)
	if l.Elastic && l.Algorithm != limit.FixedWindowPerKey {
		r.fail(v.field("elastic"), ElasticMisplaced)
	}
	if most := l.Most(); l.Algorithm == limit.SlidingWindowLog && most > limit.MaxLog {
		r.fail(l.placeOfMost(v), LogTooLong, itoa(int64(most)))
	}
	if l.Algorithm == limit.TokenBucket && l.From != nil {
		r.fail(v.field("requests"), NumberOfBucket)
		return
	}
	switch burst := v.Member("burst"); {
	case l.Algorithm != limit.TokenBucket && burst != nil:
		r.fail(v.field("burst"), BurstMisplaced)
	case l.Algorithm == limit.TokenBucket && burst == nil:
		l.Burst = l.Window.Limit
	case l.Algorithm == limit.TokenBucket && l.Window.Limit > 0:
		if n, ok := burst.Integer(); ok && n == 0 {
			r.fail(v.field("burst"), EmptyBucket)
		}
	}
}

// fitsGrid checks what shifts a window on the clock, and makes one of months a Calendar.
func (r *reader) fitsGrid(v value, l *writtenLimit) {
	switch {
	case l.Jitter == 0:
	case l.Algorithm != limit.FixedWindow:
		r.fail(v.field("jitter"), JitterMisplaced)
	case l.months:
		r.fail(v.field("jitter"), MonthJitter)
	}
	switch {
	case l.months && l.Algorithm != limit.FixedWindow:
		r.fail(v.inObject("per"), MonthsMisplaced, AlgorithmName(l.Algorithm))
	case l.months && l.OffsetNs >= limit.MaxOffsetNs:
		r.fail(v.field("offset"), MonthOffsetTooLong, itoa(l.OffsetNs))
	case l.months:
		calendar := limit.NewCalendar(l.PeriodNs/limit.MonthNs, l.OffsetNs, l.utcOffsetNs)
		l.Algorithm, l.OffsetNs = calendar.Algorithm, calendar.OffsetNs
	case v.has("utc_offset") && l.PeriodNs > 0:
		r.fail(v.field("utc_offset"), UTCOffsetMisplaced)
	case l.OffsetNs == 0 || l.PeriodNs == 0:
	case l.Algorithm != limit.FixedWindow:
		r.fail(v.field("offset"), OffsetMisplaced, AlgorithmName(l.Algorithm))
	case l.OffsetNs >= l.PeriodNs:
		r.fail(v.field("offset"), OffsetTooLong, itoa(l.PeriodNs), itoa(l.OffsetNs))
	}
}

// Windows are the windows of the rule's limits, in their order.
func (r *Rule) Windows() []limit.Window { return windowsOf(r.Limits) }

// Windows are the windows of the override, parallel to the rule's; none where
// it is Unlimited.
func (o *Override) Windows() []limit.Window { return windowsOf(o.Limits) }

func windowsOf(limits []Limit) []limit.Window {
	list := make([]limit.Window, len(limits))
	for i := range limits {
		list[i] = limits[i].Window
	}
	return list
}

// LimitNamed is the index of the first limit with that name or index, -1 if there is
// none.
func (r *Rule) LimitNamed(text string) int {
	for i := range r.Limits {
		if r.Limits[i].Name == text || itoa(int64(i)) == text {
			return i
		}
	}
	return -1
}

// Raises reports whether the override allows more than its rule in some window. Where
// requests say the rule's limit, they may say 0.
func (o *Override) Raises(r *Rule) bool {
	for i := range o.Limits {
		w, of := &o.Limits[i].Window, r.Limits[i].Window
		if r.Limits[i].From != nil {
			of.Limit = 0
		}
		if w.Unlimited || w.Limit > of.Limit || w.Burst > of.Burst {
			return true
		}
	}
	return o.Unlimited
}
