package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli/flagfile"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proxy"
)

// serviceOptions are flags of run and render: which control plane gives a proxy its policy, and which
// quota service leases units to it.
type serviceOptions struct {
	xds, quota []string
	node       string
	tls        envoy.ClientTLS // to both
}

// AddFlags adds the flags of a proxy that is rendered or run. Nodes is what holds without --node.
func (o *serviceOptions) AddFlags(cmd *cobra.Command, nodes string) {
	f := cmd.Flags()
	f.StringSliceVar(&o.xds, "xds", nil, "`HOST:PORT` of the control plane, or several, separated by commas: the proxy "+
		"uses the first that answers")
	f.StringVar(&o.node, "node", "", "node `ID` by which the control plane knows the proxy "+nodes)
	f.StringSliceVar(&o.quota, "quota", nil, "`HOST:PORT` of the quota service, for rules of scope cluster, or several "+
		"like --xds (default: the control plane)")
	f.StringVar(&o.tls.CA, "xds-ca", "", "use TLS; `FILE` with the certificate authority of the control plane "+
		"and the quota service")
	f.StringVar(&o.tls.Cert, "xds-cert", "", "`FILE` with the client certificate for both; --node must be one of its DNS "+
		"or URI names, or an id that serve --node-names allows it")
	f.StringVar(&o.tls.Key, "xds-key", "", "`FILE` with its key")
}

// check rejects flags that do not go together.
func (o *serviceOptions) check() error {
	switch {
	case len(o.xds)+len(o.quota) == 0 && o.tls != (envoy.ClientTLS{}):
		return usageError(errors.New("--xds-ca, --xds-cert and --xds-key need --xds or --quota"), "give --xds HOST:PORT")
	case o.tls.CA == "" && o.tls.Cert+o.tls.Key != "":
		return usageError(errors.New("--xds-cert and --xds-key need --xds-ca"),
			"TLS needs the certificate authority of the server")
	case (o.tls.Cert == "") != (o.tls.Key == ""):
		return usageError(errors.New("--xds-cert and --xds-key belong together"), "give both or none")
	}
	return nil
}

// open returns how run gets its policy, and a connection to the quota service, nil if there is
// none. The connection is made when it is first used.
func (o *serviceOptions) open() (proxy.Subscription, *grpc.ClientConn, error) {
	s := proxy.Subscription{Addresses: o.xds, Node: o.node}
	addresses := o.quota
	if len(addresses) == 0 {
		addresses = o.xds
	}
	if len(addresses) == 0 {
		return s, nil, nil
	}
	if s.Node == "" && len(o.xds) > 0 {
		host, err := os.Hostname()
		if err != nil {
			return s, nil, withHint(fmt.Errorf("find a node id: %w", err), "give --node ID")
		}
		s.Node = "sluice-run-" + host
	}
	security := insecure.NewCredentials()
	if o.tls.CA != "" {
		config, err := flagfile.ClientTLS("--xds-ca", o.tls.CA, "--xds-cert and --xds-key", o.tls.Cert, o.tls.Key)
		if err != nil {
			return s, nil, err
		}
		s.TLS = config
		security = credentials.NewTLS(config)
	}
	quota, err := proxy.Dial(addresses, grpc.WithTransportCredentials(security))
	if err != nil {
		return s, nil, fmt.Errorf("connect to the quota service: %w", err)
	}
	return s, quota, nil
}
