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
	{"per", required(periodShape), "", func(r *reader, v value, l *writtenLimit) {
		if per, ok := parsed(r, v, ParsePeriod); ok {
			r.period(v, per, l)
		}
	}},
	{"name", nameShape, "", func(r *reader, v value, l *writtenLimit) { l.Name = r.windowName(v) }},
	{"algorithm", ofLimits, "", func(r *reader, v value, l *writtenLimit) {
		if v.Kind == String && v.Text == AlgorithmName(limit.Concurrency) {
			l.Algorithm = 0
			r.fail(v, ConcurrencyInLimit)
		} else {
			l.Algorithm = r.algorithm(v)
		}
	}},
	{"burst", integer(0, math.MaxUint32), "", func(r *reader, v value, l *writtenLimit) {
		l.Burst = uint32(r.integer(v))
	}},
	{"offset", durationShape, "", func(r *reader, v value, l *writtenLimit) { l.OffsetNs, _ = r.duration(v) }},
	{"utc_offset", choice("utc_offset", textOf("utc_offset")), "", func(r *reader, v value, l *writtenLimit) {
		ns, ok := ParseUTCOffset(v.Text)
		l.utcOffsetNs = ns
		if !ok || v.Kind != String {
			r.fail(v, WrongValue)
		}
	}},
	{"jitter", choice("percent", integer(1, 100), textOf("percent")), "", func(r *reader, v value, l *writtenLimit) {
		l.Jitter = r.percent(v)
	}},
	{"elastic", boolShape, "false", func(r *reader, v value, l *writtenLimit) { l.Elastic = r.boolean(v) }},
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
	limit.FixedWindow:          "fixed_window",
	limit.FixedWindowPerKey:    "fixed_window_per_key",
	limit.SlidingWindowLog:     "sliding_window_log",
	limit.SlidingWindowCounter: "sliding_window_counter",
	limit.TokenBucket:          "token_bucket",
	limit.Calendar:             "fixed_window",
	limit.Concurrency:          "concurrency", // of whole rules
}

// AlgorithmName is what a policy calls the algorithm.
func AlgorithmName(a limit.Algorithm) string { return algorithmNames[a] }

// algorithm reads the name of an algorithm; it returns 0 if it has reported a problem.
func (r *reader) algorithm(v value) limit.Algorithm {
	return limit.Algorithm(slices.Index(algorithmNames[:], r.word(v)))
}

