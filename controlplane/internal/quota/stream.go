package quota

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lease "github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	// maxOpen is how many asks of one stream may wait for answers, or answers for the
	// stream to read them.
	maxOpen = 8192
	// One stream may ask so often: more than one core serves.
	asksPerSecond, burstAsks = 100_000, 20_000
	// maxStreams bounds the memory for streams.
	maxStreams = 10_000
	// rememberNs is how long a grant is remembered for returns: a lease and the time
	// after which it counts as idle, and some.
	rememberNs = 30 * second
	// roomForAnswer is what an answer takes at most.
	roomForAnswer = 8 << 10
)

// Stream is one worker's stream. Receive and Close are called by one goroutine.
type Stream struct {
	service *Service
	peer    Peer
	ready   func()

	asks        lease.Asks
	definitions map[uint32]*definition
	uses        uint64
	secret      *[]byte // of the hasher
	hasher      *hasher
	rate        *rate.Limiter

	// The service's lock guards the rest.
	domain  *domain
	process uint64
	closed  bool
	woken   bool
	waiting []*group
	open    int // groups that have no answer yet
	answers []lease.Answer
	grants  []granted // by number, the oldest first
	number  uint32    // of the newest grant
}

// definition is one that the stream has sent.
type definition struct {
	lease.Definition
	prefix []byte
	broken bool // asks that name it are answered Unknown
	used   uint64
}

// granted is what a return needs to know of a grant.
type granted struct {
	definition *definition
	key, id    [16]byte // in the store; the part's
	charge     charge
	units      uint32 // that may be returned
	atNs       int64
}

// Open begins a stream. ready is called when Next has something; it must not wait.
func (s *Service) Open(p Peer, ready func()) (*Stream, error) {
	st := &Stream{
		service: s, peer: p, ready: ready, definitions: map[uint32]*definition{},
		rate: rate.NewLimiter(asksPerSecond, burstAsks),
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
func (st *Stream) join(m *lease.Asks) error {
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

// note notes in the store that a process is alive.
func (s *Service) note(d *domain, process uint64) {
	n, err := s.o.Store.Live(s.ctx, d.name, process)
	if err != nil {
		s.count.storeErrors.Add(1)
		return
	}
	s.mu.Lock()
	d.proxies = uint32(min(n, math.MaxUint32))
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
		s.o.Log.Error("use the store: meanwhile on_unavailable decides", "error", err)
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

// define keeps a definition, in place of the one that was used least recently if
// there are too many.
func (st *Stream) define(d *lease.Definition) {
	st.uses++
	own := &definition{Definition: *d, prefix: prefix(st.domain.name, &d.Counter), used: st.uses}
	own.Windows = slices.Clone(d.Windows)
	if err := check(d); err != nil {
		own.broken = true
		st.refused("definition refused", err)
	}
	if _, there := st.definitions[d.ID]; !there && len(st.definitions) >= lease.MaxDefinitions {
		var oldest *definition
		for _, other := range st.definitions {
			if oldest == nil || cmp.Less(other.used, oldest.used) {
				oldest = other
			}
		}
		delete(st.definitions, oldest.ID)
	}
	st.definitions[d.ID] = own
}

// refused logs why something is, without a key, and not more often than a log takes.
func (st *Stream) refused(what string, err error) {
	st.service.log.Warn(what, "address", st.peer.Address, "domain", st.domain.name, "error", err)
}

// group makes an ask's operations.
func (st *Stream) group(a *lease.Ask, now int64, busy bool) *group {
	g := &group{stream: st, id: a.ID, startNs: now}
	if busy {
		g.result = lease.Busy
		return g
	}
	g.operations = make([]operation, len(a.Parts))
	g.definitions = make([]*definition, len(a.Parts))
	for i := range a.Parts {
		p := &a.Parts[i]
		d := st.definitions[p.Definition]
		if d == nil || d.broken {
			g.result = lease.Unknown
			return g
		}
		st.uses++
		d.used = st.uses
		g.definitions[i] = d
		g.operations[i] = operation{
			lease: d.Lease, counts: d.CountDenied, kinds: d.Windows, windows: shifted(d.Windows, p.Key),
			part: *p, key: st.hasher.key(d.prefix, p.Key[:]), owner: g,
		}
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
		switch {
		case len(st.answers) >= 2*maxOpen:
			return status.Errorf(codes.ResourceExhausted, "%d answers wait, and the stream does not read them", len(st.answers))
		case g.result == 0 && st.open+len(st.answers) > maxOpen:
			g.result = lease.Busy
		}
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
	return nil
}

// giveBack uncounts returned units: at most what the grant gave, once. What a return
// leaves has been spent, so a second one has nothing to give.
func (st *Stream) giveBack(r lease.Return) {
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
	d := g.definition
	s.keys.add(&operation{
		kind: giveUp, kinds: d.Windows, windows: shifted(d.Windows, g.id), charge: g.charge, n: units, key: g.key, owner: s,
	})
}

// finished counts what came of a return.
func (s *Service) finished(o *operation) {
	s.count.returned.Add(uint64(o.units))
	s.count.lost.Add(uint64(o.n - o.units))
}

// remember notes a grant for its return, and forgets old ones.
func (st *Stream) remember(d *definition, o *operation) uint32 {
	now := st.service.o.Clock.NowNs()
	old := 0
	for old < len(st.grants) && (len(st.grants)-old >= lease.MaxGrants || now-st.grants[old].atNs > rememberNs) {
		old++
	}
	st.grants = append(st.grants[old:], granted{d, o.key, o.part.Key, o.charged, o.units, now})
	st.number++
	return st.number
}

// Next appends the bytes of the next message to b. ok says that there was one.
func (st *Stream) Next(b []byte) (_ []byte, ok bool) {
	st.service.mu.Lock()
	defer st.service.mu.Unlock()
	if len(st.answers) == 0 {
		return b, false
	}
	var m lease.Answers
	start := len(b)
	for n := range st.answers {
		m.Answers = st.answers[n : n+1]
		if b = m.Append(b); len(b)-start > lease.MaxMessageBytes-roomForAnswer {
			st.answers = st.answers[n+1:]
			return st.withProxies(b), true
		}
	}
	clear(st.answers)
	st.answers = st.answers[:0]
	return st.withProxies(b), true
}

func (st *Stream) withProxies(b []byte) []byte {
	m := lease.Answers{Proxies: st.domain.proxies}
	return m.Append(b)
}

// Idle reports whether all asks are answered and the answers taken.
func (st *Stream) Idle() bool {
	st.service.mu.Lock()
	defer st.service.mu.Unlock()
	return st.open == 0 && len(st.answers) == 0
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
	st.open -= len(st.waiting)
	st.waiting = nil
	delete(s.streams, st)
	if d := st.domain; d != nil {
		if d.streams--; d.streams == 0 {
			delete(s.domains, d.name)
		}
	}
	s.settle()
}
