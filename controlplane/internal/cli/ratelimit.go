package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
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
)

// callOptions are the flags of serve and quota for rate limit calls. Without a configuration there
// are no calls.
type callOptions struct {
	files    []string
	merge    bool
	xds      string
	xdsCA    string
	node     string
	headers  string
	metadata bool
}

// AddFlags adds the flags.
func (o *callOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&o.files, "ratelimit-config", nil, "`DIR|FILE` with the configuration of envoyproxy/ratelimit, by "+
		"which to answer Envoy's rate limit calls: of DIR all files, at any depth, whose names do not begin with a dot; "+
		"read again when it changes; may be repeated")
	f.BoolVar(&o.merge, "ratelimit-merge", false, "let several files or resources of that configuration be of one domain")
	f.StringVar(&o.xds, "ratelimit-xds", "", "`HOST:PORT` of an xDS server with that configuration, instead of files")
	f.StringVar(&o.xdsCA, "ratelimit-xds-ca", "", "`FILE` with the certificate authorities of --ratelimit-xds: the "+
		"connection has TLS, and shows the certificate of --tls-cert if there is one (default: no TLS)")
	f.StringVar(&o.node, "ratelimit-node", defaultXDSNode, "`ID` of this process at the xDS server")
	f.StringVar(&o.headers, "ratelimit-headers", "", "answer rate limit calls with headers that say the limit, what "+
		"remains of it, and the seconds until it begins anew; ="+"`NAME,NAME,NAME` names them")
	f.Lookup("ratelimit-headers").NoOptDefVal = defaultHeaders
	f.BoolVar(&o.metadata, "ratelimit-metadata", false, "answer rate limit calls with dynamic metadata: the call's "+
		"descriptors and the metadata of its limits")
}

// areOn reports whether rate limit calls are answered.
func (o *callOptions) areOn() bool { return len(o.files) > 0 || o.xds != "" }

// check rejects flags that do not go together.
func (o *callOptions) check(cmd *cobra.Command) error {
	if len(o.files) > 0 && o.xds != "" {
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
		if cmd.Flags().Changed(flag) && o.xds == "" {
			return usageError(fmt.Errorf("--%s needs --ratelimit-xds", flag), "give HOST:PORT of the xDS server")
		}
	}
	if _, _, err := net.SplitHostPort(o.xds); err != nil && o.xds != "" {
		return usageError(fmt.Errorf("--ratelimit-xds %q is not an address", o.xds),
			"give HOST:PORT, for example envoy-gateway:18001")
	}
	_, err := o.headerNames()
	return err
}

// headerNames are empty without --ratelimit-headers.
func (o *callOptions) headerNames() (names [3]string, err error) {
	if o.headers == "" {
		return names, nil
	}
	list := strings.Split(o.headers, ",")
	if len(list) != len(names) || strings.Contains(","+o.headers+",", ",,") {
		return names, usageError(fmt.Errorf("--ratelimit-headers %q is not three names", o.headers),
			"give the names for limit, remaining and reset, such as --ratelimit-headers="+defaultHeaders)
	}
	return [3]string(list), nil
}

// open has s answer rate limit calls, if there is a configuration for them. Files are read first:
// an error says what is wrong in them. An xDS server may come later; until then calls end with an
// error.
func (o *callOptions) open(ctx context.Context, s *servers, listen *listenOptions) error {
	if !o.areOn() {
		return nil
	}
	names, err := o.headerNames()
	if err != nil {
		return err
	}
	s.openCalls(front.Options{Headers: names, NearRatio: defaultNearRatio, Metadata: o.metadata})
	if o.xds == "" {
		files := front.FileOptions{Paths: o.files, IgnoreDotFiles: true, Merge: o.merge}
		if err := s.calls.WatchFiles(ctx, files); err != nil {
			return fmt.Errorf("read --ratelimit-config: %w", err)
		}
		return nil
	}
	source := front.XDSOptions{Target: o.xds, Node: o.node, Merge: o.merge}
	if o.xdsCA != "" {
		source.Credentials, err = newFreshTLS(func() (*tls.Config, error) {
			return clientTLS("--ratelimit-xds-ca", o.xdsCA, "--tls-cert", listen.tlsCert, listen.tlsKey)
		})
	}
	if err == nil {
		go s.watchXDS(ctx, source)
	}
	return err
}

// watchXDS takes the configuration from an xDS server, whenever it comes.
func (s *servers) watchXDS(ctx context.Context, o front.XDSOptions) {
	if err := s.calls.WatchXDS(ctx, o); err != nil && ctx.Err() == nil {
		s.log.Error("no configuration of rate limit calls", "error", err)
	}
}

// openCalls makes what answers rate limit calls. The options say all but whose they are.
func (s *servers) openCalls(o front.Options) {
	o.Counter, o.Healthy = s.quotas.service, s.quotas.service.Healthy
	o.Allow, o.Log = s.allowCall, s.log
	s.calls = front.New(o)
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

// freshTLS reads the files of a client's configuration again for each connection.
type freshTLS struct {
	credentials.TransportCredentials
	read func() (*tls.Config, error)
}

// newFreshTLS returns an error if the files are wrong at the start.
func newFreshTLS(read func() (*tls.Config, error)) (credentials.TransportCredentials, error) {
	config, err := read()
	return freshTLS{credentials.NewTLS(config), read}, err
}

// ClientHandshake implements credentials.TransportCredentials.
func (f freshTLS) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	config, err := f.read()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, raw)
}

// Clone implements credentials.TransportCredentials.
func (f freshTLS) Clone() credentials.TransportCredentials { return f }
