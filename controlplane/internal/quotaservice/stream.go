package quotaservice

import (
	"container/list"
	"context"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	// One stream may ask so often: more than one core serves.
	asksPerSecond, burstAsks = 100_000, 20_000
	// maxStreams bounds the memory for streams.
	maxStreams = 10_000
	// rememberNs is how long a grant is remembered for returns: a lease and the time
	// after which it counts as idle, and some.
	rememberNs = 30 * second
	// enoughAnswers is when a message takes no further one. One takes at most 8 KiB.
	enoughAnswers = 8 << 10
)

// Stream is one worker's stream. Receive and Close are called by one goroutine.
type Stream struct {
	service *Service
	peer    Peer
	ready   func()

	asks        quota.Asks
	definitions map[uint32]*definition
	recent      *list.List // of *definition, the one that was used least recently first
	secret      *[]byte    // of the hasher
	hasher      *hasher
	rate        *rate.Limiter
	work        int           // of the dearest definition; see work
	room        chan struct{} // what Wait waits for
	unread      atomic.Bool   // too many answers wait for the stream to read them

	// The service's lock guards the rest.
	domain  *domain
	process uint64
	closed  bool
	ending  bool // the worker is to state what it holds anew, on another stream
	woken   bool
	waits   bool // in Wait
	waiting []*group
	open    int       // groups that have no answer yet
	parts   int       // of these
	answers [][]byte  // messages of them
	unsent  int       // bytes of answers, with those that Next returned last
	sending int       // bytes of these
	grants  []granted // by number, the oldest first
	number  uint32    // of the newest grant
	kept    int       // bytes of definitions and grants
}

// Open begins a stream. ready is called when Next has something; it must not wait.
func (s *Service) Open(p Peer, ready func()) (*Stream, error) {
	st := &Stream{
		service: s, peer: p, ready: ready, definitions: map[uint32]*definition{}, recent: list.New(),
		rate: rate.NewLimiter(asksPerSecond, burstAsks), room: make(chan struct{}, 1),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.draining:
		return nil, status.Error(codes.Unavailable, errClosed.Error())
	case len(s.streams) >= maxStreams:
		return nil, status.Errorf(codes.ResourceExhausted, "%d streams are open, no more are served", maxStreams)
	}
	s.streams[st] = struct{}{}
	return st, nil
}

// Receive takes a message. An error ends the stream; it is a gRPC status.
func (st *Stream) Receive(message []byte) error {
	s, m := st.service, &st.asks
	if err := m.Decode(message); err != nil {
		return status.Errorf(codes.InvalidArgument, "read a message of %d bytes: %v", len(message), err)
	}
	if err := st.join(m); err != nil {
		return err
	}
	if now := s.secret.Load(); st.secret != now {
		st.secret, st.hasher = now, newHasher(*now)
	}
	for i := range m.Definitions {
		st.define(&m.Definitions[i])
	}
	groups := make([]*group, 0, len(m.Asks))
	now := s.o.Clock.NowNs()
	busy := !st.rate.AllowN(time.Unix(0, now), len(m.Asks))
	for i := range m.Asks {
		groups = append(groups, st.group(&m.Asks[i], now, busy))
	}
	s.mu.Lock()
	err := st.enqueue(groups)
	s.mu.Unlock()
	s.pump()
	return err
}

// join takes the domain of the first message.
func (st *Stream) join(m *quota.Asks) error {
	s := st.service
	switch {
	case st.domain == nil && m.Domain == "":
		return status.Error(codes.InvalidArgument, "the first message of a stream must name its domain")
	case st.domain == nil:
		if err := s.o.Allow(st.peer, m.Domain); err != nil {
			return status.Errorf(codes.PermissionDenied, "domain %q: %v", m.Domain, err)
		}
	case m.Domain != "" && m.Domain != st.domain.name:
		return status.Errorf(codes.InvalidArgument, "the stream is of domain %q: another needs a stream of its own", st.domain.name)
	default:
		return nil
	}
	process := m.Process
	s.mu.Lock()
	d := s.domains[m.Domain]
	if d == nil {
		d = &domain{name: m.Domain}
		s.domains[m.Domain] = d
	}
	d.streams++
	st.domain, st.process, s.asked = d, process, true
	s.mu.Unlock()
	s.o.Clock.AfterFunc(0, func() { s.note(d, process) }) // the store may be silent, and asks wait for nothing
	return nil
}

// unusable logs why the store does not do what it should, once a while.
func (s *Service) unusable(err error) {
	if s.ctx.Err() == nil { // else this service gives it up
		s.silent.Error("use the store: meanwhile on_unavailable decides", "error", err)
	}
}

// note notes in the store that a process is alive.
func (s *Service) note(d *domain, process uint64) {
	n, err := s.o.Store.Live(s.ctx, d.name, process)
	if err != nil {
		s.count.storeErrors.Add(1)
		s.unusable(err)
		return
	}
	s.mu.Lock()
	d.proxies = uint32(min(int64(n), math.MaxUint32))
	s.mu.Unlock()
}

// Heartbeat notes that the processes that have streams are alive, and that a store that
// has lost its state knows the services' secret again: services with two would count
// apart. Whoever runs the service calls it a few times within LiveFor.
func (s *Service) Heartbeat() {
	ctx, cancel := context.WithTimeout(s.ctx, s.o.StoreTimeout)
	err := s.agree(ctx, func() []byte { return *s.secret.Load() })
	cancel()
	if s.count.beat(err) {
		s.o.Log.Info("the store answers again")
	}
	if err != nil {
		s.unusable(err)
	}
	type process struct {
		domain *domain
		number uint64
	}
	alive := map[process]bool{}
	s.mu.Lock()
	for st := range s.streams {
		if st.domain != nil {
			alive[process{st.domain, st.process}] = true
		}
	}
	s.mu.Unlock()
	for p := range alive {
		s.note(p.domain, p.number)
	}
}

