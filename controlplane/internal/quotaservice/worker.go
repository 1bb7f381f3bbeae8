package quotaservice

import (
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	// One worker may ask so often: more than one core serves.
	asksPerSecond, burstAsks = 100_000, 20_000
	// turn is how many parts of asks a worker begins before it is the next one's turn.
	turn = 16
	// maxUnderWay bounds worker.underWay: a worker that does not read its answers has no further turn. A message of
	// the filter has at most 510 parts (mostAsks there). With three windows each, all begin at once. If they have more
	// windows, the last parts begin once answers to the first ones are sent.
	maxUnderWay = 2048
	// enoughAnswers is when a message takes no further answer. One takes at most 8 KiB.
	enoughAnswers = 8 << 10
)

// worker is who asks by a stream: what it has asked, and is to be answered. An ask goes through these, and is counted
// meanwhile:
//
//	          is in             until       counted in
//	enqueue   pending           takeTurn    open
//	takeTurn  a begunAsk        it answers  open, underWay
//	send      unsent            Next        underWay
//	Next      the stream sends  Next again  underWay, sending
type worker struct {
	core        *core
	stream      *Stream
	rate        *rate.Limiter
	domain      *domain // nil before the first message
	process     uint64
	definitions definitions
	hasher      *hasher
	returnables returnables

	closed   bool
	ending   bool // it is to report all that it holds anew, on another stream
	notified bool // it is in core.toNotify
	queued   bool // it is in core.turns

	pending  []pendingAsk
	open     int // asks that have no answer yet
	underWay int // sum of begunAsk.size of what has begun and whose answer is not sent yet
	unsent   []unsentMessage
	sending  int // unsentMessage.size of the message which Next returned last
}

// domain is what workers of one domain share.
type domain struct {
	name    string
	workers int
	proxies uint32 // that are alive, over all services
}

// unsentMessage has answers.
type unsentMessage struct {
	bytes []byte
	size  int // sum of begunAsk.size of what is answered
}

// join takes the domain and the process of the first message.
func (w *worker) join(m *quota.Asks) {
	c := w.core
	d := c.domains[m.Domain]
	if d == nil {
		d = &domain{name: m.Domain}
		c.domains[m.Domain] = d
	}
	d.workers++
	w.domain, w.process = d, m.Process
	c.asked = true
	process := m.Process
	c.clock.AfterFunc(0, func() { c.service.noteAlive(d, process) }) // the store may be silent, and asks wait for nothing
}

// define keeps a definition. Asks that name one that is refused are answered Unknown, also if its number had another.
func (w *worker) define(d *quota.Definition) {
	c, err := newCounter(w.domain.name, d)
	if err != nil {
		w.logRefusal("definition refused", err)
		w.definitions.drop(d.ID)
		return
	}
	w.definitions.put(d.ID, c)
}

// enqueue lets asks wait for the worker's turn. If it asks too often, they are only answered then.
func (w *worker) enqueue(asks []quota.Ask) {
	localNs := w.core.clock.NowNs()
	isBusy := !w.rate.AllowN(time.Unix(0, localNs), len(asks))
	w.open += len(asks)
	w.pending = slices.Grow(w.pending, len(asks))
	for i := range asks {
		w.pending = append(w.pending, pendingAsk{asks[i], localNs, isBusy})
	}
	w.queue()
}

// queue lets the worker wait for its turn, if it has asks to begin and its answers are read. It reports whether
// the worker waits only now.
func (w *worker) queue() bool {
	if w.queued || len(w.pending) == 0 || w.underWay >= maxUnderWay {
		return false
	}
	w.queued = true
	w.core.turns = append(w.core.turns, w)
	return true
}

// isStuck reports whether all open asks wait for the worker to read its answers.
func (w *worker) isStuck() bool { return !w.queued && w.open == len(w.pending) }

// takeTurn begins the worker's next asks.
func (w *worker) takeTurn() {
	w.queued = false
	for parts := 0; parts < turn && len(w.pending) > 0; {
		ask := &w.pending[0]
		parts += len(ask.Parts)
		w.begin(ask)
		w.pending = w.pending[1:]
	}
	if len(w.pending) == 0 {
		w.pending = nil
		w.noteBegun()
	}
	w.queue()
}

