package quotaservice

import (
	"errors"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// group is one ask: all its parts are granted or none, those in shadow aside. It goes through
// three phases: its operations are decided, each by its key; then what follows from all of them
// is done, as some may have to be undone; then it is answered.
type group struct {
	stream     *Stream
	id         uint32
	parts      int
	startNs    int64
	operations []operation
	left       int          // operations of the phase that are not finished
	result     quota.Result // 0 = not known yet
}

// begin makes an operation of each part.
func (g *group) begin(parts []quota.Part) {
	st := g.stream
	g.operations = make([]operation, len(parts))
	for i := range parts {
		p := &parts[i]
		d := st.definitions.use(p.Definition)
		if d == nil {
			g.result = quota.Unknown
			return
		}
		g.operations[i] = d.operation(Hit, st.hasher, st.domain.name, p.Key, g)
		g.operations[i].part = *p
	}
	g.left = len(g.operations)
}

// finished is called for each operation that is finished. After the last one of a phase the
// next phase begins.
func (g *group) finished(o *operation) {
	if errors.Is(o.err, errWindows) {
		g.stream.logRefusal("ask refused", o.err)
	}
	g.left--
	if g.left > 0 {
		return
	}
	// A stream may also close while a group follows up what it was granted.
	isDecided := g.result == 0 || g.result == quota.Granted && g.stream.closed
	if isDecided {
		g.result = g.conclude()
		g.followUp()
	}
	if g.left == 0 {
		g.answer()
	}
}

// conclude finds the result of all parts.
func (g *group) conclude() quota.Result {
	result := quota.Granted
	for i := range g.operations {
		o := &g.operations[i]
		if g.stream.closed {
			return quota.Unavailable
		}
		if o.part.Shadow {
			continue
		}
		switch {
		case errors.Is(o.err, quota.ErrHolders):
			return quota.Busy
		case o.err != nil:
			return quota.Unavailable
		case o.denied:
			result = quota.Denied
		}
	}
	return result
}

// followUp does what follows from the result: it uncounts what some parts were granted because
// others were not, or counts what was denied in shadow.
func (g *group) followUp() {
	for i := range g.operations {
		o := &g.operations[i]
		switch {
		case o.err != nil:
			continue
		case g.result != quota.Granted && o.units > 0:
			o.what, o.n = undo, o.units
		case g.result == quota.Granted && o.denied && o.CountDenied:
			o.what = count
		default:
			continue
		}
		g.left++
		g.stream.service.keys.add(o)
	}
}

// answer answers the ask, unless its stream has closed.
func (g *group) answer() {
	st := g.stream
	s := st.service
	st.open--
	g.measure()
	if !st.closed {
		a := quota.AskResult{ID: g.id, Result: g.result}
		if g.result != quota.Granted {
			g.restate()
		}
		if g.result == quota.Granted || g.result == quota.Denied || g.result == quota.Unavailable {
			for i := range g.operations {
				s.grants = append(s.grants, g.grant(&g.operations[i]))
			}
			a.Grants = s.grants
		}
		st.send(&a, g.parts)
		s.grants = s.grants[:0]
	}
	s.endDrain()
}

// measure counts the answer.
func (g *group) measure() {
	s := g.stream.service
	became := g.result
	isStarting := func(o operation) bool { return errors.Is(o.err, ErrStarting) }
	if became == quota.Unavailable && slices.ContainsFunc(g.operations, isStarting) {
		became = starting
	}
	s.count.countAnswer(became, s.o.Clock.NowNs()-g.startNs)
	for i := range g.operations { // what could not be undone, and no later report corrects
		if o := &g.operations[i]; o.what == undo && o.hold == nil {
			s.count.lost.Add(uint64(o.n - o.units))
		}
	}
}

// restate has a denied part stand as its key does since other parts of the key were undone.
func (g *group) restate() {
	for i := range g.operations {
		denied := &g.operations[i]
		if !denied.denied {
			continue
		}
		for j := range g.operations {
			o := &g.operations[j]
			isUndone := o.what == undo && o.err == nil
			if isUndone && o.key == denied.key && slices.Equal(o.windows, denied.windows) {
				denied.standings = o.standings
			}
		}
	}
}

// grant is what one part got.
func (g *group) grant(o *operation) quota.Grant {
	if o.err != nil && o.what == Hit {
		return failedGrant(o)
	}
	p := quota.Grant{
		Denied: o.denied || o.what == count, WaitNs: o.waitNs, Held: o.heldBack,
		Noted: o.noted && o.err == nil, Windows: o.standings,
	}
	if g.result != quota.Granted || o.units == 0 {
		return p
	}
	p.Units, p.Leased = o.units, o.leased
	p.ValidNs = o.validNs
	if o.hold == nil {
		p.Number = g.stream.remember(o)
	}
	g.stream.service.count.granted.Add(uint64(o.units))
	return p
}

// failedGrant is for a key that could not be decided. Denied is for proxies that do not know
// Failed.
func failedGrant(o *operation) quota.Grant {
	p := quota.Grant{Failed: true, Denied: true, WaitNs: second}
	if errors.Is(o.err, ErrStarting) {
		p.Starting, p.Noted = true, true
		p.WaitNs = o.waitNs
	}
	return p
}