// refused logs why something is, without a key, and not more often than a log takes.
func (st *Stream) refused(what string, err error) {
	st.service.log.Warn(what, "address", st.peer.Address, "domain", st.domain.name, "error", err)
}

// group makes an ask's operations.
func (st *Stream) group(a *quota.Ask, now int64, busy bool) *group {
	g := &group{stream: st, id: a.ID, startNs: now}
	if busy {
		g.result = quota.Busy
		return g
	}
	g.operations = make([]operation, len(a.Parts))
	for i := range a.Parts {
		p := &a.Parts[i]
		d := st.definitions[p.Definition]
		if d == nil || d.broken {
			g.result = quota.Unknown
			return g
		}
		st.recent.MoveToBack(d.recent)
		g.operations[i] = d.operation(Hit, st.hasher, st.domain.name, p.Key, g)
		g.operations[i].part = *p
	}
	return g
}

// enqueue lets groups wait for the stream's turn, and gives back what the message
// returns.
func (st *Stream) enqueue(groups []*group) error {
	s := st.service
	if s.draining {
		return status.Error(codes.Unavailable, errClosed.Error())
	}
	if s.apart.Load() {
		return status.Error(codes.Unavailable, errOtherSecret.Error())
	}
	for _, r := range st.asks.Returns {
		st.giveBack(r)
	}
	wasIdle := len(st.waiting) == 0
	for _, g := range groups {
		st.open++
		s.open.take(&st.parts, len(g.operations))
		if g.result != 0 {
			g.answer()
			continue
		}
		g.left = len(g.operations)
		st.waiting = append(st.waiting, g)
	}
	if wasIdle && len(st.waiting) > 0 {
		s.turns = append(s.turns, st)
	}
	if st.unread.Load() {
		return status.Error(codes.ResourceExhausted, errUnread.Error())
	}
	return nil
}

// crowded reports whether too many of the stream's asks are open for it to ask for more.
func (st *Stream) crowded() bool {
	s := st.service
	return s.open.over(st.parts, len(s.streams))
}

// wait returns once none of the stream's groups waits for its turn any more, and unless
// begun, so many are answered that it may ask for more; or ctx ends.
func (st *Stream) wait(ctx context.Context, begun bool) {
	for {
		st.service.mu.Lock()
		st.waits = len(st.waiting) > 0 || !begun && st.crowded()
		waits := st.waits
		st.service.mu.Unlock()
		if !waits {
			return
		}
		select {
		case <-st.room:
		case <-ctx.Done():
			return
		}
	}
}

// goOn lets wait look again.
func (st *Stream) goOn() {
	if !st.waits {
		return
	}
	select {
	case st.room <- struct{}{}:
	default:
	}
}

// giveBack uncounts returned units: at most what the grant gave, once. What a return
// leaves has been spent, so a second one has nothing to give.
func (st *Stream) giveBack(r quota.Return) {
	s := st.service
	age := st.number - r.Grant // newest = 0
	if r.Grant == 0 || r.Grant > st.number || int64(age) >= int64(len(st.grants)) {
		s.count.lost.Add(uint64(r.Units))
		return
	}
	g := &st.grants[len(st.grants)-1-int(age)]
	units := min(r.Units, g.units)
	if g.units = 0; units == 0 {
		return
	}
	o := g.definition.operation(giveUp, st.hasher, st.domain.name, g.key, s)
	o.charge, o.n = g.charge, units
	s.keys.add(&o)
}

// finished counts what came of a return.
func (s *Service) finished(o *operation) {
	s.count.returned.Add(uint64(o.units))
	s.count.lost.Add(uint64(o.n - o.units))
}

var errUnread = errors.New("too many answers wait, and the stream does not read them")

// say lets an answer wait for the stream to read it.
func (st *Stream) say(a *quota.AskResult) {
	s := st.service
	last := len(st.answers) - 1
	if last < 0 || len(st.answers[last]) >= enoughAnswers {
		st.answers = append(st.answers, make([]byte, 0, 512))
		last++
	}
	s.said.Results = append(s.said.Results[:0], *a)
	b := s.said.Append(st.answers[last])
	s.unsent.take(&st.unsent, len(b)-len(st.answers[last]))
	st.answers[last] = b
	if s.unsent.over(st.unsent, len(s.streams)) && !st.unread.Swap(true) {
		s.count.unread.Add(1)
		st.refused("stream ended", errUnread)
	}
	s.wake(st)
}

// Next returns the bytes of the next message, which count as sent once it is called
// again. ok says that there is one.
func (st *Stream) Next() (message []byte, ok bool) {
	s := st.service
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsent.take(&st.unsent, -st.sending)
	st.sending = 0
	if len(st.answers) == 0 {
		return nil, false
	}
	message = st.answers[0]
	st.answers = slices.Delete(st.answers, 0, 1)
	st.sending = len(message)
	m := quota.Grants{Proxies: st.domain.proxies}
	return m.Append(message), true
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
	for _, g := range st.waiting {
		st.open--
		s.open.take(&st.parts, -len(g.operations))
	}
	s.unsent.take(&st.unsent, -st.unsent)
	s.kept.take(&st.kept, -st.kept)
	st.waiting, st.answers, st.grants, st.sending = nil, nil, nil, 0
	delete(s.streams, st)
	if d := st.domain; d != nil {
		if d.streams--; d.streams == 0 {
			delete(s.domains, d.name)
		}
	}
	s.settle()
}
