// Package front answers rate limit calls as the envoyproxy/ratelimit service does: by its
// configuration, its answers and its metrics, in the counters of the quota service.
//
// Its invariant: a call is answered from what was counted for it, or with an error; it is never let
// through because something failed. It must never import the command line or a store.
//
// A call goes this way:
//
//	front.go    ShouldRateLimit finds the limit of each descriptor, and has the quota service count
//	answer.go   the totals become statuses, a code, headers and metadata
//	metrics.go  the totals are counted in the metrics of their limits
//
// files.go and xds.go put a configuration in force by Use, and again when it changes. http.go has
// the service's health, and a route for calls in JSON.
package front

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/lograte"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/ratelimitconfig"
)

// Counter counts calls: a quotaservice.Service.
type Counter interface {
	Count(
		ctx context.Context, uses []quotaservice.Use, keep func([]quotaservice.Total) bool,
	) ([]quotaservice.Total, error)
}

// Options of a Service. Counter is required.
type Options struct {
	Counter Counter
	// Allow says why the caller may not count in a domain; nil = it may. Default: all may.
	Allow func(ctx context.Context, domain string) error
	// Headers are the names of the headers with the limit, what remains of it and the seconds until
	// it begins anew; empty = an answer has none.
	Headers [3]string
	// NearRatio is the share of a limit from which on hits count as near it.
	NearRatio float32
	Prefix    string // of the keys of all counters
	Shadow    bool   // no call is denied
	Quota     bool   // all limits are in quota mode
	Metadata  bool   // answers have dynamic metadata
	// Healthy says why the store does not answer. Default: nothing.
	Healthy func(context.Context) error
	// HealthyWithoutStore keeps the service healthy when a store that has answered once does so no
	// more. Else Kubernetes may restart it again and again, and wait longer each time.
	HealthyWithoutStore bool
	NeedDomains         bool // the service is unhealthy while no domain has a configuration
	Log                 *slog.Logger
	Now                 func() time.Time // default: time.Now
}

// Service answers calls.
type Service struct {
	rlsv3.UnimplementedRateLimitServiceServer
	o        Options
	metrics  *metrics
	errorLog *slog.Logger // of calls that end with an error, see errorEvery
	config   atomic.Pointer[config]
	health   *healthState
}

// config is the configuration in force.
type config struct {
	*ratelimitconfig.Set
	counters sync.Map // of *quotaservice.Counter, by the *ratelimitconfig.Limit that they are for
}

// maxDomain is how many bytes of a domain's name an error has.
const maxDomain = 100

// errorEvery is how often calls that end with an error are logged.
const errorEvery = 10 * time.Second

