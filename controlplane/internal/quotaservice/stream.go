package quotaservice

import (
	"context"
	"slices"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// maxStreams bounds the memory for streams.
const maxStreams = 10_000

// Stream is one worker's stream, as its transport uses it, and locks the core for that. The transport calls Receive for
// each message that comes. It takes what is to be sent from Next, and calls Sent once that is sent. It reads a message
// once all asks of the last one have begun, so that a stream has one message decoded.
//
// There are two transports: gRPC, and the simulated one of package fleet. The errors of Open and Receive are gRPC
// statuses, because both tell the worker their codes.
type Stream struct {
	service   *Service
	peer      Peer
	onAnswers func()
	domain    string        // empty before the first message; Receive alone uses it
	begun     chan struct{} // see WaitUntilBegun
	worker    worker        // part of the core
}

// Open begins a stream. onAnswers is called when Next has something; it must not wait.
func (s *Service) Open(p Peer, onAnswers func()) (*Stream, error) {
	st := &Stream{service: s, peer: p, onAnswers: onAnswers, begun: make(chan struct{}, 1)}
	st.worker = worker{
		core: &s.core, stream: st, definitions: newDefinitions(), rate: rate.NewLimiter(asksPerSecond, burstAsks),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.core.draining:
		return nil, status.Error(codes.Unavailable, ErrClosed.Error())
	case len(s.core.workers) >= maxStreams:
		return nil, status.Errorf(codes.ResourceExhausted, "%d streams are open, no more are served", maxStreams)
	}
	s.core.workers[&st.worker] = struct{}{}
	return st, nil
}

// Receive takes a message: its definitions, what it returns, and its asks, which wait for the
// stream's turn. An error ends the stream.
func (st *Stream) Receive(message []byte) error {
	var m quota.Asks
	if err := m.Decode(message); err != nil {
		return status.Errorf(codes.InvalidArgument, "read a message of %d bytes: %v", len(message), err)
	}
	if err := st.checkDomain(m.Domain); err != nil {
		return err
	}
	err := st.accept(&m)
	st.service.pump() // also if it is refused: returns may have been taken
	return err
}

// checkDomain refuses a message of a domain that the peer may not ask for, or of another one than the stream's.
func (st *Stream) checkDomain(domain string) error {
	switch {
	case st.domain == "" && domain == "":
		return status.Error(codes.InvalidArgument, "the first message of a stream must name its domain")
	case st.domain == "":
		if err := st.service.o.Allow(st.peer, domain); err != nil {
			return status.Errorf(codes.PermissionDenied, "domain %q: %v", domain, err)
		}
		st.domain = domain
	case domain != "" && domain != st.domain:
		return status.Errorf(codes.InvalidArgument, "the stream is of domain %q: another needs a stream of its own",
			st.domain)
	}
	return nil
}

// accept takes the definitions, returns and asks of a message. A message that is refused has its returns taken, because
// its worker cannot return them on another stream.
func (st *Stream) accept(m *quota.Asks) error {
	s, w := st.service, &st.worker
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.closed { // the message came just before: nobody waits for its answers any more
		return nil
	}
	if w.domain == nil {
		w.join(m)
	}
	for _, r := range m.Returns {
		w.takeReturn(r)
	}
	if s.core.draining {
		return status.Error(codes.Unavailable, ErrClosed.Error())
	}
	if s.apart.Load() {
		return status.Error(codes.Unavailable, errOtherSecret.Error())
	}
	w.hasher = w.hasher.withSecret(s.secret.Load())
	for i := range m.Definitions {
		w.define(&m.Definitions[i])
	}
	w.enqueue(m.Asks)
	return nil
}

// WaitUntilBegun returns once all asks have begun, or ctx ends.
func (st *Stream) WaitUntilBegun(ctx context.Context) {
	for st.hasPending() {
		select {
		case <-st.begun:
		case <-ctx.Done():
			return
		}
	}
}

// hasPending reports whether asks have not begun.
func (st *Stream) hasPending() bool {
	st.service.mu.Lock()
	defer st.service.mu.Unlock()
	return len(st.worker.pending) > 0
}

// Next returns the bytes of the next message; ok says that there is one. The caller sends it, and calls Sent before it
// calls Next again.
func (st *Stream) Next() (message []byte, ok bool) {
	st.service.mu.Lock()
	defer st.service.mu.Unlock()
	return st.worker.next()
}

// Sent says that the message which Next returned last is sent. Then a stream that had too many unsent answers may have
// a turn again.
func (st *Stream) Sent() {
	st.service.mu.Lock()
	isQueued := st.worker.noteSent()
	st.service.mu.Unlock()
	if isQueued {
		st.service.pump()
	}
}

// Idle reports whether all asks are answered and the answers taken.
func (st *Stream) Idle() bool {
	st.service.mu.Lock()
	defer st.service.mu.Unlock()
	w := &st.worker
	return len(w.pending) == 0 && w.begunAsks == 0 && len(w.unsent) == 0
}

// Ending reports whether the stream is to end: see Service.Watch.
func (st *Stream) Ending() bool {
	st.service.mu.Lock()
	defer st.service.mu.Unlock()
	return st.worker.ending
}

// Close ends the stream. What is being granted to it is given back.
func (st *Stream) Close() {
	st.service.mu.Lock()
	defer st.service.mu.Unlock()
	st.worker.leave()
}

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

// worker is a Stream's part of the core: what the worker has asked, and is to be answered. An ask goes through these,
// and is counted meanwhile:
//
//	           is in             until       counted in
//	enqueue    pending           beginNext
//	beginNext  a begunAsk        it answers  begunAsks, underWay
//	send       unsent            Next        underWay
//	Next       the stream sends  Sent        underWay, sending
//
// begunAsks counts asks. The others sum up begunAsk.weight, which is about how large the answers are.
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
	queued   bool // it is in core.turns, or has its turn

	pending   []pendingAsk
	begunAsks int // that are not answered yet
	underWay  int // weight of what has begun and whose answer is not sent yet
	unsent    []unsentMessage
	sending   int // weight of the message which Next returned last; 0 = it is sent
}

// domain is what workers of one domain share.
type domain struct {
	name    string
	workers int
	proxies uint32 // that are alive, over all services
}

// unsentMessage has answers.
type unsentMessage struct {
	bytes  []byte
	weight int // sum of begunAsk.weight of what is answered
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

// beginNext begins the worker's next asks.
func (w *worker) beginNext() {
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
	w.queued = false
	w.queue()
	w.core.endDrain() // asks may have been answered at once
}

// noteBegun has Stream.WaitUntilBegun look again.
func (w *worker) noteBegun() {
	select {
	case w.stream.begun <- struct{}{}:
	default:
	}
}

// send lets an answer to an ask of that begunAsk.weight wait for Next.
func (w *worker) send(result *quota.AskResult, weight int) {
	c := w.core
	last := len(w.unsent) - 1
	if last < 0 || len(w.unsent[last].bytes) >= enoughAnswers {
		w.unsent = append(w.unsent, unsentMessage{bytes: make([]byte, 0, 512)})
		last++
	}
	c.message.Results = append(c.message.Results[:0], *result)
	w.unsent[last].bytes = c.message.Append(w.unsent[last].bytes)
	w.unsent[last].weight += weight
	c.notifyLater(w)
}

// next takes the next message.
func (w *worker) next() (message []byte, ok bool) {
	if len(w.unsent) == 0 {
		return nil, false
	}
	next := w.unsent[0]
	w.unsent = slices.Delete(w.unsent, 0, 1)
	w.sending = next.weight
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
