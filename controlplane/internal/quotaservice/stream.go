package quotaservice

import (
	"context"
	"slices"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	// One stream may ask so often: more than one core serves.
	asksPerSecond, burstAsks = 100_000, 20_000
	// turn is how many parts of asks a stream begins before it is the next stream's turn.
	turn = 16
	// maxUnderWay is how many parts that have begun may be without an answer that is sent: a
	// stream that does not read its answers has no further turn. A worker has no more waiting.
	maxUnderWay = 1024
	// maxStreams bounds the memory for streams.
	maxStreams = 10_000
	// enoughAnswers is when a message takes no further answer. One takes at most 8 KiB.
	enoughAnswers = 8 << 10
)

// Stream is one worker's stream. Its transport calls Receive for each message that comes, and
// takes what is to be sent from Next. It reads a message once all asks of the last one have
// begun, so that a stream has one message decoded. An ask goes through these, and is counted meanwhile:
//
//	enqueue         takeTurn        send            Next            Next again
//	   └──▶ pending ────▶ a group ────▶ answers ────▶ sending ────────▶ sent
//	   └───────────── open ─────────┘
//	                 └───────────── partsUnderWay ──────────────────────┘
type Stream struct {
	service   *Service
	peer      Peer
	onAnswers func()
	rate      *rate.Limiter
	begun     chan struct{} // see WaitUntilBegun

	// The service's lock guards the rest.
	domain        *domain // nil before the first message; Receive alone changes it
	process       uint64
	definitions   definitions
	secret        *[]byte // of the hasher
	hasher        *hasher
	closed        bool
	ending        bool // the worker is to report all that it holds anew, on another stream
	notified      bool // it is in Service.toNotify
	queued        bool // it waits for its turn
	awaited       bool // somebody is in WaitUntilBegun
	pending       []pendingAsk
	open          int // asks that have no answer yet
	partsUnderWay int // that have begun and whose answer is not sent yet
	answers       []answers
	sending       int // parts that the message answers which Next returned last
	grants        grants
}

// domain is what streams of one domain share.
type domain struct {
	name    string
	streams int
	proxies uint32 // that are alive, over all services
}

// pendingAsk has not begun.
type pendingAsk struct {
	quota.Ask
	askedNs int64
	isBusy  bool // the stream asks too often
}

// answers are a message to be sent.
type answers struct {
	bytes []byte
	parts int // that are answered
}

// Open begins a stream. onAnswers is called when Next has something; it must not wait.
func (s *Service) Open(p Peer, onAnswers func()) (*Stream, error) {
	st := &Stream{
		service: s, peer: p, onAnswers: onAnswers, definitions: newDefinitions(),
		rate: rate.NewLimiter(asksPerSecond, burstAsks), begun: make(chan struct{}, 1),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.draining:
		return nil, status.Error(codes.Unavailable, ErrClosed.Error())
	case len(s.streams) >= maxStreams:
		return nil, status.Errorf(codes.ResourceExhausted, "%d streams are open, no more are served", maxStreams)
	}
	s.streams[st] = struct{}{}
	return st, nil
}

// Receive takes a message: its definitions, what it returns, and its asks, which wait for the
// stream's turn. An error ends the stream; it is a gRPC status.
func (st *Stream) Receive(message []byte) error {
	var m quota.Asks
	if err := m.Decode(message); err != nil {
		return status.Errorf(codes.InvalidArgument, "read a message of %d bytes: %v", len(message), err)
	}
	if err := st.checkDomain(m.Domain); err != nil {
		return err
	}
	if err := st.accept(&m); err != nil {
		return err
	}
	st.service.pump()
	return nil
}

// checkDomain refuses a message of a domain that the peer may not ask for, or of another one than the stream's. It is
// called while mu is free, because Options.Allow may take long. It may read domain, which Receive alone changes.
func (st *Stream) checkDomain(domain string) error {
	switch {
	case st.domain == nil && domain == "":
		return status.Error(codes.InvalidArgument, "the first message of a stream must name its domain")
	case st.domain == nil:
		if err := st.service.o.Allow(st.peer, domain); err != nil {
			return status.Errorf(codes.PermissionDenied, "domain %q: %v", domain, err)
		}
	case domain != "" && domain != st.domain.name:
		return status.Errorf(codes.InvalidArgument, "the stream is of domain %q: another needs a stream of its own",
			st.domain.name)
	}
	return nil
}

