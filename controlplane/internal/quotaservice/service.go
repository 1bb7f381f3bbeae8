package quotaservice

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/lograte"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// Options of a Service. Store is required.
type Options struct {
	Store Store
	Clock Clock // default: this machine's
	// Secret keys what the store knows of clients. Default: one that is made once and
	// kept in the store.
	Secret []byte
	// Settle is how long a service that finds no secret in the store waits for services
	// that have one, before it stores its own. Default: 0.
	Settle time.Duration
	// Allow says why the peer may not ask for a domain; nil = it may. Default: all may.
	Allow        func(p Peer, domain string) error
	StoreTimeout time.Duration // of one swap; default 1 s
	Log          *slog.Logger  // default: nothing
}

// Clock measures time that goes on evenly. Its beginning is of no matter.
type Clock interface {
	NowNs() int64
	// AfterFunc calls f after ns nanoseconds.
	AfterFunc(ns int64, f func())
}

// machine is the Clock of this machine.
type machine struct{ start time.Time }

func (m machine) NowNs() int64 { return int64(time.Since(m.start)) }

func (m machine) AfterFunc(ns int64, f func()) { time.AfterFunc(time.Duration(ns), f) }

// Peer is who opened a stream.
type Peer struct {
	Address     string
	Certificate *x509.Certificate // nil = none was asked for
}

// Service grants units to streams. It starts no goroutine but to go on after a store
// that answers later, so that a simulator can run it in virtual time: with a Memory,
// all is done when Receive returns.
type Service struct {
	o      Options
	ctx    context.Context
	cancel context.CancelFunc
	count  counts
	gate   gate
	landed landed
	secret atomic.Pointer[[]byte]
	log    *slog.Logger // of what streams do
	silent *slog.Logger // of a store that does not answer, or refuses
	apart  atomic.Bool  // the store knows another secret: this service would count apart

	mu       sync.Mutex
	clock    clock
	keys     keys
	startNs  int64 // until when the store is starting, by the service's clock
	open     share // of streams
	unsent   share
	kept     share
	said     quota.Grants  // memory for one answer
	grants   []quota.Grant // memory for its grants
	turns    []*Stream     // have groups that wait
	underWay int           // swaps
	pumping  bool
	spare    []landing // memory for landed
	notify   []*Stream // have answers
	domains  map[string]*domain
	streams  map[*Stream]struct{}
	asked    bool // some proxy has asked
	draining bool
	drained  chan struct{}
}

// domain is what streams of one domain share.
type domain struct {
	name    string
	streams int
	proxies uint32 // that are alive, over all services
}

// burstLines is how many lines about refused definitions and asks are logged before
// they are one a second.
const burstLines = 10

// silentEvery is how often a store that cannot be used is logged: all asks and heartbeats meet it.
const silentEvery = 10 * time.Second