// begin begins an ask: its hits wait for their keys.
func (w *worker) begin(ask *pendingAsk) {
	a := &begunAsk{worker: w, id: ask.ID, askedNs: ask.askedNs}
	a.steps = newSteps(a, &w.core.keys)
	windows, isKnown := 0, false
	if !ask.isBusy {
		windows, isKnown = a.makeParts(ask.Parts)
	}
	a.size = len(ask.Parts) + windows
	w.underWay += a.size
	switch {
	case ask.isBusy:
		a.result = quota.Busy
		a.answer()
	case !isKnown:
		a.result = quota.Unknown
		a.answer()
	default:
		a.startHits()
	}
}

// noteBegun has Stream.WaitUntilBegun look again.
func (w *worker) noteBegun() {
	select {
	case w.stream.begun <- struct{}{}:
	default:
	}
}

// takeReturn uncounts units that the proxy returns.
func (w *worker) takeReturn(r quota.Return) {
	c := w.core
	g, units := w.returnables.takeReturned(r)
	if g == nil {
		c.metrics.unitsLost.Add(uint64(r.Units))
		return
	}
	if units == 0 {
		return
	}
	uncounts := &action.Return{Units: units, Counted: g.counted}
	c.keys.add(&keyOperation{
		Operation: action.Operation{Terms: g.terms, Action: uncounts, Shifted: g.shifted},
		storeKey:  g.storeKey, domain: w.domain.name, owner: returned{c.metrics, units},
	})
}

// returned owns an operation that uncounts returned units: nobody waits for it, so it only
// measures how many could still be uncounted.
type returned struct {
	metrics *metrics
	units   uint32
}

func (r returned) operationDone(o *keyOperation) {
	r.metrics.unitsReturned.Add(uint64(o.Outcome.Uncounted))
	r.metrics.unitsLost.Add(uint64(r.units - o.Outcome.Uncounted))
}

// remember notes what a hit was granted, for its return, and returns the grant's number.
func (w *worker) remember(o *keyOperation) (number uint32) {
	return w.returnables.add(returnable{
		terms: o.Terms, shifted: o.Shifted, storeKey: o.storeKey,
		counted: o.Outcome.Taken.Counted, units: o.Outcome.Taken.Units, atNs: w.core.clock.NowNs(),
	})
}

// send lets an answer to an ask of that begunAsk.size wait for Next.
func (w *worker) send(result *quota.AskResult, size int) {
	c := w.core
	last := len(w.unsent) - 1
	if last < 0 || len(w.unsent[last].bytes) >= enoughAnswers {
		w.unsent = append(w.unsent, unsentMessage{bytes: make([]byte, 0, 512)})
		last++
	}
	c.message.Results = append(c.message.Results[:0], *result)
	w.unsent[last].bytes = c.message.Append(w.unsent[last].bytes)
	w.unsent[last].size += size
	c.notifyLater(w)
}

// next takes the next message.
func (w *worker) next() (message []byte, ok bool) {
	if len(w.unsent) == 0 {
		return nil, false
	}
	next := w.unsent[0]
	w.unsent = slices.Delete(w.unsent, 0, 1)
	w.sending = next.size
	m := quota.Results{Proxies: w.domain.proxies} // appended to the results, it is one message with them
	return m.Append(next.bytes), true
}

// noteSent notes that the message which next returned last is sent. It reports whether the worker waits for its turn
// only now.
func (w *worker) noteSent() bool {
	w.underWay -= w.sending
	w.sending = 0
	return w.queue()
}

// leave ends what the worker has asked.
func (w *worker) leave() {
	if w.closed {
		return
	}
	c := w.core
	w.closed = true
	w.open -= len(w.pending)
	w.pending, w.unsent = nil, nil
	w.returnables = returnables{}
	delete(c.workers, w)
	if w.domain != nil {
		w.leaveDomain()
	}
	c.endDrain()
}

// leaveDomain takes the worker off its domain, which ends with the last one.
func (w *worker) leaveDomain() {
	d := w.domain
	d.workers--
	if d.workers == 0 {
		delete(w.core.domains, d.name)
	}
}

// logRefusal logs why something is refused, without a key, and not more often than a log takes.
func (w *worker) logRefusal(what string, err error) {
	w.core.log.Warn(what, "address", w.stream.peer.Address, "domain", w.domain.name, "error", err)
}
