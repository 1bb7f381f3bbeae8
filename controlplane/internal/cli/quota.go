package cli

import (
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
)

const (
	defaultQuota     = "127.0.0.1:18001"
	defaultQuotaHTTP = "127.0.0.1:18081"
)

// quotaListener says how quota names its listener for proxies.
var quotaListener = proxyListener{
	name: "quota", flag: "--listen", ca: "client-ca",
	danger: "anyone who reaches it could take the units of all proxies",
}

type quotaCommandOptions struct {
	listenOptions
	quotas quotaOptions
}

func newQuotaCommand() *cobra.Command {
	o := quotaCommandOptions{listenOptions: listenOptions{proxies: quotaListener}}
	return with(&cobra.Command{
		Use:   "quota",
		Short: "Run a quota service for rules of scope cluster",
		Long: `Run a quota service alone: proxies lease units of rules with "scope: cluster"
from it. sluice serve has one on its xDS address; several of these on one Redis
survive each other. It answers /healthz and /metrics over HTTP, logs to standard
error and ends on SIGINT or SIGTERM, once open asks are answered.

With --quota-store memory it must be the only one of its proxies, and what was
counted is lost with it.

With --client-ca every proxy needs a certificate, and --quota-domains says which
domains of policies a certificate may ask for, one line each, with * and {id} as in
serve's --node-names, such as: spiffe://corp/edge/* shop. With --quota-domains any
each certificate may use up, or lock, every counter of the store.`,
		Example: `  sluice quota
  sluice quota --listen 0.0.0.0:18001 --http 0.0.0.0:18081 --quota-store redis://redis.corp:6379 \
      --tls-cert server.pem --tls-key server.key --client-ca proxies.pem --quota-domains domains --access access`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return unlessStopped(cmd.Context(), runQuota(cmd, o)) },
	}, func(cmd *cobra.Command) { o.AddFlags(cmd, defaultQuotaHTTP, defaultQuota) }, func(cmd *cobra.Command) { o.quotas.AddFlags(cmd, "memory|URL", "needed with --client-ca") })
}

func runQuota(cmd *cobra.Command, o quotaCommandOptions) error {
	if o.quotas.store == quotaOff {
		return usageError(errors.New("--quota-store off leaves nothing to run"), "give memory or a URL")
	}
	if err := o.quotas.check(o.xdsClientCA, "--client-ca"); err != nil {
		return err
	}
	if o.xdsClientCA != "" && o.quotas.domains == "" {
		return usageError(errors.New("--client-ca needs --quota-domains: certificates alone do not say whose units a proxy may take"),
			`give a file with lines SAN DOMAIN, such as "edge.corp shop", or any to let each certificate ask for every domain`)
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
	if s.quotas, err = o.quotas.open(cmd.Context(), log, guard.proxyCAs, nil); err != nil {
		return err
	}
	s.handler = api.NewMetrics(api.Options{
		Identify: guard.identify, Log: log, Healthy: s.quotas.service.Healthy, Collectors: s.quotas.collectors(),
	})
	return s.run(cmd.Context())
}
