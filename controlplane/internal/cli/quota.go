package cli

import (
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli/serving"
)

const (
	defaultQuota     = "127.0.0.1:18001"
	defaultQuotaHTTP = "127.0.0.1:18081"
)

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
	o := quotaCommandOptions{listenOptions: listenOptions{words: quotaWords}}
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
	if err := o.quotas.check(&o.listenOptions); err != nil {
		return err
	}
	if err := o.calls.check(cmd); err != nil {
		return err
	}
	if o.proxyCA != "" && o.quotas.domains == "" {
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
	listeners, err := o.listen()
	if err != nil {
		return err
	}
	defer listeners.Close()
	s := serving.New(serving.Options{Log: log, Guard: guard, Name: o.words.name, Spread: true})
	defer s.Close()
	quota, err := o.quotas.open(cmd.Context(), log, guard.ProxyCAs, nil)
	if err != nil {
		return err
	}
	s.AddQuota(quota)
	calls, err := o.calls.open(cmd.Context(), s, quota, &o.listenOptions)
	if err != nil {
		return err
	}
	return s.Run(cmd.Context(), listeners, api.NewMetrics(api.Options{
		Identify: guard.Identify, Log: log, Healthy: quota.Service.Healthy, Collectors: s.Collectors(), Calls: calls,
	}))
}
