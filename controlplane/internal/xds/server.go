// Package xds pushes policy revisions to Envoy by Delta xDS: extension config
// discovery, alone (ECDS) or inside an aggregated stream (ADS).
//
// Its invariant: a reply counts for the very push whose nonce it carries. A
// refusal (NACK) therefore counts against the right proxy and revision, and no
// other reply is ever taken for the acceptance (ACK) of a revision, above all not
// the reply to the push that withdraws it.
//
// The package must never import the API or the command line, and knows policies only as
// bytes.
//
// # Where to read
//
// stream.go is the conversation with one proxy: request.go reads what it sends, resource.go
// writes what it gets, and Ledger.record (ledger.go) records its replies. offer.go says
// which revision a proxy is offered, canary.go whether it is in a canary, assign.go which
// policy is for it. follow.go keeps up with the store, and elsewhere.go with other control
// planes on it. status.go and outcome.go tell the API how proxies stand.
//
// # Why a stream handler of its own
//
// It does without go-control-plane's delta server and snapshot cache. The cache holds one
// version of a resource for all proxies; here each proxy may need another one, and the
// bytes differ on every push. Its callbacks give a nonce without what was sent with it,
// and after a refusal it does nothing. One resource and one push in flight take a short
// loop.
//
// # What a proxy is offered
//
// The newest revision, unless this proxy has refused it or it is withheld.
//
// A revision is withheld from a proxy that subscribes after some proxy refused
// it while none has accepted it. Proxies that were there when it was applied
// are all asked, so one broken proxy cannot stop a roll-out by replying first;
// one acceptance lifts the withholding, so it cannot freeze new proxies either.
//
// When a proxy refuses a revision, that revision is withdrawn: the proxy gets
// its last good one again. That is the revision it accepted last; if it never
// accepted any, the newest that some proxy accepted; else the newest that none
// refused. If it refuses that one too, it is left alone until there is a new
// revision: something is wrong with the proxy. A proxy process that starts
// anew (it reports no version) is offered even what it refused before, since
// what was wrong may have been repaired.
//
// A proxy that has not been asked (it connects when the newest revision is
// withheld) gets the newest revision that some proxy accepted.
//
// # A canary
//
// While the newest revision's rollout lasts, it is there only for the proxies that the
// rollout reaches: for all others the one before is the newest. An aborted revision counts
// as absent: no proxy is offered it, and a proxy that runs it gets what is offered.
//
// # Never silently back
//
// A proxy may come with a revision that this server does not know: it went over from
// another server. If a server with a copy of this store has pushed that revision, and its
// number is above all that were ever given here, then this server is behind. The proxy
// keeps its revision, is shown as ahead, and gets the next one that is applied here, whose
// number is above that. Numbers that Restore has lost were given here, so proxies do go
// back from them. A proxy that comes with a revision of another store gets what is offered
// here, and the log says so.
//
// # What Envoy does with it
//
// After a refusal Envoy has already noted the hash of the refused bytes and
// acknowledges the same bytes unseen. So every push carries a revision tag
// ("12-<tag>") inside the policy that no push to this proxy has carried before,
// also a last good one that is pushed again.
//
// Where there is no revision yet, the server stays silent: a response "no such
// resource" would make Envoy drop the policy in its bootstrap, and would end its
// wait for the first one without ever letting its listener get ready.
//
// # Who a proxy is
//
// A proxy is its node id together with the name in its client certificate that
// grants the id (store.Identity). Ledger and store know it by both, so that no
// proxy's reply counts for another. Where no certificate is asked for, the
// name is empty, and a proxy may claim any id. Where one is, it is verified when
// a stream begins, when it expires and every verifyEvery: a connection may
// outlive the trust in it. The connection is closed then, so that the proxy
// shows the certificate it has by now. What a proxy reports to hold counts as
// accepted, even if it once refused that.
//
// # What a proxy can take
//
// Package listener bounds connections, their streams and messages. Of a request only
// what is needed is read and kept. A stream that sends no request ends after ten seconds.
// A push to a proxy that does not read holds a few KB of its own: all payloads of a
// revision share its text, and there is one push in flight. What a proxy can have written
// to the log again and again is bounded for all proxies together.
package xds

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	extensionv3 "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	"google.golang.org/grpc"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/lograte"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// Options of a Server. Store is required.
type Options struct {
	Store store.Store
	Keep  int          // revisions to keep beside those in use, from 2; 0 = all
	Wasm  string       // path of the filter's binary where neither revision nor node names one
	Log   *slog.Logger // default: nothing

	// Identify returns the name in a client certificate that grants the node id,
	// or why none does. It is not called where proxies need no certificate. By
	// default the id must be a name in the certificate.
	Identify func(cert *x509.Certificate, node string) (string, error)

	// ClientCAs vouch for proxies' certificates, again and again while a stream is
	// open. By default none does. Not called where proxies need no certificate.
	ClientCAs func() *x509.CertPool
}