// join takes the domain and the process of the first message.
func (st *Stream) join(m *quota.Asks) {
	s := st.service
	d := s.domains[m.Domain]
	if d == nil {
		d = &domain{name: m.Domain}
		s.domains[m.Domain] = d
	}
	d.streams++
	st.domain, st.process = d, m.Process
	s.asked = true
	process := m.Process
	s.o.Clock.AfterFunc(0, func() { s.noteAlive(d, process) }) // the store may be silent, and asks wait for nothing
}

// accept takes the definitions, returns and asks of a message. It locks the service.
func (st *Stream) accept(m *quota.Asks) error {
	s := st.service
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.domain == nil {
		st.join(m)
	}
	if s.draining {
		return status.Error(codes.Unavailable, ErrClosed.Error())
	}
	if s.apart.Load() {
		return status.Error(codes.Unavailable, errOtherSecret.Error())
	}
	if secret := s.secret.Load(); st.secret != secret {
		st.secret, st.hasher = secret, newHasher(*secret)
	}
	for i := range m.Definitions {
		st.define(&m.Definitions[i])
	}
	for _, r := range m.Returns {
		st.giveBack(r)
	}
	st.enqueue(m.Asks)
	return nil
}

// define keeps a definition. One that is refused is kept as broken.
func (st *Stream) define(d *quota.Definition) {
	own, err := newDefinition(st.domain.name, d)
	if err != nil {
		st.logRefusal("definition refused", err)
	}
	st.definitions.put(own)
}

// enqueue lets asks wait for the stream's turn. If it asks too often, they are only answered then.
func (st *Stream) enqueue(asks []quota.Ask) {
	localNs := st.service.o.Clock.NowNs()
	isBusy := !st.rate.AllowN(time.Unix(0, localNs), len(asks))
	st.open += len(asks)
	for i := range asks {
		st.pending = append(st.pending, pendingAsk{asks[i], localNs, isBusy})
	}
	st.queue()
}

// queue lets the stream wait for its turn, if it has asks to begin and its answers are read. It reports whether
// the stream waits only now.
func (st *Stream) queue() bool {
	if st.queued || len(st.pending) == 0 || st.partsUnderWay >= maxUnderWay {
		return false
	}
	st.queued = true
	st.service.turns = append(st.service.turns, st)
	return true
}

// isStuck reports whether all open asks wait for the stream to read its answers.
func (st *Stream) isStuck() bool { return !st.queued && st.open == len(st.pending) }

// takeTurn begins the stream's next asks.
func (st *Stream) takeTurn() {
	st.queued = false
	for parts := 0; parts < turn && len(st.pending) > 0; {
		ask := &st.pending[0]
		parts += len(ask.Parts)
		st.begin(ask)
		st.pending = st.pending[1:]
	}
	if len(st.pending) == 0 {
		st.pending = nil
		st.noteBegun()
	}
	st.queue()
}

// begin makes a group of an ask, and lets its operations wait for their keys.
func (st *Stream) begin(ask *pendingAsk) {
	g := &group{stream: st, id: ask.ID, size: len(ask.Parts), askedNs: ask.askedNs}
	st.partsUnderWay += g.size
	switch {
	case ask.isBusy:
		g.result = quota.Busy
		g.answer()
	case !g.makeParts(ask.Parts):
		g.result = quota.Unknown
		g.answer()
	default:
		g.startHits()
	}
}

// WaitUntilBegun returns once all asks have begun, or ctx ends. It locks the service.
func (st *Stream) WaitUntilBegun(ctx context.Context) {
	for st.awaitsBegin() {
		select {
		case <-st.begun:
		case <-ctx.Done():
			return
		}
	}
}

// awaitsBegin reports whether asks have not begun. noteBegun signals then. It locks the service.
func (st *Stream) awaitsBegin() bool {
	st.service.mu.Lock()
	defer st.service.mu.Unlock()
	st.awaited = len(st.pending) > 0
	return st.awaited
}

