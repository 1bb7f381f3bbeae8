package cli

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quota"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quota/redisstore"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

// What --quota-store may be beside a URL.
const (
	quotaMemory = "memory"
	quotaOff    = "off"
)

const (
	minSecret = 16
	maxSecret = 4096
	// quotaPings is how often proxies may ping: the rendered cluster does it each second.
	quotaPings = 500 * time.Millisecond
)

// quotaOptions say where the quota service keeps what keys have counted.
type quotaOptions struct {
	store        string
	passwordFile string
	keyFile      string
	domains      string
}

// AddFlags adds the flags of serve and quota, which differ in what stores there are and
// what holds without --quota-domains.
func (o *quotaOptions) AddFlags(cmd *cobra.Command, stores, domains string) {
	f := cmd.Flags()
	f.StringVar(&o.store, "quota-store", quotaMemory, "`"+stores+"` where rules of scope cluster count: memory is lost with this process; redis://, redis+sentinel:// or redis+cluster:// takes several")
	f.StringVar(&o.passwordFile, "quota-password-file", "", "`FILE` with the password of --quota-store's URL")
	f.StringVar(&o.keyFile, "quota-key-file", "", "`FILE` with a secret of at least 16 bytes that keeps clients' names out of the store; default: one that the store keeps")
	f.StringVar(&o.domains, "quota-domains", "", "`FILE` with lines SAN DOMAIN: which policy domains a certificate may ask for; any = each all; "+domains)
}

// check refuses flags that do not go together.
func (o *quotaOptions) check(proxyCA, caFlag string) error {
	isURL := strings.Contains(o.store, "://")
	switch {
	case !isURL && o.store != quotaMemory && o.store != quotaOff:
		return usageError(errors.New("--quota-store is neither memory nor a URL"), "give a URL such as redis://HOST:6379")
	case !isURL && o.passwordFile != "":
		return usageError(errors.New("--quota-password-file needs a URL as --quota-store"), "the memory store has no password")
	case o.domains != "" && proxyCA == "":
		return usageError(errors.New("--quota-domains needs "+caFlag), "without it proxies show no certificate")
	}
	return nil
}

// quotas is a quota service on a listener for proxies.
type quotas struct {
	store   quota.Store
	service *quota.Service
	server  *quota.Server
}

// open starts the service, nil where it is off. It stands beside the policies that
// serve gives to proxies, or alone.
func (o *quotaOptions) open(ctx context.Context, log *slog.Logger, proxyCAs func() *x509.CertPool, policies store.Store) (_ *quotas, err error) {
	if o.store == quotaOff {
		return nil, nil
	}
	options := quota.Options{Log: log}
	if options.Secret, err = o.secret(); err != nil {
		return nil, err
	}
	if options.Allow, err = o.allow(log, proxyCAs, policies); err != nil {
		return nil, err
	}
	if options.Store, err = o.openStore(ctx, log); err != nil {
		return nil, err
	}
	if o.store != quotaMemory {
		options.Settle = quota.SettleFor
	}
	q := quotas{store: options.Store}
	if q.service, err = quota.NewService(ctx, options); err != nil {
		return nil, errors.Join(err, q.store.Close())
	}
	q.server = quota.NewServer(q.service, func(ctx context.Context) quota.Guest { return xds.GuestOf(ctx, proxyCAs) })
	return &q, nil
}

func (o *quotaOptions) openStore(ctx context.Context, log *slog.Logger) (quota.Store, error) {
	if o.store == quotaMemory {
		log.Info("the memory store begins without state: of rules with settle or algorithm concurrency it grants nothing for an eighth of hold and 4s, " +
			"while proxies state what they hold")
		return quota.NewMemory(quota.SteadyClock()), nil
	}
	s, err := redisstore.Open(ctx, redisstore.Options{URL: o.store, PasswordFile: o.passwordFile, Log: log})
	if err != nil {
		return nil, withHint(fmt.Errorf("open --quota-store: %w", err), "--quota-store memory needs no server; use it for a try")
	}
	return s, nil
}

// secret reads --quota-key-file, nil without it.
func (o *quotaOptions) secret() ([]byte, error) {
	if o.keyFile == "" {
		return nil, nil
	}
	text, err := input.File(o.keyFile, maxSecret)
	if err != nil {
		return nil, fmt.Errorf("read --quota-key-file: %w", err)
	}
	secret := strings.TrimRight(string(text), "\r\n")
	if len(secret) < minSecret {
		return nil, withHint(fmt.Errorf("--quota-key-file %s has %d bytes, at least %d are needed", o.keyFile, len(secret), minSecret),
			"openssl rand -hex 32 makes one; all quota services of a store need the same")
	}
	return []byte(secret), nil
}

// serverOptions are those of a listener that serves quotas, beside xDS or alone.
func (q *quotas) serverOptions(alone bool) []grpc.ServerOption {
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(quota.NewCodec(xds.NewCodec())),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: quotaPings, PermitWithoutStream: true}),
	}
	if alone { // so that proxies find services that were added behind the address
		options = append(options, grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: 5 * time.Minute, MaxConnectionAgeGrace: time.Minute, Time: 30 * time.Second, Timeout: 20 * time.Second,
		}))
	}
	return options
}

// forAPI is the service for operations on counters.
func (o *quotaOptions) forAPI(q *quotas) api.Quota {
	if q == nil {
		return api.Quota{}
	}
	return api.Quota{Service: q.service, Private: o.store == quotaMemory}
}

// collectors are the service's metrics.
func (q *quotas) collectors() []prometheus.Collector {
	if q == nil {
		return nil
	}
	return q.service.Collectors()
}

// close closes the store.
func (q *quotas) close(log *slog.Logger) {
	if err := q.store.Close(); err != nil {
		log.Error("close quota store", "error", err)
	}
}
