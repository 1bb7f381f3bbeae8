package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/credentials"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli/flagfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli/ratelimitenv"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli/serving"
)

// theDefault is the value of --ratelimit-headers without one.
const theDefault = "default"

// callOptions say how rate limit calls are answered. Without a configuration there are none.
type callOptions struct {
	serving.CallOptions

	headers string // their names with commas between, theDefault, or empty: none
	xdsCA   string
}

// AddFlags adds the flags.
func (o *callOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&o.Files.Paths, "ratelimit-config", nil, "`DIR|FILE` with the configuration of "+
		"envoyproxy/ratelimit, by which to answer Envoy's rate limit calls; read again when it changes; may be repeated")
	f.BoolVar(&o.Files.Merge, "ratelimit-merge", false, "let several files or resources of that configuration be of "+
		"one domain")
	f.StringVar(&o.XDS.Target, "ratelimit-xds", "", "`HOST:PORT` of an xDS server with that configuration, instead of "+
		"files")
	f.StringVar(&o.xdsCA, "ratelimit-xds-ca", "", "`FILE` with the certificate authorities of --ratelimit-xds: the "+
		"connection has TLS, and shows the certificate of --tls-cert if there is one (default: no TLS)")
	f.StringVar(&o.XDS.Node, "ratelimit-node", ratelimitenv.DefaultNode, "`ID` of this process at the xDS server")
	f.StringVar(&o.headers, "ratelimit-headers", "", "answer rate limit calls with headers that say the limit, what "+
		"remains of it, and the seconds until it begins anew; =`NAMES`, three with commas between, names them")
	f.Lookup("ratelimit-headers").NoOptDefVal = theDefault
	f.BoolVar(&o.Answers.Metadata, "ratelimit-metadata", false, "answer rate limit calls with dynamic metadata: the "+
		"call's descriptors and the metadata of its limits")
}

// areOn reports whether rate limit calls are answered.
func (o *callOptions) areOn() bool { return len(o.Files.Paths) > 0 || o.XDS.Target != "" }

// check rejects flags that do not go together.
func (o *callOptions) check(cmd *cobra.Command) error {
	if len(o.Files.Paths) > 0 && o.XDS.Target != "" {
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
		if cmd.Flags().Changed(flag) && o.XDS.Target == "" {
			return usageError(fmt.Errorf("--%s needs --ratelimit-xds", flag), "give HOST:PORT of the xDS server")
		}
	}
	if _, _, err := net.SplitHostPort(o.XDS.Target); err != nil && o.XDS.Target != "" {
		return usageError(fmt.Errorf("--ratelimit-xds %q is not an address", o.XDS.Target),
			"give HOST:PORT, for example envoy-gateway:18001")
	}
	_, err := o.headerNames()
	return err
}

// headerNames are the names of the headers for limit, remaining and reset, empty without headers.
func (o *callOptions) headerNames() (names [3]string, err error) {
	if o.headers == "" {
		return names, nil
	}
	text := o.headers
	if text == theDefault {
		text = ratelimitenv.DefaultHeaders
	}
	list := strings.Split(text, ",")
	if len(list) != len(names) || slices.Contains(list, "") {
		return names, usageError(fmt.Errorf("--ratelimit-headers %q is not three names", o.headers),
			"give the names for limit, remaining and reset, such as --ratelimit-headers="+ratelimitenv.DefaultHeaders)
	}
	return [3]string(list), nil
}

// open has s answer rate limit calls, if there is a configuration for them. They count in quota. The
// handler answers those over HTTP, nil if there are none.
func (o *callOptions) open(
	ctx context.Context, s *serving.Servers, quota *serving.Quota, listen *listenOptions,
) (http.Handler, error) {
	if !o.areOn() {
		return nil, nil
	}
	var err error
	options := o.CallOptions
	options.Answers.NearRatio = ratelimitenv.DefaultNearRatio
	options.Answers.Headers, err = o.headerNames()
	if err != nil {
		return nil, err
	}
	options.XDS.Merge = options.Files.Merge
	if o.xdsCA != "" {
		config, err := flagfile.ClientTLS("--ratelimit-xds-ca", o.xdsCA, "--tls-cert", listen.tlsCert, listen.tlsKey)
		if err != nil {
			return nil, err
		}
		options.XDS.Credentials = credentials.NewTLS(config)
	}
	calls, err := quota.OpenCalls(ctx, options)
	if err != nil {
		return nil, err
	}
	s.AddCalls(calls)
	return calls.Handler(), nil
}