// noteBegun has WaitUntilBegun look again.
func (st *Stream) noteBegun() {
	if !st.awaited {
		return
	}
	select {
	case st.begun <- struct{}{}:
	default:
	}
}

// giveBack uncounts returned units.
func (st *Stream) giveBack(r quota.Return) {
	s := st.service
	g, units := st.grants.redeem(r)
	if g == nil {
		s.metrics.lost.Add(uint64(r.Units))
		return
	}
	if units == 0 {
		return
	}
	gives := &action.GiveUp{Units: units, Counted: g.counted}
	s.keys.add(&operation{
		Operation: action.Operation{Definition: g.definition, Action: gives, Shifted: g.shifted},
		storeKey:  g.storeKey, domain: st.domain.name, owner: returned{&s.metrics, units},
	})
}

// returned owns an operation that uncounts returned units: nobody waits for it, so it only
// measures how many could still be uncounted.
type returned struct {
	metrics *metrics
	units   uint32
}

func (r returned) operationDone(o *operation) {
	r.metrics.returned.Add(uint64(o.Uncounted))
	r.metrics.lost.Add(uint64(r.units - o.Uncounted))
}

// remember notes what a hit was granted, for its return, and returns the grant's number.
func (st *Stream) remember(o *operation) (number uint32) {
	return st.grants.add(granted{
		definition: o.Definition, shifted: o.Shifted, storeKey: o.storeKey,
		counted: o.Taken.Counted, units: o.Taken.Units, atNs: st.service.o.Clock.NowNs(),
	})
}

// send lets an answer to an ask of so many parts wait for Next.
func (st *Stream) send(result *quota.AskResult, parts int) {
	s := st.service
	last := len(st.answers) - 1
	if last < 0 || len(st.answers[last].bytes) >= enoughAnswers {
		st.answers = append(st.answers, answers{bytes: make([]byte, 0, 512)})
		last++
	}
	s.message.Results = append(s.message.Results[:0], *result)
	st.answers[last].bytes = s.message.Append(st.answers[last].bytes)
	st.answers[last].parts += parts
	s.notifyLater(st)
}

// Next returns the bytes of the next message; ok says that there is one. The caller sends it before it
// calls Next again, and that next call counts it as sent.
func (st *Stream) Next() (message []byte, ok bool) {
	st.noteSent()
	st.service.mu.Lock()
	defer st.service.mu.Unlock()
	if len(st.answers) == 0 {
		return nil, false
	}
	next := st.answers[0]
	st.answers = slices.Delete(st.answers, 0, 1)
	st.sending = next.parts
	m := quota.Results{Proxies: st.domain.proxies} // appended to the results, it is one message with them
	return m.Append(next.bytes), true
}

// noteSent notes that the message which Next returned last is sent. A stream that had too many unsent
// answers may have a turn again now. It locks the service.
func (st *Stream) noteSent() {
	st.service.mu.Lock()
	st.partsUnderWay -= st.sending
	st.sending = 0
	isQueued := st.queue()
	st.service.mu.Unlock()
	if isQueued {
		st.service.pump()
	}
}

// Idle reports whether all asks are answered and the answers taken.
func (st *Stream) Idle() bool {
	st.service.mu.Lock()
	defer st.service.mu.Unlock()
	return st.open == 0 && len(st.answers) == 0
}

// Ending reports whether the stream is to end: see Service.Watch.
func (st *Stream) Ending() bool {
	st.service.mu.Lock()
	defer st.service.mu.Unlock()
	return st.ending
}

// Close ends the stream. What is being granted to it is given back.
func (st *Stream) Close() {
	s := st.service
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.closed {
		return
	}
	st.closed = true
	st.open -= len(st.pending)
	st.pending, st.answers = nil, nil
	st.grants = grants{}
	delete(s.streams, st)
	if d := st.domain; d != nil {
		d.streams--
		if d.streams == 0 {
			delete(s.domains, d.name)
		}
	}
	s.endDrain()
}

// logRefusal logs why something is refused, without a key, and not more often than a log takes.
func (st *Stream) logRefusal(what string, err error) {
	st.service.log.Warn(what, "address", st.peer.Address, "domain", st.domain.name, "error", err)
}