// NewService returns a service that is ready.
func NewService(ctx context.Context, o Options) (*Service, error) {
	if o.Clock == nil {
		o.Clock = machine{time.Now()}
	}
	if o.Allow == nil {
		o.Allow = func(Peer, string) error { return nil }
	}
	if o.StoreTimeout == 0 {
		o.StoreTimeout = time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{o: o, gate: newGate(), keys: newKeys(), domains: map[string]*domain{}, streams: map[*Stream]struct{}{}, drained: make(chan struct{})}
	s.log, s.silent = lograte.NewLimit(burstLines).Logger(o.Log), lograte.NewEvery(silentEvery).Logger(o.Log)
	s.open, s.unsent, s.kept = newShares()
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.Watch() // a store without state begins now, whatever else a service has to wait for
	if err := s.agree(ctx, func() []byte { return s.firstSecret(ctx) }); err != nil {
		s.cancel()
		return nil, err
	}
	return s, nil
}

// firstSecret makes a secret for a store that has none. A store may lack it because it
// has lost its state: the services that run then store theirs at their next heartbeat.
func (s *Service) firstSecret(ctx context.Context) []byte {
	if s.o.Settle > 0 {
		s.o.Log.Info("the quota store has no secret yet: the start waits for services that may know it", "for", s.o.Settle)
		select {
		case <-time.After(s.o.Settle):
		case <-ctx.Done():
		}
	}
	fresh := make([]byte, sha256.Size)
	_, _ = rand.Read(fresh) // never fails
	return fresh
}

// errOtherSecret would let each service of a store count apart.
var errOtherSecret = errors.New("the services of this quota store have another key: all need the same --quota-key-file, or none")

// agree takes the secret that all services of the store have. It is mine where the
// store has none: nobody has kept one yet, or the store has lost it. The store also
// knows a mark of the secret: a service with another one is refused, or takes no asks
// until it is gone.
func (s *Service) agree(ctx context.Context, mine func() []byte) (err error) {
	secret := s.o.Secret
	if secret == nil {
		if secret, err = s.o.Store.Secret(ctx, "key", mine); err != nil {
			return fmt.Errorf("read the key of the quota store: %w", err)
		}
	}
	mark := newHasher(secret).key(nil, []byte("which key"))
	kept, err := s.o.Store.Secret(ctx, "mark", func() []byte { return mark[:] })
	switch {
	case err != nil:
		return fmt.Errorf("compare the key with that of the quota store: %w", err)
	case !bytes.Equal(kept, mark[:]):
		s.apart.Store(true)
		return errOtherSecret
	}
	s.apart.Store(false)
	if old := s.secret.Load(); old == nil || !bytes.Equal(*old, secret) {
		s.secret.Store(&secret)
		if old != nil {
			s.o.Log.Warn("the store has lost its state and another key since: what was counted in between is lost")
		}
	}
	return nil
}

// Drain makes the service take no more asks, and returns once all that were taken
// are answered, or ctx ends.
func (s *Service) Drain(ctx context.Context) {
	s.mu.Lock()
	if !s.draining {
		s.draining = true
		for st := range s.streams {
			s.wake(st)
		}
		s.settle()
	}
	s.mu.Unlock()
	s.pump()
	select {
	case <-s.drained:
	case <-ctx.Done():
	}
	s.cancel()
}

// Draining reports whether the service takes no more asks.
func (s *Service) Draining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// settle notes that a drained service has answered everything.
func (s *Service) settle() {
	if !s.draining {
		return
	}
	for st := range s.streams {
		if st.open > 0 {
			return
		}
	}
	select {
	case <-s.drained:
	default:
		close(s.drained)
	}
}

// wake makes the stream's transport look for answers.
func (s *Service) wake(st *Stream) {
	if !st.woken {
		st.woken = true
		s.notify = append(s.notify, st)
	}
}

// pump takes up what has come of swaps and sends what is ready to the store, until
// nothing is. One goroutine does it at a time.
func (s *Service) pump() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pumping {
		return
	}
	s.pumping = true
	for {
		came := s.landed.take(s.spare)
		for i := range came {
			s.swapped(came[i].key, came[i].result)
		}
		clear(came)
		s.spare = came[:0]
		ready, swaps := s.next()
		if len(came) == 0 && len(ready) == 0 && len(s.notify) == 0 {
			break
		}
		woken := s.notify
		s.notify = nil
		for _, st := range woken {
			st.woken = false
		}
		s.mu.Unlock()
		for _, st := range woken {
			st.ready()
		}
		if len(ready) > 0 {
			s.swapNow(ready, swaps)
		}
		s.mu.Lock()
	}
	s.pumping = false
}

// turn is how many groups a stream begins before the next stream's turn.
const turn = 16

// next begins as much as the store may have under way: keys with operations
// first, then streams in turn.
func (s *Service) next() (ready []*key, swaps []Swap) {
	for s.underWay < maxSwaps {
		if len(s.keys.ready) == 0 && !s.takeTurn() {
			break
		}
		for i, k := range s.keys.ready {
			if s.underWay >= maxSwaps {
				s.keys.ready = append(s.keys.ready[:0:0], s.keys.ready[i:]...)
				return ready, swaps
			}
			s.underWay++
			ready = append(ready, k)
			now := s.o.Clock.NowNs()
			swaps = append(swaps, k.prepare(now, now+s.clock.aheadNs))
		}
		s.keys.ready = s.keys.ready[:0]
	}
	return ready, swaps
}

// takeTurn lets the next stream begin some of its groups.
func (s *Service) takeTurn() bool {
	if len(s.turns) == 0 {
		return false
	}
	st := s.turns[0]
	s.turns = s.turns[1:]
	n := min(turn, len(st.waiting))
	for _, g := range st.waiting[:n] {
		for i := range g.operations {
			s.keys.add(&g.operations[i])
		}
	}
	if st.waiting = st.waiting[n:]; len(st.waiting) > 0 {
		s.turns = append(s.turns, st)
	} else {
		st.waiting = nil
		st.goOn()
	}
	return true
}

// hasher makes the keys under which the store keeps the keys of counters. They say
// nothing about clients to those who do not know the secret.
type hasher struct {
	mac hash.Hash
	sum [sha256.Size]byte
}

func newHasher(secret []byte) *hasher { return &hasher{mac: hmac.New(sha256.New, secret)} }

// key hashes a key after what prefix returned.
func (h *hasher) key(prefix, key []byte) (id [16]byte) {
	h.mac.Reset()
	h.mac.Write(prefix)
	h.mac.Write(key)
	copy(id[:], h.mac.Sum(h.sum[:0]))
	return id
}

// prefix is what all keys of a counter of a domain have in common.
func prefix(domain string, counter *[16]byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(domain)))
	return append(append(b, domain...), counter[:]...)
}

var errClosed = errors.New("the quota service is shutting down")
