package cli

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/listener"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/redisstore"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/transport"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const (
	defaultQuota     = "127.0.0.1:18001"
	defaultQuotaHTTP = "127.0.0.1:18081"
)

// quotaListener says how quota names its listener for proxies.
var quotaListener = proxyListener{
	name: "quota", flag: "listen", ca: "client-ca",
	danger: "anyone who reaches it could take the units of all proxies",
}

// quotaCommandOptions are the flags of quota.
type quotaCommandOptions struct {
	listenOptions
	quotas quotaOptions
	calls  callOptions
}

// AddFlags adds the flags.
func (o *quotaCommandOptions) AddFlags(cmd *cobra.Command) {
	o.listenOptions.AddFlags(cmd, defaultQuotaHTTP, defaultQuota)
	o.quotas.AddFlags(cmd, "memory|URL", "needed with --client-ca")
	o.calls.AddFlags(cmd)
}

func newQuotaCommand() *cobra.Command {
	o := quotaCommandOptions{listenOptions: listenOptions{proxies: quotaListener}}
	cmd := &cobra.Command{
		Use:   "quota",
		Short: "Run a quota service for rules of scope cluster",
		Long: `Run a quota service alone: proxies lease units of rules with "scope: cluster" from it.
sluice serve also has a quota service, on its xDS address. If several quota services use
one Redis, the others continue when one of them ends. It answers /healthz and /metrics
over HTTP and logs to standard error. On SIGINT or SIGTERM it answers the open asks and
ends.

With --ratelimit-config or --ratelimit-xds it also answers Envoy's rate limit calls, as
envoyproxy/ratelimit does: by gRPC where proxies connect to, and over HTTP at /json, with
/healthcheck. With --access, /json takes the role apply.

With --quota-store memory the proxies must use only one quota service, and its counts are
lost when it ends.

With --client-ca every proxy needs a certificate. --quota-domains says which domains of
policies a certificate may ask for, one line each, with * and {id} as in serve's
--node-names, such as: spiffe://corp/edge/* shop. With --quota-domains any, each
certificate may use up, or lock, every counter of the store.`,
		Example: `  sluice quota
  sluice quota --listen 0.0.0.0:18001 --http 0.0.0.0:18081 --quota-store redis://redis.corp:6379 \
      --tls-cert server.pem --tls-key server.key --client-ca proxies.pem --quota-domains domains --access access`,
		RunE: func(cmd *cobra.Command, _ []string) error { return unlessStopped(cmd.Context(), runQuota(cmd, &o)) },
	}
	o.AddFlags(cmd)
	return cmd
}

// check rejects flags that do not go together.
func (o *quotaCommandOptions) check(cmd *cobra.Command) error {
	if o.quotas.store == quotaOff {
		return usageError(errors.New("--quota-store off leaves nothing to run"), "give memory or a URL")
	}
	if err := o.quotas.check(o.xdsClientCA, "--client-ca"); err != nil {
		return err
	}
	if err := o.calls.check(cmd); err != nil {
		return err
	}
	if o.xdsClientCA != "" && o.quotas.domains == "" {
		return usageError(errors.New("--client-ca needs --quota-domains, which says whose units a proxy may take"),
			`give a file with lines SAN DOMAIN, such as "edge.corp shop", or any: each certificate may ask for every domain`)
	}
	return nil
}

func runQuota(cmd *cobra.Command, o *quotaCommandOptions) error {
	if err := o.check(cmd); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
	guard, err := o.guard(log)
	if err != nil {
		return err
	}
	s, err := o.listen(log, guard)
	if err != nil {
		return err
	}
	defer s.close()
	s.quotas, err = o.quotas.open(cmd.Context(), log, guard.proxyCAs, nil)
	if err != nil {
		return err
	}
	if err := o.calls.open(cmd.Context(), s, &o.listenOptions); err != nil {
		return err
	}
	s.handler = api.NewMetrics(api.Options{
		Identify: guard.identify, Log: log, Healthy: s.quotas.service.Healthy, Collectors: s.collectors(),
		Calls: s.callHandler(),
	})
	return s.run(cmd.Context())
}

