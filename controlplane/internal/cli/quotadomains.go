package cli

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quota"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// anyDomain is --quota-domains where a certificate may ask for every domain.
const anyDomain = "any"

// allow returns what --quota-domains says of a proxy, nil where each may ask for
// anything. A file is read again when it changes. Without the flag, certificates are
// for the domains of policies, if there are any: those that serve gives to proxies.
func (o *quotaOptions) allow(log *slog.Logger, proxyCAs func() *x509.CertPool, policies store.Store) (func(quota.Peer, string) error, error) {
	switch {
	case o.domains == anyDomain || proxyCAs == nil:
		return nil, nil
	case o.domains == "":
		served := servedDomains{policies: policies, domains: map[string]bool{}}
		return func(_ quota.Peer, domain string) error { return served.allow(domain) }, nil
	}
	rules, err := openNames(log, "--quota-domains", o.domains)
	if err != nil {
		return nil, err
	}
	return func(p quota.Peer, domain string) error {
		if p.Certificate == nil {
			return errors.New("the proxy showed no certificate")
		}
		return rules.Get().Domain(p.Certificate, domain)
	}, nil
}

// servedDomains are the domains of the policies that serve has had since it started:
// while the domain changes, some proxies have the one before.
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
		return fmt.Errorf(`serve has no policy of it: apply one, or start serve with --quota-domains and a file with the line "SAN %s"`, domain)
	}
	return nil
}

// read notes the domain of each policy's newest revision, if there is a new one.
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
