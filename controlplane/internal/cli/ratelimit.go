package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli/flagfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli/ratelimitenv"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli/serving"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/redisstore"
)

// ratelimitName is the name under which this program takes the place of envoyproxy/ratelimit.
const ratelimitName = "ratelimit"

func newRatelimitCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   ratelimitName,
		Short: "Answer Envoy's rate limit calls in the place of envoyproxy/ratelimit",
		Long: `Answer Envoy's rate limit calls in the place of envoyproxy/ratelimit. This is sluice under
another name: it takes its settings from the environment, as that service does.`,
		Example:       `  RUNTIME_ROOT=/data REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379 ratelimit`,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return unlessStopped(cmd.Context(), runRatelimit(cmd.Context(), cmd.ErrOrStderr()))
		},
	}
	complete(cmd)
	return cmd
}

func runRatelimit(ctx context.Context, stderr io.Writer) error {
	settings, err := ratelimitenv.Read(stderr)
	if err != nil {
		return usageError(err, "the settings are those of envoyproxy/ratelimit")
	}
	guard, err := ratelimitGuard(&settings)
	if err != nil {
		return err
	}
	s := serving.New(serving.Options{Log: settings.Log, Guard: guard, Name: "grpc", Spread: true})
	defer s.Close()
	quota, err := openRatelimitQuota(ctx, &settings, guard.ProxyCAs)
	if err != nil {
		return err
	}
	s.AddCounters(quota)
	// It listens once there is a configuration, so that proxies call another process until then.
	calls, err := quota.OpenCalls(ctx, settings.Calls)
	if err != nil {
		return err
	}
	s.AddCalls(calls)
	listeners, err := openListeners(settingAddress{"PORT", settings.HTTP}, settingAddress{"GRPC_PORT", settings.GRPC})
	if err != nil {
		return err
	}
	defer listeners.Close()
	if settings.Prometheus != "" {
		web, err := serveMetrics(&settings, s.Collectors())
		if err != nil {
			return err
		}
		defer func() { _ = web.Close() }()
	}
	return s.Run(ctx, listeners, calls.Handler())
}

// ratelimitGuard reads the files of TLS. HTTP takes any caller, as with envoyproxy/ratelimit.
func ratelimitGuard(from *ratelimitenv.Settings) (serving.Guard, error) {
	files := flagfile.Watched{Log: from.Log}
	pair := files.Certificate("GRPC_SERVER_TLS_CERT", from.Cert, from.Key)
	g := serving.Guard{ProxyCAs: files.Authorities("GRPC_CLIENT_TLS_CACERT", from.ClientCA)}
	if pair != nil {
		g.Proxies = flagfile.ServerTLS(pair, g.ProxyCAs, tls.RequireAndVerifyClientCert, "h2")
	}
	return g, files.Err
}

// openRatelimitQuota starts what counts, in Redis.
func openRatelimitQuota(
	ctx context.Context, from *ratelimitenv.Settings, proxyCAs func() *x509.CertPool,
) (*serving.Quota, error) {
	redis := from.Redis
	redis.Log = from.Log
	store, err := redisstore.Open(ctx, redis)
	if err != nil {
		return nil, withHint(fmt.Errorf("open REDIS_URL: %w", err),
			"REDIS_SOCKET_TYPE, REDIS_TYPE, REDIS_URL, REDIS_AUTH and REDIS_TLS say which Redis")
	}
	o := serving.QuotaOptions{
		Options:  quotaservice.Options{Log: from.Log, Store: store, SecretWait: quotaservice.SecretWait},
		ProxyCAs: proxyCAs,
	}
	if from.ClientName != "" {
		o.AllowCall = func(p quotaservice.Peer, _ string) error { return p.Certificate.VerifyHostname(from.ClientName) }
	}
	return serving.NewQuota(ctx, o)
}

// serveMetrics serves Prometheus at an address of its own.
func serveMetrics(from *ratelimitenv.Settings, parts []prometheus.Collector) (*http.Server, error) {
	l, err := settingAddress{"PROMETHEUS_ADDR", from.Prometheus}.open()
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registry.MustRegister(parts...)
	mux := http.NewServeMux()
	mux.Handle(from.MetricsPath, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	web := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = web.Serve(l) }() // it ends with the process
	return web, nil
}
