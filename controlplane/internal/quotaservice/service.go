// Package quotaservice is the quota service: it grants units of counters that hold over all proxies.
//
// Its invariant: units are deducted in the store before they are granted, and the store's
// clock decides. It must never import the API, xDS or the command line.
//
// An ask has parts, each of a key. Once it has begun, it has an operation for each part: an action on what the key has
// counted, such as a hit. A hit has taken units once they are counted, and they are granted once all parts have theirs.
// Operations that wait for one key reach the store by one swap. Units are uncounted by a return, if a proxy has not
// spent them, or by an undo, if nobody has got them.
//
// An ask for 1 unit of two keys goes this way. user has a limit of 10, and 3 are used. team has a limit of 100. The
// service knows that 59 of these are used, but another service has swapped in 75 since. Service.pump does each of these
// steps but the first:
//
//	stream.go  Stream.Receive          The message is decoded. Its ask waits for the worker's turn.
//	ask.go     worker.begin            The ask has begun, with a hit for each part. Each waits for its key.
//	keys.go    key.nextSwap            user: 1 is taken, so that 4 are used. team: 1 is taken, so that 60 are used.
//	           Store.Swap              user: Swapped. team: Read, because the store has another value: 75 are used.
//	           key.learn               user: 1 was taken. team: 1 may be taken beside the 75, which needs another swap.
//	           key.nextSwap            team: 1 is taken, so that 76 are used.
//	           Store.Swap              team: Swapped.
//	           key.learn               team: 1 was taken.
//	ask.go     begunAsk.operationDone  No operation is left, and no part is denied: the ask is granted.
//	           begunAsk.answer         The grants wait for Stream.Next.
//
// If the other service has swapped in 100, learn finds that team is denied. A denial changes nothing here, so it
// needs no other swap, and the ask is denied. begunAsk.undoHits starts an operation that undoes the hit of user, and
// the ask is answered when that is swapped in.
//
// Calls of this process go the same way from keys.go on. The files:
//
//	service.go    Service: how it begins and ends, and its two clocks
//	core.go       what the lock guards, the pump, and what is known of the store's clock
//	stream.go     Stream, and its worker in the core: messages come and go, and asks wait for their turn
//	ask.go        an ask, once it has begun; what a proxy returns
//	calls.go      a call, and which clients are known to be over their limits
//	counter.go    what a definition says of a counter, and under which keys the store has it
//	operation.go  what is done to one key, for an ask, for a call, or by Operate for an operator
//	keys.go       the operations that wait for a key, and its swaps
//	values.go     what is known of a key's value, if that is a record
//	sum.go        the same, if it is a sum
//	upkeep.go     whether the store has lost its state, and whether it answers; which processes are alive
//	secret.go     the secret that all services on a store share
//
// What an operation does to a record is arithmetic of package action and, below it, of balance. Package swapstore is
// the store, and transport has the streams over gRPC.
//
// Begin with example_test.go. Of the tests, neverover_test.go and blockhistory_test.go guard all by a model: no
// history admits more than a limit, or what is blocked.
package quotaservice

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/lograte"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
)

// Options of a Service. Store is required.
type Options struct {
	Store swapstore.Store
	Clock Clock // the service's own; default: this machine's. The store's clock is another: see storeClock
	// Secret keys what the store knows of clients. Default: one that is made once and
	// kept in the store.
	Secret []byte
	// SecretWait is how long a service that finds no secret in the store waits for other services
	// to store theirs, before it stores its own. Default: 0.
	SecretWait time.Duration
	// Allow says why the peer may not ask for a domain; nil = it may. Default: all may.
	Allow        func(p Peer, domain string) error
	StoreTimeout time.Duration // of a swap, a heartbeat, and noting a process; default 1 s
	Log          *slog.Logger  // default: nothing
}

// Peer is who opened a stream.
type Peer struct {
	Address     string
	Certificate *x509.Certificate // nil = none was asked for
}

// Service grants units to streams. If its store is a Memory, all that can be done for a message is done when Receive
// returns, so a simulator can run the service in virtual time. Another store answers later, and then the service goes
// on in another goroutine.
type Service struct {
	o        Options
	ctx      context.Context
	cancel   context.CancelFunc
	metrics  metrics
	storeLog storeLog

	secret  atomic.Pointer[[]byte]
	hashers sync.Pool   // of *hasher, for calls
	apart   atomic.Bool // the store knows another secret: this service would count apart
	landed  landed      // results of swaps; it has a lock of its own

	mu   sync.Mutex
	core core // what mu guards
}

// LastWithin is how long an ending stream waits for its open asks.
const LastWithin = time.Second

// burstLines is how many lines about refused definitions and asks are logged before
// they are one a second.
const burstLines = 10

// storeLogEvery is how often a store that cannot be used is logged: all asks and heartbeats meet it.
const storeLogEvery = 10 * time.Second

// NewService returns a service that is ready.
func NewService(ctx context.Context, o Options) (*Service, error) {
	if o.Clock == nil {
		o.Clock = machineClock{time.Now()}
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
	s := &Service{o: o}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.storeLog = storeLog{lograte.NewEvery(storeLogEvery).Logger(o.Log), s.ctx.Err}
	s.core = core{
		service: s, clock: o.Clock, metrics: &s.metrics, storeLog: &s.storeLog,
		log:     lograte.NewLimit(burstLines).Logger(o.Log),
		domains: map[string]*domain{}, workers: map[*worker]struct{}{},
		keys: newKeys(), over: overKeys{}, drained: make(chan struct{}),
	}
	s.Watch() // a store without state begins now, whatever else a service has to wait for
	if err := s.agree(ctx, func() []byte { return s.firstSecret(ctx) }); err != nil {
		s.cancel()
		return nil, err
	}
	return s, nil
}

// Drain makes the service take no more asks, and returns once all that were taken are answered, and what goes back is
// uncounted, or ctx ends. It does not wait for asks of a stream that has read no answers for LastWithin. Count goes on
// until Close.
func (s *Service) Drain(ctx context.Context) {
	s.mu.Lock()
	if !s.core.draining {
		s.core.beginDrain()
	}
	drained := s.core.drained
	s.mu.Unlock()
	s.pump()
	select {
	case <-drained:
	case <-ctx.Done():
	}
}

// leaveUnread is called once the service has been draining for LastWithin.
func (s *Service) leaveUnread() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.core.leavesUnread = true
	s.core.endDrain()
}

// Close makes Count take no more calls, and ends what the store has under way.
func (s *Service) Close() { s.cancel() }

// Draining reports whether the service takes no more asks.
func (s *Service) Draining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.draining
}

// WasAsked reports whether some proxy has asked this service.
func (s *Service) WasAsked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.asked
}

// ErrClosed is the error of a call or a stream that comes once the service shuts down.
var ErrClosed = errors.New("the quota service is shutting down")

// There are two clocks. In all of the package localNs is a time by the service's own clock. storeNs is one by
// the store's clock, as the store has said it or as far as the service knows it.

// Clock measures time that goes on evenly. It may begin at any instant that is not negative: see core.hasLooked.
type Clock interface {
	NowNs() int64
	// AfterFunc has f called after ns nanoseconds, and never before AfterFunc returns: f locks the service, and whoever
	// calls AfterFunc has locked it.
	AfterFunc(ns int64, f func())
}

// machineClock is the Clock of this machine.
type machineClock struct{ start time.Time }

func (m machineClock) NowNs() int64 { return int64(time.Since(m.start)) }

func (m machineClock) AfterFunc(ns int64, f func()) { time.AfterFunc(time.Duration(ns), f) }
