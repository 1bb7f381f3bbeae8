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

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli/flagfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli/serving"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/redisstore"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/swapstore"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

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
func (o *quotaOptions) check(listen *listenOptions) error {
	isURL := strings.Contains(o.store, "://")
	switch {
	case !isURL && o.store != quotaMemory && o.store != quotaOff:
		return usageError(errors.New("--quota-store is neither memory nor a URL"), "give a URL such as redis://HOST:6379")
	case !isURL && o.passwordFile != "":
		return usageError(errors.New("--quota-password-file needs a URL as --quota-store"),
			"the memory store has no password")
	case o.domains != "" && listen.proxyCA == "":
		return usageError(errors.New("--quota-domains needs --"+listen.words.ca), "without it proxies show no certificate")
	}
	return nil
}

// isPrivate reports whether no other process can use the store.
func (o *quotaOptions) isPrivate() bool { return o.store == quotaMemory }

// open starts the service. Without --quota-domains a certificate may ask for the domains of the
// policies, if there are any: a quota service alone has none.
func (o *quotaOptions) open(
	ctx context.Context, log *slog.Logger, proxyCAs func() *x509.CertPool, policies store.Policies,
) (*serving.Quota, error) {
	secret, err := o.secret()
	if err != nil {
		return nil, err
	}
	allow, err := o.allow(log, proxyCAs)
	if err != nil {
		return nil, err
	}
	counters, err := o.openCounters(ctx, log)
	if err != nil {
		return nil, err
	}
	options := serving.QuotaOptions{
		Options:  quotaservice.Options{Log: log, Secret: secret, Allow: allow, Store: counters},
		ProxyCAs: proxyCAs, AllowCall: allow,
	}
	if o.domains == "" && proxyCAs != nil {
		served := servedDomains{policies: policies, domains: map[string]bool{}}
		options.Allow = func(_ quotaservice.Peer, domain string) error { return served.allow(domain) }
	}
	if !o.isPrivate() {
		options.SecretWait = quotaservice.SecretWait
	}
	return serving.NewQuota(ctx, options)
}

func (o *quotaOptions) openCounters(ctx context.Context, log *slog.Logger) (swapstore.Store, error) {
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

// anyDomain is the --quota-domains that lets each certificate ask for every domain.
const anyDomain = "any"

// allow reads --quota-domains. It returns nil if the flag forbids nothing.
func (o *quotaOptions) allow(log *slog.Logger, proxyCAs func() *x509.CertPool) (serving.AllowFunc, error) {
	if o.domains == "" || o.domains == anyDomain || proxyCAs == nil {
		return nil, nil
	}
	files := flagfile.Watched{Log: log}
	rules := files.NodeIDs("--quota-domains", o.domains)
	return func(p quotaservice.Peer, domain string) error {
		if p.Certificate == nil {
			return errors.New("the proxy showed no certificate")
		}
		return rules().Domain(p.Certificate, domain)
	}, files.Err
}

// servedDomains are what certificates may ask for without --quota-domains: the domains of all
// policies that serve has had since it started. While a policy's domain changes, some proxies still
// have the one before.
type servedDomains struct {
	policies store.Policies

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
	ctx := context.Background() // no store waits for the network to read
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
