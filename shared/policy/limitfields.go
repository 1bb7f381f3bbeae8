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
		doc: "Units allowed in the window, or that a token_bucket gains in it; 0 always denies.",
		read: func(r *reader, v value, l *Limit) {
			n := r.integer(v)
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
		name: "burst", shape: integer(0, math.MaxUint32),
		doc: "The most tokens a token_bucket holds; default is its requests.",
		read: func(r *reader, v value, l *Limit) {
			n := r.integer(v)
			l.Burst = uint32(n)
		},
	},
	{
		name: "offset", shape: shape{form: formDuration},
		doc:  "Shifts the windows of fixed_window on the clock: 7d with offset 4d starts on Mondays UTC. Less than per.",
		read: func(r *reader, v value, l *Limit) { l.OffsetNs, _ = r.duration(v) },
	},
	{
		name: "jitter", shape: choice("percent", `a percentage from 1 to 100 such as 25 or "25%"`),
		doc:  "Shifts the windows of fixed_window by up to that percentage of per, each key's by its own constant, so that not all keys start anew at once.",
		read: func(r *reader, v value, l *Limit) { l.Jitter = readPercent(r, v) },
	},
	{
		name: "elastic", shape: boolean(), def: "false",
		doc:  "Deprecated: every counted hit moves the end of a fixed_window_per_key to per from now.",
		read: func(r *reader, v value, l *Limit) { l.Elastic = r.boolean(v) },
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

func readPercent(r *reader, v value) uint8 {
	text, isText := strings.CutSuffix(v.node.Text, "%")
	if v.node.Kind == Number && !isText || v.node.Kind == String && isText {
		if n, fault := integerOf(text); fault == nil && n >= 1 && n <= 100 {
			return uint8(n)
		}
	}
	r.mismatch(v)
	return 0
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
	start := len(r.errs) + r.dropped
	if len(v.node.Items) > 0 {
		rule.Limits = make([]Limit, len(v.node.Items))
	}
	for i := range rule.Limits {
		at, l := v.item(i, objectOf("limit")), &rule.Limits[i]
		before := len(r.errs) + r.dropped
		readLimit(r, at, l)
		if len(r.errs)+r.dropped == before {
			r.distinct(at, v.at, rule.Limits[:i], l)
		} else {
			*l = Limit{} // keeps the indexes of the others
		}
		if l.Elastic {
			r.warn(fieldAt(at, "elastic"), "is deprecated, and here for policies of Python limits: a client that never pauses for "+FormatDuration(l.PeriodNs)+" gets no new window; leave it out, or use sliding_window_log")
		}
	}
	r.rule.limits = r.rule.algorithm != 0 && len(r.errs)+r.dropped == start
}

func readLimit(r *reader, v value, l *Limit) {
	l.Algorithm = r.rule.algorithm
	before := len(r.errs) + r.dropped
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
		if !readObject(r, v, limitFields, l) {
			return
		}
	default:
		r.fail(v, "must be a limit, not "+describe(v.node)+`: write one such as "10/minute" or {requests: 10, per: 1m}`)
		return
	}
	r.fitsAlgorithm(v, l)
	if len(r.errs)+r.dropped == before {
		r.cautions(v, l)
	}
}

// distinct refuses a window that is, or is named, like one before it.
func (r *reader) distinct(v value, list place, before []Limit, l *Limit) {
	for i := range before {
		other := &before[i]
		if other.PeriodNs != 0 && other.Same(l.Window) {
			r.fail(v, "is the same window as "+list.item(i).String()+" ("+windowName(l.Window)+"): keep the one with the smaller limit")
		}
		if l.Name != "" && other.Name == l.Name {
			r.fail(v, "has the name of "+list.item(i).String()+", "+quote(l.Name)+": names of windows must differ")
		}
	}
}

// Windows are the windows of the rule's limits, in their order.
func (r *Rule) Windows() []limit.Window { return windowsOf(r.Limits) }

func windowsOf(limits []Limit) []limit.Window {
	list := make([]limit.Window, len(limits))
	for i := range limits {
		list[i] = limits[i].Window
	}
	return list
}