// Server is the xDS server. Make one with New.
type Server struct {
	Options
	Counts
	ledger *Ledger
	secret string       // goes with policies that name report_keys; see policy.Policy.ReportSecret
	seal   []byte       // of versions; see held
	noisy  *slog.Logger // bounded; see burstLines

	pushables pushableCache

	refreshing sync.Mutex      // held while the ledger is refreshed
	changed    <-chan struct{} // closed once the store has changed since; refreshing guards it

	process   string        // begins nonces
	nonces    atomic.Uint64 // how many there were
	streamIDs atomic.Uint64

	verifyEvery time.Duration // how often a stream's certificate is verified again
	stop        context.Context
	cancel      context.CancelFunc
}

// Counts are totals since the server started.
type Counts struct {
	Pushes, Acks, Nacks atomic.Uint64
	Foreign             atomic.Uint64 // streams whose certificate does not grant their node id
}

// New returns a server that knows what the store knows.
func New(ctx context.Context, o Options) (*Server, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Identify == nil {
		o.Identify = new(access.NodeIDs).SAN
	}
	if o.ClientCAs == nil {
		o.ClientCAs = x509.NewCertPool
	}
	// It comes with the store, so it is the same after a restart and from a backup.
	secret, err := o.Store.Secret(ctx)
	if err != nil {
		return nil, err
	}
	changed := o.Store.Appended() // taken before reading, so that no revision falls in between
	ledger, err := newLedger(ctx, o.Store)
	if err != nil {
		return nil, fmt.Errorf("load ledger: %w", err)
	}
	process := make([]byte, 4)
	_, _ = rand.Read(process) // never fails
	s := &Server{
		Options: o, ledger: ledger, changed: changed, pushables: pushableCache{kept: map[uint64]pushable{}},
		secret: hex.EncodeToString(keyed(secret, "report_secret")), seal: keyed(secret, "version"),
		process: hex.EncodeToString(process), verifyEvery: verifyEvery,
	}
	s.noisy = lograte.NewLimit(burstLines).Logger(o.Log)
	s.stop, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.logDamage(ledger.Damaged("")...)
	go s.keepUp(s.stop)
	go s.exchange(s.stop)
	return s, nil
}

// newNonce differs from those of all other pushes, of this process or an earlier one.
func (s *Server) newNonce() string { return fmt.Sprintf("%s%06x", s.process, s.nonces.Add(1)) }

// Ledger is what the server knows about proxies and their replies.
func (s *Server) Ledger() *Ledger { return s.ledger }

// Stop ends all streams, so that a graceful stop of the gRPC server can end.
func (s *Server) Stop() { s.cancel() }

const (
	// firstWithin is the deadline of a stream's first request.
	firstWithin = 10 * time.Second
	// verifyEvery is how long a stream may outlive the trust in the authority of
	// its certificate. The certificate itself it does not outlive.
	verifyEvery = 30 * time.Second
	// burstLines is how many lines of the log proxies can cause at will, then one a second.
	burstLines = 100
)

// Register adds the discovery services to a gRPC server, without the state-of-the-world methods:
// there the server sends the same version again after a refusal, and that ends as an acceptance.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	handle := func(_ any, stream grpc.ServerStream) error { return s.serve(stream) }
	for service, method := range map[string]string{
		extensionv3.ExtensionConfigDiscoveryService_ServiceDesc.ServiceName: "DeltaExtensionConfigs",
		discoveryv3.AggregatedDiscoveryService_ServiceDesc.ServiceName:      "DeltaAggregatedResources",
	} {
		r.RegisterService(&grpc.ServiceDesc{
			ServiceName: service, HandlerType: (*any)(nil),
			Streams: []grpc.StreamDesc{{StreamName: method, Handler: handle, ServerStreams: true, ClientStreams: true}},
		}, nil)
	}
}
