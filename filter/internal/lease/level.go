package lease

import (
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// level is what this worker holds of one key until answers are known, and states to the
// service: with each change, and each eighth of the hold.
type level struct {
	quota.Account
	name       string // counter and key
	worker     uint64 // that states it: an earlier configuration's, where that has ended
	key        [16]byte
	definition *quota.Definition
	asked      *ask  // states it, and has no answer
	listed     bool  // among Worker.due
	saidNs     int64 // when it was stated last
	usedNs     int64 // when a request last wanted units
	silentNs   int64 // until when the service cannot reach the key
	startNs    int64 // until when the store is starting: what is held is stated, and nothing granted
}

// forgetNs is how long nobody must want units of an idle level before it is forgotten: longer
// than a request waits.
const forgetNs = 10_000_000_000

// maxLevels is how many keys a worker states: a service that cannot answer leaves each in
// doubt. on_unavailable decides about one more.
const maxLevels = 1 << 16

// holdNs is how long the service holds the units of a worker that states nothing.
func (l *level) holdNs() int64 { return l.definition.Windows[len(l.definition.Windows)-1].PeriodNs }

// isDue reports whether the service is to hear of the level: it has changed, or an eighth of
// the hold has passed.
func (l *level) isDue(now int64) bool {
	return l.Due() || !l.Idle() && now-l.saidNs >= l.holdNs()/limit.HoldParts
}

// find returns the level of a key, nil where there is none.
func (w *Worker) find(d *quota.Definition, key [16]byte) *level {
	w.name = append(append(w.name[:0], d.Counter[:]...), key[:]...)
	return w.levels[string(w.name)]
}

// levelOf returns the level of a key, a new one where there is none.
func (w *Worker) levelOf(d *quota.Definition, key [16]byte, now int64) *level {
	l := w.find(d, key)
	if l == nil {
		l = &level{name: string(w.name), worker: w.id, key: key}
		w.levels[l.name] = l
	}
	l.definition, l.usedNs = d, now
	return l
}

// remember returns the level of l's key by now: l again where it was forgotten.
func (w *Worker) remember(l *level) *level {
	if other := w.levels[l.name]; other != nil {
		return other
	}
	w.levels[l.name] = l
	return l
}

// state has the level stated with the next message.
func (w *Worker) state(l *level) {
	if !l.listed {
		l.listed = true
		w.due = append(w.due, l)
	}
}

// HasNews reports whether there is something to state: see Client.State.
func (w *Worker) HasNews() bool { return len(w.due) > 0 }

// State states what has changed.
func (c *Client) State(now int64) { c.flush(now) }

// queueLevels queues an ask for nothing for each level that is to be stated, unless an ask is
// queued already that states it. They take what requests leave of a message, at least half, and
// wait for answers before there are more. So maxLevels that are due at once take 129 messages:
// with round trips of up to 15 ms a store that is starting hears of all of them before it grants
// units.
func (c *Client) queueLevels(now int64) {
	due, stating, others, n := c.worker.due, 0, 0, 0
	if len(due) == 0 {
		return
	}
	for _, asks := range [...][]*ask{c.queue, c.sent} {
		for _, a := range asks {
			if len(a.waiters) == 0 && a.parts[0].level != nil {
				stating++
			} else {
				others++
			}
		}
	}
	room := max(mostAsks/2, mostAsks-others) - stating
	for ; n < len(due) && room > 0; n++ {
		l := due[n]
		if l.listed = false; l.asked == nil && l.silentNs <= now && l.isDue(now) {
			c.want([]Part{{definition: l.definition, level: l, Part: quota.Part{Definition: l.definition.ID, Key: l.key}}}, nil)
			room--
		}
	}
	left := copy(due, due[n:])
	clear(due[left:])
	c.worker.due = due[:left]
}

// isAsked reports whether an ask is under way that states one of the levels.
func (a *ask) isAsked() bool {
	for i := range a.parts {
		if l := a.parts[i].level; l != nil && l.asked != nil {
			return true
		}
	}
	return false
}

// state puts the levels of the ask's keys, as they are now, into its parts.
func (a *ask) state(w *Worker, now int64) {
	for i := range a.parts {
		p, earlier := &a.parts[i], uint32(0)
		if p.level == nil {
			continue
		}
		p.level = w.remember(p.level)
		for _, before := range a.parts[:i] {
			if before.level == p.level {
				earlier = limit.AddSaturating(earlier, before.Waiting)
			}
		}
		w.number++
		p.Report = p.level.Report(p.level.worker, w.number, earlier)
		p.level.asked, p.level.saidNs = a, now
	}
}

// forgo ends the wait for an ask's answer: one that comes later grants nothing of levels.
// They are stated anew, without a worker only once renew looks: the service refuses them now.
func (a *ask) forgo(w *Worker) {
	for i := range a.parts {
		if l := a.parts[i].level; l != nil && l.asked == a {
			if l.asked = nil; w != nil {
				w.state(l)
			}
		}
	}
}

// heard takes what an answer says of the part's level. Units are held by an answer to the
// last statement alone.
func (g *grant) heard(a *ask, i int, w *Worker) {
	p := &a.parts[i]
	l, last := p.level, true
	for j := i + 1; j < len(a.parts); j++ {
		last = last && a.parts[j].level != l
	}
	switch {
	case l.asked != a:
		g.Failed = true
	case !last: // the later part has stated the level anew
	case !g.Noted: // or a service that knows no levels
		g.Failed = true
		l.silentNs = g.nowNs + silenceNs
	default:
		l.Noted(p.Number, g.Units)
	}
	if last && l.asked == a {
		l.asked = nil
	}
	if g.Starting {
		l.startNs = g.nowNs + min(g.WaitNs, silenceNs)
	}
	w.state(l)
}

// restate has all that is held stated anew: the service, or its store, may have lost it.
func (w *Worker) restate(now int64) {
	for _, l := range w.levels {
		if !l.Idle() {
			l.saidNs = now - l.holdNs()
			w.state(l)
		}
	}
}

// renew has each level stated that is to be, and forgets those that hold nothing.
func (c *Client) renew(now int64) {
	w := c.worker
	if len(w.levels) == 0 || now < w.renewNs {
		return
	}
	w.renewNs = now + maxLookNs
	for name, l := range w.levels {
		switch {
		case l.isDue(now):
			w.state(l)
		case l.Idle() && now-l.usedNs > forgetNs+w.TimeoutNs:
			delete(w.levels, name)
		}
	}
}

// Inherit takes over what an earlier configuration of this VM holds, and states it: without a
// stream nobody tells the worker that the store has lost it.
func (c *Client) Inherit(from *Client) {
	w, old := c.worker, from.worker
	w.number = max(w.number, old.number)
	definitions := map[*quota.Definition]*quota.Definition{}
	for _, l := range old.levels {
		if l.Idle() {
			continue
		}
		d := definitions[l.definition]
		if d == nil {
			d = new(quota.Definition)
			*d = *l.definition
			w.lastID = max(w.lastID+1, uint32(len(w.Definitions)))
			d.ID, definitions[l.definition] = w.lastID, d
		}
		if l.worker == old.id { // the key may have a level here
			l.name += strconv.FormatUint(l.worker, 16)
		}
		l.definition, l.asked, l.listed = d, nil, false
		w.levels[l.name] = l
	}
	w.restate(w.host.Monotonic())
	clear(old.levels)
}
