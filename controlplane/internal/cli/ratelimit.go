package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/front"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/listener"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice"
)

const (
	defaultNearRatio = 0.8
	defaultXDSNode   = "default"
	defaultHeaders   = "RateLimit-Limit,RateLimit-Remaining,RateLimit-Reset"
	// theDefault is the value of --ratelimit-headers without one.
	theDefault = "default"
)

// callOptions say how rate limit calls are answered. Without a configuration there are none.
type callOptions struct {
	answers front.Options
	headers string // their names with commas between, theDefault, or empty: none
	files   front.FileOptions
	xds     front.XDSOptions // instead of files
	xdsCA   string
	waits   bool // until the xDS server sends the first configuration
}

// AddFlags adds the flags.
func (o *callOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	o.answers.NearRatio = defaultNearRatio
	f.StringArrayVar(&o.files.Paths, "ratelimit-config", nil, "`DIR|FILE` with the configuration of "+
		"envoyproxy/ratelimit, by which to answer Envoy's rate limit calls; read again when it changes; may be repeated")
	f.BoolVar(&o.files.Merge, "ratelimit-merge", false, "let several files or resources of that configuration be of "+
		"one domain")
	f.StringVar(&o.xds.Target, "ratelimit-xds", "", "`HOST:PORT` of an xDS server with that configuration, instead of "+
		"files")
	f.StringVar(&o.xdsCA, "ratelimit-xds-ca", "", "`FILE` with the certificate authorities of --ratelimit-xds: the "+
		"connection has TLS, and shows the certificate of --tls-cert if there is one (default: no TLS)")
	f.StringVar(&o.xds.Node, "ratelimit-node", defaultXDSNode, "`ID` of this process at the xDS server")
	f.StringVar(&o.headers, "ratelimit-headers", "", "answer rate limit calls with headers that say the limit, what "+
		"remains of it, and the seconds until it begins anew; =`NAMES`, three with commas between, names them")
	f.Lookup("ratelimit-headers").NoOptDefVal = theDefault
	f.BoolVar(&o.answers.Metadata, "ratelimit-metadata", false, "answer rate limit calls with dynamic metadata: the "+
		"call's descriptors and the metadata of its limits")
}

// areOn reports whether rate limit calls are answered.
func (o *callOptions) areOn() bool { return len(o.files.Paths) > 0 || o.xds.Target != "" }

// check rejects flags that do not go together.
func (o *callOptions) check(cmd *cobra.Command) error {
	if len(o.files.Paths) > 0 && o.xds.Target != "" {
		return usageError(errors.New("--ratelimit-config and --ratelimit-xds exclude each other"),
			"the configuration comes from files or from an xDS server")
	}
	for _, flag := range []string{"ratelimit-merge", "ratelimit-headers", "ratelimit-metadata"} {
		if cmd.Flags().Changed(flag) && !o.areOn() {
			return usageError(fmt.Errorf("--%s needs --ratelimit-config or --ratelimit-xds", flag),
				"they say where the configuration for rate limit calls is; without one no call is answered")
		}
	}
	for _, flag := range []string{"ratelimit-xds-ca", "ratelimit-node"} {
		if cmd.Flags().Changed(flag) && o.xds.Target == "" {
			return usageError(fmt.Errorf("--%s needs --ratelimit-xds", flag), "give HOST:PORT of the xDS server")
		}
	}
	if _, _, err := net.SplitHostPort(o.xds.Target); err != nil && o.xds.Target != "" {
		return usageError(fmt.Errorf("--ratelimit-xds %q is not an address", o.xds.Target),
			"give HOST:PORT, for example envoy-gateway:18001")
	}
	return o.nameHeaders()
}

// nameHeaders reads the names of headers.
func (o *callOptions) nameHeaders() error {
	names := strings.Split(o.headers, ",")
	switch {
	case o.headers == "":
		return nil
	case o.headers == theDefault:
		names = strings.Split(defaultHeaders, ",")
	case len(names) != len(o.answers.Headers) || slices.Contains(names, ""):
		return usageError(fmt.Errorf("--ratelimit-headers %q is not three names", o.headers),
			"give the names for limit, remaining and reset, such as --ratelimit-headers="+defaultHeaders)
	}
	o.answers.Headers = [3]string(names)
	return nil
}

// open has s answer rate limit calls, if there is a configuration for them.
func (o *callOptions) open(ctx context.Context, s *servers, listen *listenOptions) error {
	if !o.areOn() {
		return nil
	}
	o.xds.Merge = o.files.Merge
	if o.xdsCA != "" {
		config, err := clientTLS("--ratelimit-xds-ca", o.xdsCA, "--tls-cert", listen.tlsCert, listen.tlsKey)
		if err != nil {
			return err
		}
		o.xds.Credentials = credentials.NewTLS(config)
	}
	return s.openCalls(ctx, o)
}

// openCalls makes what answers rate limit calls. Files are read first: an error says what is wrong in
// them. An xDS server may come later: until then calls end with an error.
func (s *servers) openCalls(ctx context.Context, o *callOptions) error {
	o.answers.Counter, o.answers.Healthy = s.quotas.service, s.quotas.service.Healthy
	o.answers.Allow, o.answers.Log = s.allowCall, s.log
	s.calls = front.New(o.answers)
	switch {
	case o.xds.Target == "":
		if err := s.calls.WatchFiles(ctx, o.files); err != nil {
			return fmt.Errorf("read the rate limit configuration: %w", err)
		}
		return nil
	case o.waits:
		return s.calls.WatchXDS(ctx, o.xds)
	}
	go func() {
		if err := s.calls.WatchXDS(ctx, o.xds); err != nil && ctx.Err() == nil {
			s.log.Error("no rate limit configuration comes", "error", err)
		}
	}()
	return nil
}

// allowCall says why the caller may not make calls in a domain. The API's guard has admitted those
// who do not call by gRPC. Calls count only in domains that are configured, so without
// --quota-domains a certificate is enough.
func (s *servers) allowCall(ctx context.Context, domain string) error {
	if _, isGRPC := peer.FromContext(ctx); !isGRPC {
		return nil
	}
	proxy, address := listener.PeerOf(ctx)
	if err := proxy.AdmitCall(s.guard.proxyCAs); err != nil || s.quotas.allow == nil {
		return err
	}
	return s.quotas.allow(quotaservice.Peer{Address: address, Certificate: proxy.Certificate()}, domain)
}

// callHandler answers rate limit calls over HTTP, nil without any. They end when they are done,
// also while the process stops.
func (s *servers) callHandler() http.Handler {
	if s.calls == nil {
		return nil
	}
	mux := http.NewServeMux()
	s.calls.AddRoutes(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mux.ServeHTTP(w, r.WithContext(context.WithoutCancel(r.Context())))
	})
}

// collectors are the metrics of what answers proxies.
func (s *servers) collectors() (list []prometheus.Collector) {
	if s.quotas.service != nil {
		list = append(list, s.quotas.service.Collectors()...)
	}
	if s.calls != nil {
		list = append(list, s.calls.Collectors()...)
	}
	return list
}
