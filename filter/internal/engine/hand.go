package engine

import (
	"math"
	"slices"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// Quota is what the engine must know of this worker's talk with the quota service.
// The host keeps it true.
type Quota struct {
	TimeoutNs int64
	Stream    uint32 // the open stream's number among all that this proxy has opened
	Silent    bool   // the service has been silent for the timeout: nobody waits
	Late      bool   // the request at hand has waited for the timeout
	Crowded   bool   // too many wait already
}

// Want is what a request needs of one key and this proxy has not.
type Want struct {
	Part   quota.Part
	leases *leases
	place  state.Place
}

// Same reports whether both want units of one key.
func (w *Want) Same(v *Want) bool {
	return w.Part.Definition == v.Part.Definition && w.Part.Key == v.Part.Key
}

// Answer is what the quota service has said of a key.
type Answer struct {
	quota.Grant
	SentNs int64 // when the ask was sent, monotonic
	Stream uint32
	Cost   uint32
}

type handKey struct {
	definition uint32
	key        [16]byte
}

// hand is an answer that is being handed out.
type hand struct {
	Answer
	want  Want
	EndNs int64
	NowNs int64 // when it came
	spent uint32
}

// held is a grant that this worker's stream may return.
type held struct {
	leases *leases
	place  state.Place
	stream uint32
	number uint32 // of the grant
	lookNs int64  // when to look at it next; see lookAt
}

const (
	// maxHeld is how many grants one worker can return.
	maxHeld = 4096
	// maxLookNs is the longest time until a worker looks at a grant again.
	maxLookNs = 1_000_000_000
)

// SetProxies tells all workers how many proxies of the domain are alive.
func (e *Engine) SetProxies(n uint32) {
	if n != e.proxies && n > 0 {
		e.proxies = n
		e.tables.SetProxies(n)
	}
}

// Process is a number that all workers of this proxy process share.
func (e *Engine) Process() uint64 { return e.tables.Process() }

// Definitions are the windows of the cluster rules, by the number that a Want has.
// There are none in a policy without cluster rules.
func (e *Engine) Definitions() []quota.Definition { return e.definitions }

// Wants appends what the pending verdict waits for: one want for each key. Shadow rules
// count last.
func (v *Verdict) Wants(dst []Want) []Want {
	for _, shadow := range [2]bool{false, true} {
		for _, a := range v.Attempts {
			if a.asks() && a.Shadow == shadow {
				dst = a.want(dst, a.Cost)
			}
		}
	}
	return dst
}

// CountWaiting counts a request that has to wait for the first time.
func (v *Verdict) CountWaiting() {
	for _, a := range v.Attempts {
		if a.Pending {
			a.rule.metrics.Waited++
		}
	}
}

// WantsRefill reports whether Refills would append something.
func (v *Verdict) WantsRefill() bool {
	for _, a := range v.Attempts {
		if a.refills() {
			return true
		}
	}
	return false
}

// Refills appends what the requests after this one will need soon.
func (v *Verdict) Refills(dst []Want) []Want {
	for _, a := range v.Attempts {
		if a.refills() {
			dst = a.want(dst, 0)
		}
	}
	return dst
}

// refills reports whether this hit is the one that asks for the key's next units.
func (a *Attempt) refills() bool { return a.rule.leases != nil && !a.Unlimited && a.leased.refill }

// asks reports whether a pending verdict's ask has a part for the attempt: also where it
// has an answer that is gone before the next one comes.
func (a *Attempt) asks() bool { return a.Pending || a.passing() }

// passing reports whether the attempt has an answer that no record keeps.
func (a *Attempt) passing() bool {
	if a.rule.leases == nil || a.Unlimited || a.Cost == 0 || a.rule.policy.Lease != quota.LeaseOff {
		return false
	}
	h := a.leased.hand
	return h != nil && !h.Failed
}

func (a *Attempt) want(dst []Want, cost uint32) []Want {
	l, s := a.leased, a.rule.leases
	k := s.keyOf(a)
	w := Want{leases: s, place: l.entry.Place(), Part: quota.Part{
		Definition: k.definition, Key: k.key, Cost: cost, Waiting: cost, Spent: l.entry.Uncharged,
		Shadow: a.Shadow,
	}}
	if !a.Pending && a.passing() { // it has not read the table
		w.place, w.Part.Spent = l.hand.want.place, 0
	}
	for i := range dst {
		if dst[i].Same(&w) {
			dst[i].Part.Cost = limit.AddSaturating(dst[i].Part.Cost, cost)
			dst[i].Part.Waiting = dst[i].Part.Cost
			return dst
		}
	}
	if s.rule.policy.Lease != quota.LeaseOff {
		rate := l.entry.Rate.Over(l.nowNs, s.refill.RateNs)
		w.Part.Ahead = limit.AddSaturating(rate, rate)
	}
	return append(dst, w)
}

// Receive takes an answer into the hand, for the requests that waited for it.
// Settle must follow.
func (e *Engine) Receive(w *Want, a Answer) {
	if e.hands == nil {
		e.hands = map[handKey]*hand{}
	}
	a.Windows = slices.Clone(a.Windows)
	a.bound(quota.MostWaitNs(e.definitions[w.Part.Definition].Windows))
	e.hands[handKey{w.Part.Definition, w.Part.Key}] = &hand{
		Answer: a, want: *w, NowNs: e.host.Monotonic(), EndNs: a.SentNs + a.ValidNs,
	}
}

// bound brings times that a broken service states to what can be.
func (a *Answer) bound(mostNs int64) {
	a.ValidNs = min(max(a.ValidNs, 0), state.MaxLeaseNs)
	if a.WaitNs != limit.Never {
		a.WaitNs = min(max(a.WaitNs, 0), mostNs)
	}
	for i := range a.Windows {
		st := &a.Windows[i]
		st.ResetNs = min(max(st.ResetNs, 0), mostNs)
	}
}

// Settle stores what the requests have left in the hand, and appends what goes
// back to the service at once.
func (e *Engine) Settle(w *Want, returns []quota.Return) []quota.Return {
	key := handKey{w.Part.Definition, w.Part.Key}
	h := e.hands[key]
	if h == nil {
		return returns
	}
	delete(e.hands, key)
	return h.want.leases.settle(h, returns)
}

// settle stores the answer in the key's record.
func (s *leases) settle(h *hand, returns []quota.Return) []quota.Return {
	e, wall := &s.engine.settling, s.engine.host.Now()
	for try := range maxRetries {
		now := s.engine.host.Monotonic()
		if s.table.ReadAt(e, h.want.place, wall, now) != state.OK {
			break
		}
		if e.Ahead && try == 0 { // by a newer time it can be read, unless it is of another epoch
			continue
		}
		back, lost := s.merge(&e.Lease, h, now)
		switch s.table.Write(e) {
		case state.OK:
			s.rule.metrics.LeaseLost += uint64(lost) + uint64(e.Lost)
			if h.Number != 0 && h.Units > 0 && len(back) == 0 {
				s.engine.hold(held{s, h.want.place, h.Stream, h.Number, s.lookAt(now, now, h.EndNs)})
			}
			return append(returns, back...)
		case state.Mismatch:
			continue
		default:
		}
		break
	}
	return s.giveBack(h, returns)
}

func (s *leases) giveBack(h *hand, returns []quota.Return) []quota.Return {
	if h.Number == 0 || h.Units == 0 {
		return returns
	}
	return append(returns, quota.Return{Grant: h.Number, Units: h.Units})
}

// merge changes the record by the answer. back are units that return to the
// service, lost is how many can not.
func (s *leases) merge(l *state.Lease, h *hand, now int64) (back []quota.Return, lost uint32) {
	l.AskedNs = 0
	if h.Failed {
		l.SilentNs = now + silenceNs
		return nil, 0
	}
	l.SilentNs = 0
	l.Uncharged -= min(l.Uncharged, h.want.Part.Spent)
	l.Standings = l.Standings[:0]
	for _, st := range h.Windows {
		l.Standings = append(l.Standings, state.Standing{Used: st.Used, ResetNs: h.NowNs + st.ResetNs})
	}
	l.Rate.Spent(now, s.refill.RateNs, h.spent)
	if h.Denied {
		if s.rule.policy.Lease != quota.LeaseOff {
			s.remember(l, h, now)
		}
		return nil, 0
	}
	if h.Units == 0 || !h.Leased || now >= h.EndNs {
		return s.giveBack(h, nil), 0
	}
	if l.DeniedCost <= h.Units {
		l.DeniedNs = 0
	}
	lost, ok := l.Put(now, state.Held{Stream: h.Stream, Number: h.Number, Units: h.Units, EndNs: h.EndNs})
	if !ok {
		return s.giveBack(h, nil), 0
	}
	return nil, lost
}

// remember keeps a denial.
func (s *leases) remember(l *state.Lease, h *hand, now int64) {
	cost := h.Cost
	if l.DeniedNs > now {
		cost = min(cost, l.DeniedCost)
	}
	l.DeniedCost, l.PassNs = cost, limit.Never
	wait := int64(silenceNs)
	if h.WaitNs != limit.Never {
		l.PassNs = h.NowNs + h.WaitNs
		wait = min(wait, h.WaitNs)
	}
	l.DeniedNs = now + wait
}

func (e *Engine) hold(h held) {
	if len(e.held) >= maxHeld {
		h.leases.rule.metrics.LeaseLost++ // counted as one: what is left is not known yet
		return
	}
	e.held = append(e.held, h)
	e.lookNs = min(e.lookNs, h.lookNs)
	if idle := h.leases.idleNs; e.idleNs == 0 || idle < e.idleNs {
		e.idleNs = idle
	}
}

// lookAt is when to look at units next that were written last at writtenNs: when they may
// be idle. Spent ones leave the list then, so it is sooner where the list is long.
func (s *leases) lookAt(now, writtenNs, endNs int64) int64 {
	most := int64(maxLookNs)
	if len(s.engine.held) >= maxHeld/2 {
		most /= 20
	}
	return min(writtenNs+s.idleNs, endNs, now+most)
}

// Return appends the units that the worker's stream got and nobody takes any
// more, at most so many grants of them. Call it on a tick.
func (e *Engine) Return(returns []quota.Return, stream uint32, maxGrants int) []quota.Return {
	if len(e.held) == 0 {
		return returns
	}
	now := e.host.Monotonic()
	if now < e.lookNs {
		return returns
	}
	wall, all := e.host.Now(), e.held
	e.held, e.lookNs, e.idleNs = all[:0], math.MaxInt64, 0
	for _, h := range all {
		if h.stream != stream {
			continue // its stream has ended: the units stay counted
		}
		if now < h.lookNs || len(returns) >= maxGrants {
			e.hold(h)
			continue
		}
		units, keep := h.leases.release(&e.settling, &h, wall, now)
		if units > 0 {
			returns = append(returns, quota.Return{Grant: h.number, Units: units})
		}
		if keep {
			e.hold(h)
		}
	}
	return returns
}

// release takes the grant's units out of the record if they are idle. Where it keeps
// them, it notes when to look again.
func (s *leases) release(e *state.LeaseEntry, h *held, wall, now int64) (units uint32, keep bool) {
	for range maxRetries {
		h.lookNs = now + maxLookNs
		if s.table.ReadAt(e, h.place, wall, now) != state.OK {
			return 0, true
		}
		g := h.find(&e.Lease)
		if g == nil {
			return 0, e.Ahead // a later tick can read it
		}
		if now < g.EndNs && now-e.WrittenNs < s.idleNs {
			h.lookNs = s.lookAt(now, e.WrittenNs, g.EndNs)
			return 0, true
		}
		units, g.Units = g.Units, 0
		switch s.table.Write(e) {
		case state.OK:
			return units, false
		case state.Mismatch:
		default:
			return 0, true
		}
	}
	return 0, true
}

// find returns what is left of the grant, nil if nothing is.
func (h *held) find(l *state.Lease) *state.Held {
	for i := range l.Grants {
		if g := &l.Grants[i]; g.Stream == h.stream && g.Number == h.number && g.Units > 0 {
			return g
		}
	}
	return nil
}

// NextReturn is the shortest time after which units that this worker holds count as
// idle, 0 if it holds none.
func (e *Engine) NextReturn() int64 { return e.idleNs }