// ofLimits are the algorithms that a limit may have, ofRules those that a rule may.
var (
	ofLimits = word(algorithmNames[limit.FixedWindow:limit.Calendar]...)
	ofRules  = word(append(ofLimits.Words, AlgorithmName(limit.Concurrency))...)
)

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
	p := problemAt(v, code)
	p.Windows = windows
	p.first = first
	r.add(p, nil)
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
	if l.Algorithm == limit.TokenBucket && l.Requested != nil {
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

// requestsObject is "requests" of a limit if it is an object.
var requestsObject = newObject("requests", []field[RequestedLimit]{
	{"jwt", objectOf("jwt"), "", func(r *reader, v value, n *RequestedLimit) {
		n.Part = KeyPart{Kind: KeyJWT}
		readObject(r, v, jwtObject, &n.Part)
	}},
	{"property", segments, "", func(r *reader, v value, n *RequestedLimit) {
		n.Part = KeyPart{Kind: KeyProperty}
		readProperty(r, v, &n.Part)
	}},
	{"header", tokenShape, "", func(r *reader, v value, n *RequestedLimit) {
		n.Part = KeyPart{Kind: KeyHeader, Name: r.headerName(v)}
	}},
	{"trusted", boolShape, "false", func(r *reader, v value, _ *RequestedLimit) { r.boolean(v) }},
	{"default", required(integer(0, math.MaxUint32)), "", func(r *reader, v value, n *RequestedLimit) {
		n.Default = uint32(r.integer(v))
	}},
	{"max", required(integer(1, math.MaxUint32)), "", func(r *reader, v value, n *RequestedLimit) {
		n.Max = uint32(r.integer(v))
	}},
})

var requests = choice("requests", required(integer(0, math.MaxUint32)), objectOf("requests"))

func readRequests(r *reader, v value, l *writtenLimit) {
	if v.Kind != Object {
		l.Window.Limit = uint32(r.integer(v.as(FormInteger)))
		return
	}
	var n RequestedLimit
	if !readSound(r, v, requestsObject, &n) {
		return
	}
	trusted := v.Member("trusted")
	isTrusted := trusted != nil && trusted.Text == "true"
	switch places := v.hasOf("jwt", "property", "header"); {
	case places == 0:
		r.fail(v, RequestedWithoutPlace)
	case places > 1:
		r.fail(v, RequestedManyPlaces)
	case !isTrusted && !n.Part.isVouchedFor():
		r.fail(v, RequestedUntrusted, n.Part.Label())
	case isTrusted && n.Part.isVouchedFor():
		r.fail(v.field("trusted"), RequestedTrusted, n.Part.Label())
	}
	if n.Default > n.Max {
		r.fail(v.field("default"), RequestedAboveMax, itoa(int64(n.Default)), itoa(int64(n.Max)))
	}
	l.Window.Limit, l.Requested = n.Default, &n
}

// ofProxy are the first segments of properties that configuration and filters of the
// proxy set.
var ofProxy = [...]string{
	"metadata", "filter_state", "xds", "node", "route_metadata", "cluster_metadata", "listener_metadata",
}

// isVouchedFor reports whether the part's value comes from the proxy or from a checked
// token, not from the client alone.
func (p *KeyPart) isVouchedFor() bool {
	return p.Origin() == Verified || p.Kind == KeyProperty && len(p.Path) > 0 && slices.Contains(ofProxy[:], p.Path[0])
}

// placeOfMost is the place of the number that Most returns.
func (l *writtenLimit) placeOfMost(limit value) value {
	at := limit.inObject("requests")
	if l.Requested != nil {
		return at.field("max")
	}
	return at
}

// slotsObject is the item of "limits" of a rule with algorithm concurrency, where it is
// an object.
var slotsObject = newObject("slots", []field[Limit]{
	{"requests", required(integer(0, math.MaxUint32)), "", func(r *reader, v value, l *Limit) {
		l.Limit = uint32(r.integer(v))
	}},
	{"name", nameShape, "", func(r *reader, v value, l *Limit) { l.Name = r.windowName(v) }},
})

// slots reads how many requests may run at once: "10", 10 or {requests: 10}.
func (r *reader) slots(v value, out *Limit) {
	out.Algorithm = limit.Concurrency
	if v.Kind != Object {
		n, ok := v.Integer()
		if v.Kind == String {
			digits, rest := cutDigits(strings.TrimSpace(v.Text))
			n, ok = int64(min(decimal(digits), math.MaxInt64)), digits != "" && rest == ""
		}
		out.Limit = uint32(n)
		if !ok || n < 0 || n > math.MaxUint32 {
			r.fail(v, BadSlots)
		}
		return
	}
	ofWindow := false
	for i := range limitObject.Fields {
		name := limitObject.Fields[i].Name
		isOwn := func(f FieldSchema) bool { return f.Name == name }
		if v.has(name) && !slices.ContainsFunc(slotsObject.Fields, isOwn) {
			ofWindow = true
			r.fail(v.field(name), SlotsField)
		}
	}
	if !ofWindow {
		readObject(r, v, slotsObject, out)
	}
}

// holdSlots makes the rule's hold the period of its window.
func (r *Rule) holdSlots() {
	for i := range r.Limits {
		r.Limits[i].PeriodNs = r.HoldNs
	}
	for i := range r.Overrides {
		for j := range r.Overrides[i].Limits {
			r.Overrides[i].Limits[j].PeriodNs = r.HoldNs
		}
	}
}