// New returns a service without a configuration.
func New(o Options) *Service {
	if o.Allow == nil {
		o.Allow = func(context.Context, string) error { return nil }
	}
	if o.Healthy == nil {
		o.Healthy = func(context.Context) error { return nil }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Service{
		o: o, metrics: newMetrics(), errorLog: lograte.NewEvery(errorEvery).Logger(o.Log), health: newHealthState(),
	}
}

// Use puts configurations in force, in place of all others. If they are wrong, those in force
// stay. An error is a policyfile.Errors. With merge several may be of one domain.
func (s *Service) Use(configs []*ratelimitconfig.Config, merge bool) error {
	joined, err := ratelimitconfig.Join(configs, merge)
	if err != nil {
		s.CountRejected()
		return err
	}
	for _, c := range joined {
		if len(c.Ignored) > 0 {
			s.o.Log.Warn("fields of the rate limit configuration are ignored where they stand", "fields", someOf(c.Ignored))
		}
	}
	s.config.Store(&config{Set: ratelimitconfig.Compile(joined)})
	s.metrics.loaded.Inc()
	return nil
}

// CountRejected counts a configuration that could not even be read.
func (s *Service) CountRejected() { s.metrics.notLoaded.Inc() }

// Domains is how many domains have a configuration; -1 = there is no configuration yet.
func (s *Service) Domains() int {
	c := s.config.Load()
	if c == nil {
		return -1
	}
	return c.Len()
}

var (
	errNoDomain      = errors.New("the rate limit domain must not be empty")
	errNoDescriptors = errors.New("the list of rate limit descriptors must not be empty")
	errNoConfig      = errors.New("no rate limit configuration is loaded yet")
)

// ShouldRateLimit implements rlsv3.RateLimitServiceServer.
func (s *Service) ShouldRateLimit(ctx context.Context, r *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	begin := s.o.Now()
	answer, err := s.answer(ctx, r)
	s.metrics.countCall(s.o.Now().Sub(begin))
	return answer, err
}

// answer answers a call, however it came.
func (s *Service) answer(ctx context.Context, r *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	answer, err := s.decide(ctx, r)
	if err != nil {
		s.metrics.countError(err)
		s.errorLog.Warn("a rate limit call ends with an error: failure_mode_deny decides", "error", err)
	}
	return answer, err
}

// call is a call while it is answered.
type call struct {
	service *Service
	config  *config
	request *rlsv3.RateLimitRequest
	nowUnix int64
	parts   []part // one a descriptor
	uses    []quotaservice.Use
}

// part is a descriptor of a call.
type part struct {
	match   ratelimitconfig.Match
	kind    kind
	units   uint64
	counted int // if it is limited: index of its use and of the total
}

// kind says what becomes of a descriptor.
type kind uint8

const (
	uncounted kind = iota // there is no limit for it, or another of the call replaces that: it passes
	unlimited             // its limit lets all pass
	limited               // it counts
)

func (s *Service) decide(ctx context.Context, r *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	c := call{service: s, config: s.config.Load(), request: r, nowUnix: s.o.Now().Unix()}
	switch {
	case r.GetDomain() == "":
		return nil, errNoDomain
	case len(r.GetDescriptors()) == 0:
		return nil, errNoDescriptors
	case c.config == nil:
		return nil, errNoConfig
	}
	if err := s.o.Allow(ctx, r.GetDomain()); err != nil {
		return nil, status.Errorf(codes.PermissionDenied, "domain %q: %v", printable.Cut(r.GetDomain(), maxDomain), err)
	}
	c.match()
	if err := c.makeUses(); err != nil {
		return nil, err
	}
	var keep func([]quotaservice.Total) bool
	if !c.config.CountDenied(r.GetDomain()) {
		keep = func(totals []quotaservice.Total) bool {
			return c.code(totals) == rlsv3.RateLimitResponse_OK || s.o.Shadow
		}
	}
	totals, err := s.o.Counter.Count(ctx, c.uses, keep)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	s.metrics.countHits(&c, totals)
	return c.answer(totals), nil
}

// match finds the limit of each descriptor. One that another limit of the call replaces does not
// count.
func (c *call) match() {
	c.parts = make([]part, len(c.request.GetDescriptors()))
	replaced := map[string]bool{}
	for i, d := range c.request.GetDescriptors() {
		p := &c.parts[i]
		p.units = uint64(max(c.request.GetHitsAddend(), 1))
		if d.GetHitsAddend() != nil {
			p.units = d.GetHitsAddend().GetValue()
		}
		match, ok := c.config.Match(c.request.GetDomain(), d)
		p.match = match
		if !ok {
			continue
		}
		for _, name := range match.Limit.Replaces {
			replaced[name] = true
		}
		p.kind = limited
		if match.Limit.Unlimited {
			p.kind = unlimited
		}
	}
	for i := range c.parts {
		if p := &c.parts[i]; p.kind == limited && replaced[p.match.Limit.Name] {
			p.kind = uncounted
		}
	}
}

// makeUses says what the call counts where.
func (c *call) makeUses() error {
	c.uses = make([]quotaservice.Use, 0, len(c.parts))
	for i := range c.parts {
		p := &c.parts[i]
		if p.kind != limited {
			continue
		}
		isOwn := c.request.GetDescriptors()[i].GetLimit() != nil
		counter, err := c.config.counter(c.request.GetDomain(), p.match.Limit, isOwn)
		if err != nil {
			return err
		}
		p.counted = len(c.uses)
		c.uses = append(c.uses, quotaservice.Use{
			Counter: counter, Key: append([]byte(c.service.o.Prefix), p.match.Key...),
			Units: uint32(min(p.units, math.MaxUint32)),
		})
	}
	return nil
}

// counterName is that of all counters of calls. A key has all else that tells two apart.
var counterName = [16]byte([]byte("ratelimit calls."))

// counter returns what a limit counts in. It is kept, unless a descriptor came with the limit.
func (c *config) counter(domain string, l *ratelimitconfig.Limit, isOwn bool) (*quotaservice.Counter, error) {
	if kept, ok := c.counters.Load(l); ok {
		return kept.(*quotaservice.Counter), nil
	}
	counter, err := quotaservice.NewCounter(domain, counterName, l.Windows)
	if err == nil && !isOwn {
		c.counters.Store(l, counter)
	}
	return counter, err
}
