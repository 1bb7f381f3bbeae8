package quotaservice

import (
	"errors"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// group is one ask: all its parts are granted or none, those in shadow aside.
type group struct {
	stream     *Stream
	id         uint32
	startNs    int64
	operations []operation
	left       int // operations that are not finished
	result     quota.Result
}

// finished is called when an operation is. The last one decides about the group, and
// if it undoes some of them, the last of those answers.
func (g *group) finished(o *operation) {
	if errors.Is(o.err, errWindows) {
		g.stream.refused("ask refused", o.err)
	}
	if g.left--; g.left > 0 {
		return
	}
	if g.result == 0 || g.result == quota.Granted && g.stream.closed {
		if g.result = g.conclude(); g.follow() {
			return
		}
	}
	g.answer()
}

func (g *group) conclude() quota.Result {
	result := quota.Granted
	for i := range g.operations {
		switch o := &g.operations[i]; {
		case errors.Is(o.err, quota.ErrHolders) && !o.part.Shadow:
			return quota.Busy
		case o.err != nil && !o.part.Shadow || g.stream.closed:
			return quota.Unavailable
		case o.denied && !o.part.Shadow:
			result = quota.Denied
		}
	}
	return result
}

// follow does what follows from the group's result: it uncounts what some parts were
// granted because others were not, or counts what is denied in shadow. It reports
// whether there is something to do.
func (g *group) follow() bool {
	for i := range g.operations {
		o := &g.operations[i]
		switch {
		case o.err != nil:
			continue
		case g.result != quota.Granted && o.units > 0:
			o.what, o.charge, o.n = undo, o.charged, o.units
		case g.result == quota.Granted && o.denied && o.CountDenied:
			o.what = count
		default:
			continue
		}
		g.left++
		g.stream.service.keys.add(o)
	}
	return g.left > 0
}

// answer answers the ask.
func (g *group) answer() {
	st := g.stream
	s := st.service
	st.open--
	s.open.take(&st.parts, -len(g.operations))
	if !st.crowded() {
		st.goOn()
	}
	became := g.result
	isStarting := func(o operation) bool { return errors.Is(o.err, ErrStarting) }
	if became == quota.Unavailable && slices.ContainsFunc(g.operations, isStarting) {
		became = starting
	}
	s.count.answered(became, s.o.Clock.NowNs()-g.startNs)
	for i := range g.operations { // what could not be undone, and no statement to come takes back
		if o := &g.operations[i]; o.what == undo && o.slots == nil {
			s.count.lost.Add(uint64(o.n - o.units))
		}
	}
	if st.closed {
		s.settle()
		return
	}
	a := quota.AskResult{ID: g.id, Result: g.result}
	if g.result != quota.Granted {
		g.look()
	}
	if g.result == quota.Granted || g.result == quota.Denied || g.result == quota.Unavailable {
		for i := range g.operations {
			s.grants = append(s.grants, g.grant(i))
		}
		a.Grants = s.grants
	}
	st.say(&a)
	s.grants = s.grants[:0]
	s.settle()
}

// look has a denied part stand as its key does since other parts of the key were undone.
func (g *group) look() {
	for i := range g.operations {
		denied := &g.operations[i]
		for j := range g.operations {
			o := &g.operations[j]
			if denied.denied && o.what == undo && o.err == nil && o.key == denied.key && slices.Equal(o.windows, denied.windows) {
				denied.standings = o.standings
			}
		}
	}
}

func (g *group) grant(i int) quota.Grant {
	o := &g.operations[i]
	if o.err != nil && o.what == Hit { // Denied is for proxies that do not know Failed
		p := quota.Grant{Failed: true, Denied: true, WaitNs: second}
		if errors.Is(o.err, ErrStarting) {
			p.Starting, p.Noted, p.WaitNs = true, true, o.waitNs
		}
		return p
	}
	p := quota.Grant{Denied: o.denied || o.what == count, WaitNs: o.waitNs, Held: o.heldBack, Noted: o.stated && o.err == nil, Windows: o.standings}
	if g.result == quota.Granted && o.units > 0 {
		p.Units, p.ValidNs, p.Leased = o.units, o.validNs, o.leased
		if o.slots == nil {
			p.Number = g.stream.remember(o)
		}
		g.stream.service.count.granted.Add(uint64(o.units))
	}
	return p
}