// Values of --quota-store that are not a URL.
const (
	quotaMemory = "memory"
	quotaOff    = "off"
)

const (
	minSecret = 16
	maxSecret = 4096
)

// quotaOptions say where the quota service keeps its counters, and who may use them.
type quotaOptions struct {
	store        string
	passwordFile string
	keyFile      string
	domains      string
}

// AddFlags adds the flags of serve and quota, which differ in what stores they take and what
// holds without --quota-domains.
func (o *quotaOptions) AddFlags(cmd *cobra.Command, stores, domains string) {
	f := cmd.Flags()
	f.StringVar(&o.store, "quota-store", quotaMemory, "`"+stores+"` where rules of scope cluster count: memory is lost "+
		"with this process; redis://, redis+sentinel:// or redis+cluster:// can be shared by several")
	f.StringVar(&o.passwordFile, "quota-password-file", "", "`FILE` with the password of --quota-store's URL")
	f.StringVar(&o.keyFile, "quota-key-file", "", "`FILE` with a secret of at least 16 bytes that keeps clients' names "+
		"out of the store (default: a secret that the store keeps)")
	f.StringVar(&o.domains, "quota-domains", "", "`FILE` with lines SAN DOMAIN: which policy domains a certificate may "+
		"ask for; any lets each ask for all; "+domains)
}

// check rejects flags that do not go together.
func (o *quotaOptions) check(proxyCA, caFlag string) error {
	isURL := strings.Contains(o.store, "://")
	switch {
	case !isURL && o.store != quotaMemory && o.store != quotaOff:
		return usageError(errors.New("--quota-store is neither memory nor a URL"), "give a URL such as redis://HOST:6379")
	case !isURL && o.passwordFile != "":
		return usageError(errors.New("--quota-password-file needs a URL as --quota-store"),
			"the memory store has no password")
	case o.domains != "" && proxyCA == "":
		return usageError(errors.New("--quota-domains needs "+caFlag), "without it proxies show no certificate")
	}
	return nil
}

// quotas is a quota service on a listener for proxies. Without one it is empty.
type quotas struct {
	store   swapstore.Store
	service *quotaservice.Service
	server  *transport.Server
	allow   allowFunc // of the flag --quota-domains; nil: all may ask for every domain
	// callsAlone says that the listener takes rate limit calls, and no streams that ask for units.
	callsAlone bool
}

// open starts the service, unless it is off. Policies are those that serve gives to proxies, nil
// for a quota service alone.
func (o *quotaOptions) open(
	ctx context.Context, log *slog.Logger, proxyCAs func() *x509.CertPool, policies store.Store,
) (quotas, error) {
	if o.store == quotaOff {
		return quotas{}, nil
	}
	secret, err := o.secret()
	if err != nil {
		return quotas{}, err
	}
	allow, err := o.allow(log, proxyCAs)
	if err != nil {
		return quotas{}, err
	}
	s, err := o.openStore(ctx, log)
	if err != nil {
		return quotas{}, err
	}
	options := quotaservice.Options{Log: log, Secret: secret, Allow: allow, Store: s}
	if o.domains == "" && proxyCAs != nil {
		served := servedDomains{policies: policies, domains: map[string]bool{}}
		options.Allow = func(_ quotaservice.Peer, domain string) error { return served.allow(domain) }
	}
	if o.store != quotaMemory {
		options.SecretWait = quotaservice.SecretWait
	}
	q, err := newQuotas(ctx, options, proxyCAs)
	q.allow = allow
	return q, err
}

// newQuotas starts a service. It closes the store if that fails.
func newQuotas(ctx context.Context, o quotaservice.Options, proxyCAs func() *x509.CertPool) (quotas, error) {
	service, err := quotaservice.NewService(ctx, o)
	if err != nil {
		return quotas{}, errors.Join(err, o.Store.Close())
	}
	return quotas{store: o.Store, service: service, server: transport.NewServer(service, proxyCAs)}, nil
}

