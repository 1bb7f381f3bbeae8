package policy

import (
	"math"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

// limitFields is one item of "limits" that is an object.
var limitFields = []field[Limit]{
	{
		name: "requests", shape: integer(0, math.MaxUint32), required: true,
		doc: "Units allowed in the window; 0 always denies.",
		read: func(r *reader, v value, l *Limit) {
			n, _ := r.integer(v)
			l.Limit = uint32(n)
		},
	},
	{
		name: "per", shape: shape{form: formDuration}, required: true,
		doc: "Length of the window, 1ms to 366d.",
		read: func(r *reader, v value, l *Limit) {
			if ns, ok := r.duration(v); ok && r.period(v, ns) {
				l.PeriodNs = ns
			}
		},
	},
	{
		name: "name", shape: shape{form: formName},
		doc:  "Names the window in counters commands; default is its index.",
		read: readWindowName,
	},
	{
		name: "algorithm", shape: algorithmShape,
		doc:  "How this window counts; default is the rule's algorithm.",
		read: func(r *reader, v value, l *Limit) { l.Algorithm = readAlgorithm(r, v) },
	},
	{
		name: "offset", shape: shape{form: formDuration},
		doc:  "Shifts the windows of fixed_window on the clock: 7d with offset 4d starts on Mondays UTC. Less than per.",
		read: func(r *reader, v value, l *Limit) { l.OffsetNs, _ = r.duration(v) },
	},
}

func readWindowName(r *reader, v value, l *Limit) {
	s, ok := r.name(v)
	if ok && strings.Trim(s, "0123456789") == "" {
		r.fail(v, quote(s)+" looks like the index of a window: use a letter")
		return
	}
	l.Name = s
}

// period reports whether ns is a length a window may have.
func (r *reader) period(v value, ns int64) bool {
	if ns >= limit.MinPeriodNs && ns <= limit.MaxPeriodNs {
		return true
	}
	r.fail(v, "a window must be 1ms to 366d long, not "+FormatDuration(ns))
	return false
}

func readLimits(r *reader, v value, rule *Rule) {
	if v.node.Kind != List {
		r.mismatch(v)
		return
	}
	if count := len(v.node.Items); count > MaxWindows {
		r.fail(v, "has "+itoa(int64(count))+" windows, the most is "+itoa(MaxWindows))
		return
	}
	for i := range v.node.Items {
		at := v.item(i, objectOf("limit"))
		before := len(r.errs) + r.dropped
		var l Limit
		readLimit(r, at, &l)
		if len(r.errs)+r.dropped == before {
			r.distinct(at, v.path, rule.Limits, &l)
		} else {
			l = Limit{} // keeps the indexes of the others
		}
		rule.Limits = append(rule.Limits, l)
	}
}

func readLimit(r *reader, v value, l *Limit) {
	l.Algorithm = r.algorithm
	switch v.node.Kind {
	case String:
		requests, ns, loose, err := parseLimit(v.node.Text)
		if err != nil {
			r.fail(v, err.Error())
			return
		}
		if loose != "" {
			days := ns / 86_400_000_000_000
			r.warn(v, "a "+loose+" has no one length: this counts as "+itoa(days)+" days; write "+quote(itoa(int64(requests))+"/"+itoa(days)+"d")+" to be plain")
		}
		if r.period(v, ns) {
			l.Limit, l.PeriodNs = requests, ns
		}
	case Object:
		readObject(r, v, limitFields, l)
		r.offset(v, l)
	default:
		r.fail(v, "must be a limit, not "+describe(v.node)+`: write one such as "10/minute" or {requests: 10, per: 1m}`)
	}
}

func (r *reader) offset(v value, l *Limit) {
	if l.OffsetNs == 0 || l.PeriodNs == 0 {
		return
	}
	at := fieldAt(v, "offset")
	switch {
	case l.Algorithm == limit.FixedWindowPerKey:
		r.fail(at, "only fixed_window has an offset: a window of fixed_window_per_key starts with its key's first hit")
	case l.OffsetNs >= l.PeriodNs:
		r.fail(at, "must be less than per, which is "+FormatDuration(l.PeriodNs)+", not "+FormatDuration(l.OffsetNs))
	}
}

// distinct refuses a window that is, or is named, like one before it.
func (r *reader) distinct(v value, list string, before []Limit, l *Limit) {
	for i := range before {
		other := &before[i]
		at := list + "[" + itoa(int64(i)) + "]"
		if other.PeriodNs != 0 && sameWindow(other.Window, l.Window) {
			r.fail(v, "is the same window as "+at+" ("+windowName(l.Window)+"): keep the one with the smaller limit")
		}
		if l.Name != "" && other.Name == l.Name {
			r.fail(v, "has the name of "+at+", "+quote(l.Name)+": names of windows must differ")
		}
	}
}

// sameWindow compares what a window's usage belongs to, so not its limit.
func sameWindow(a, b limit.Window) bool {
	return a.Algorithm == b.Algorithm && a.PeriodNs == b.PeriodNs && a.OffsetNs == b.OffsetNs
}

func windowName(w limit.Window) string {
	s := algorithmName(w.Algorithm) + " of " + FormatDuration(w.PeriodNs)
	if w.OffsetNs > 0 {
		s += " with offset " + FormatDuration(w.OffsetNs)
	}
	return s
}

// Windows are the windows of the rule's limits, in their order.
func (r *Rule) Windows() []limit.Window {
	list := make([]limit.Window, len(r.Limits))
	for i := range r.Limits {
		list[i] = r.Limits[i].Window
	}
	return list
}
