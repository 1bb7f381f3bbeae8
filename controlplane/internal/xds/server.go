// Package xds pushes policy revisions to Envoy by Delta xDS: extension config
// discovery, alone (ECDS) or inside an aggregated stream (ADS).
//
// Its invariant: an answer is booked for the very push whose nonce it carries.
// A refusal (NACK) therefore counts against the right proxy and revision, and
// no other answer, above all not the one to the push that takes a refused
// revision back, is ever taken for its acceptance (ACK).
//
// # Why a stream handler of its own
//
// It speaks the generated gRPC interfaces of go-control-plane directly instead
// of going through that project's delta server and snapshot cache. The cache
// holds one version of a resource for all proxies, whereas here each proxy may
// need another one, with bytes that differ on every push; its callbacks give a
// nonce but not what was sent with it; and its answer to a refusal is silence.
// What is left, one resource and one push in flight, is a short loop.
//
// # What a proxy is offered
//
// The newest revision, unless this proxy has refused it or it is withheld.
//
// A revision is withheld from a proxy that subscribes after some proxy refused
// it while none has accepted it. Proxies that were there when it was applied
// are all asked, so one broken proxy cannot stop a roll-out by answering first;
// one acceptance lifts the withholding, so it cannot freeze new proxies either.
//
// When a proxy refuses a revision, that revision is withdrawn: the proxy gets
// its last good one again. That is the revision it accepted last; if it never
// accepted any, the newest that some proxy accepted; else the newest that none
// refused. If it refuses that one too, it is left alone until there is a new
// revision: something is wrong with the proxy. A proxy process that starts
// anew (it reports no version) is asked afresh even for what it refused
// before, since what was wrong may have been repaired.
//
// A proxy that has not been asked (it connects when the newest revision is
// withheld) gets the newest revision that some proxy accepted.
//
// # What Envoy does with it
//
// After a refusal Envoy has already noted the hash of the refused bytes and
// acknowledges the same bytes unseen, so every push carries a revision stamp
// ("12-<stamp>") inside the policy that no push to this proxy has carried
// before, a last good one pushed again too. Where there is no revision yet, the
// server stays silent: an answer "no such resource" would make Envoy drop the
// policy that was baked into its bootstrap, and would end its wait for the first
// one without ever letting its listener go ready.
//
// The package must never import the API or the command line, and knows
// policies only as bytes.
package xds

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	extensionv3 "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// Options of a Server. Store is required.
type Options struct {
	Store store.Store
	Keep  int          // revisions to keep beside those in use, from 2; 0 = all
	Wasm  string       // path of the filter's binary where neither revision nor node names one
	Log   *slog.Logger // default: nothing
}

// Server is the xDS server. Make one with New.
type Server struct {
	store  store.Store
	keep   int
	wasm   string
	log    *slog.Logger
	ledger *Ledger
	nonces nonces

	editions editions

	streamIDs atomic.Uint64
	pushes    atomic.Uint64
	acks      atomic.Uint64
	nacks     atomic.Uint64

	stop     chan struct{}
	stopOnce sync.Once
	cancel   context.CancelFunc
}

// New returns a server that knows what the store knows.
func New(ctx context.Context, o Options) (*Server, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	n, err := newNonces()
	if err != nil {
		return nil, err
	}
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx))
	changed := o.Store.Watch(watching)
	ledger, err := newLedger(ctx, o.Store)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("load ledger: %w", err)
	}
	s := &Server{
		store: o.Store, keep: o.Keep, wasm: o.Wasm, log: o.Log, ledger: ledger, nonces: n,
		editions: editions{kept: map[editionID]edition{}},
		stop:     make(chan struct{}), cancel: cancel,
	}
	s.logDamage(ledger.Damaged()...)
	go s.follow(watching, changed)
	return s, nil
}

// follow keeps the ledger's list of revisions up to date with the store.
func (s *Server) follow(ctx context.Context, changed <-chan struct{}) {
	housekeeping := time.NewTicker(forgetAfter / 10)
	defer housekeeping.Stop()
	for {
		if err := s.prune(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("drop old revisions", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
			known := s.ledger.Damaged()
			if err := s.ledger.refresh(ctx); err != nil {
				s.log.Error("read revisions", "error", err)
			}
			s.logDamage(slices.DeleteFunc(s.ledger.Damaged(), func(n uint64) bool { return slices.Contains(known, n) })...)
		case now := <-housekeeping.C:
			if err := s.ledger.forget(ctx, now); err != nil {
				s.log.Error("forget proxies", "error", err)
			}
		}
	}
}

// Ledger is what the server knows about proxies and their answers.
func (s *Server) Ledger() *Ledger { return s.ledger }

// Counts are totals since the server started.
type Counts struct{ Pushes, Acks, Nacks uint64 }

// Counts returns the totals so far.
func (s *Server) Counts() Counts {
	return Counts{Pushes: s.pushes.Load(), Acks: s.acks.Load(), Nacks: s.nacks.Load()}
}

// Stop ends all streams, so that a graceful stop of the gRPC server can end.
func (s *Server) Stop() {
	s.stopOnce.Do(func() {
		close(s.stop)
		s.cancel()
	})
}

// maxStreams bounds the streams of one connection. Envoy needs one or two.
const maxStreams = 100

// ServerOptions returns what the gRPC server needs to write the server's
// messages, to notice a proxy that is gone without a word, and not to let one
// take all there is. A large binary blocks Envoy's main thread for seconds, so
// the ping may take its time.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: 5 * time.Second, PermitWithoutStream: true,
		}),
	}
}

// Register adds the discovery services to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	extensionv3.RegisterExtensionConfigDiscoveryServiceServer(r, ecds{server: s})
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(r, ads{server: s})
}

// ecds and ads leave the state-of-the-world methods unimplemented: with them a
// refusal is answered with the same version again and ends as an acceptance.
type ecds struct {
	extensionv3.UnimplementedExtensionConfigDiscoveryServiceServer
	server *Server
}

func (e ecds) DeltaExtensionConfigs(st extensionv3.ExtensionConfigDiscoveryService_DeltaExtensionConfigsServer) error {
	return e.server.serve(st)
}

type ads struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	server *Server
}

func (a ads) DeltaAggregatedResources(st discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return a.server.serve(st)
}