func (o *quotaOptions) openStore(ctx context.Context, log *slog.Logger) (swapstore.Store, error) {
	if o.store == quotaMemory {
		return swapstore.NewMemory(swapstore.SteadyClock()), nil
	}
	s, err := redisstore.Open(ctx, redisstore.Options{URL: o.store, PasswordFile: o.passwordFile, Log: log})
	if err != nil {
		return nil, withHint(fmt.Errorf("open --quota-store: %w", err),
			"for a first try, --quota-store memory needs no server")
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
		return nil, withHint(
			fmt.Errorf("--quota-key-file %s has %d bytes, but at least %d are needed", o.keyFile, len(secret), minSecret),
			"openssl rand -hex 32 makes a secret; all quota services of a store need the same one")
	}
	return []byte(secret), nil
}

// serverOptions are the options of a listener that serves quotas, with xDS or alone.
func (q *quotas) serverOptions(alone bool) []grpc.ServerOption {
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(transport.NewCodec(xds.NewCodec())),
	}
	if alone { // so that proxies find services that were added behind the address
		k := listener.Keepalive()
		k.MaxConnectionAge = 5 * time.Minute
		k.MaxConnectionAgeGrace = time.Minute
		options = append(options, grpc.KeepaliveParams(k))
	}
	return options
}

// close ends the service and its store.
func (q *quotas) close(log *slog.Logger) {
	q.service.Close()
	if err := q.store.Close(); err != nil {
		log.Error("close quota store", "error", err)
	}
}

// anyDomain is the --quota-domains that lets each certificate ask for every domain.
const anyDomain = "any"

// allowFunc is the error of a proxy that may not ask for a domain.
type allowFunc = func(proxy quotaservice.Peer, domain string) error

// allow reads --quota-domains. It returns nil if the flag forbids nothing.
func (o *quotaOptions) allow(log *slog.Logger, proxyCAs func() *x509.CertPool) (allowFunc, error) {
	if o.domains == "" || o.domains == anyDomain || proxyCAs == nil {
		return nil, nil
	}
	files := watchedFiles{log: log}
	rules := files.names("--quota-domains", o.domains)
	return func(p quotaservice.Peer, domain string) error {
		if p.Certificate == nil {
			return errors.New("the proxy showed no certificate")
		}
		return rules().Domain(p.Certificate, domain)
	}, files.err
}

// servedDomains are what certificates may ask for without --quota-domains: the domains of all
// policies that serve has had since it started. While a policy's domain changes, some proxies still
// have the one before.
type servedDomains struct {
	policies store.Store

	mu      sync.Mutex
	last    uint64 // the store's, when it was read
	domains map[string]bool
}

func (d *servedDomains) allow(domain string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.read(); err != nil {
		return fmt.Errorf("read the policy's domain: %w", err)
	}
	if !d.domains[domain] {
		return fmt.Errorf("serve has no policy of this domain: apply one, "+
			`or start serve with --quota-domains and a file with the line "SAN %s"`, domain)
	}
	return nil
}

// read adds the domain of each policy's newest revision, if there are new revisions.
func (d *servedDomains) read() error {
	ctx := context.Background() // the store is a file
	last, err := d.policies.Last(ctx)
	if err != nil || last == d.last {
		return err
	}
	list, err := d.policies.History(ctx, "", 0)
	if err != nil {
		return err
	}
	read := map[string]bool{} // policies
	for _, s := range list {
		if read[s.Policy] || s.Number <= d.last || s.Rollout.IsAborted() {
			continue
		}
		read[s.Policy] = !s.Rollout.Lasts() // else the others keep the one before
		revision, err := d.policies.Get(ctx, s.Number)
		if err != nil {
			return err
		}
		of := struct{ Domain string }{policy.DefaultDomain}
		if err := json.Unmarshal(revision.JSON, &of); err != nil {
			return err
		}
		d.domains[of.Domain] = true
	}
	d.last = last
	return nil
}
