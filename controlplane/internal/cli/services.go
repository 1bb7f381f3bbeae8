package cli

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proxy"
)

// serviceOptions say which control plane gives a proxy its policy, and which quota
// service leases units to it.
type serviceOptions struct {
	xds, quota []string
	node       string
	tls        envoy.ClientTLS // to both
}

// AddFlags adds the flags of a proxy, be it rendered or run. Nodes is what holds
// without --node.
func (o *serviceOptions) AddFlags(cmd *cobra.Command, nodes string) {
	f := cmd.Flags()
	f.StringSliceVar(&o.xds, "xds", nil, "`HOST:PORT` of the control plane; of several, separated by commas, the proxy takes the first that answers")
	f.StringVar(&o.node, "node", "", "node `ID` by which the control plane knows the proxy "+nodes)
	f.StringSliceVar(&o.quota, "quota", nil, "`HOST:PORT` of the quota service, for rules of scope cluster, or several like --xds (default: the control plane)")
	f.StringVar(&o.tls.CA, "xds-ca", "", "`FILE` with the certificate authority of both: use TLS")
	f.StringVar(&o.tls.Cert, "xds-cert", "", "`FILE` with the client certificate shown to both; --node must be a DNS or URI name in it, or granted to one by serve --node-names")
	f.StringVar(&o.tls.Key, "xds-key", "", "`FILE` with its key")
}

// check refuses flags that do not go together.
func (o *serviceOptions) check() error {
	switch {
	case len(o.xds)+len(o.quota) == 0 && o.tls != (envoy.ClientTLS{}):
		return usageError(errors.New("--xds-ca, --xds-cert and --xds-key need --xds or --quota"), "give --xds HOST:PORT")
	case o.tls.CA == "" && o.tls.Cert+o.tls.Key != "":
		return usageError(errors.New("--xds-cert and --xds-key need --xds-ca"), "TLS needs the certificate authority of the server")
	case (o.tls.Cert == "") != (o.tls.Key == ""):
		return usageError(errors.New("--xds-cert and --xds-key belong together"), "give both or none")
	}
	return nil
}

// subscription is how `run` gets its policy.
func (o *serviceOptions) subscription() (proxy.Subscription, error) {
	s := proxy.Subscription{Addresses: o.xds, Node: o.node}
	if len(o.xds) == 0 {
		return s, nil
	}
	if s.Node == "" {
		host, err := os.Hostname()
		if err != nil {
			return s, withHint(fmt.Errorf("find a node id: %w", err), "give --node ID")
		}
		s.Node = "sluice-run-" + host
	}
	var err error
	s.TLS, err = o.clientTLS()
	return s, err
}

// clientTLS is nil without TLS.
func (o *serviceOptions) clientTLS() (*tls.Config, error) {
	if o.tls.CA == "" {
		return nil, nil //nolint:nilnil // see above
	}
	return clientTLS("--xds-ca", o.tls.CA, "--xds-cert and --xds-key", o.tls.Cert, o.tls.Key)
}

// connect returns a connection to the quota service, nil if there is none. It
// dials when it is first used.
func (o *serviceOptions) connect() (*grpc.ClientConn, error) {
	addresses := o.quota
	if len(addresses) == 0 {
		addresses = o.xds
	}
	if len(addresses) == 0 {
		return nil, nil
	}
	security := insecure.NewCredentials()
	config, err := o.clientTLS()
	switch {
	case err != nil:
		return nil, err
	case config != nil:
		security = credentials.NewTLS(config)
	}
	conn, err := proxy.Dial(addresses, grpc.WithTransportCredentials(security))
	if err != nil {
		return nil, fmt.Errorf("connect to the quota service: %w", err)
	}
	return conn, nil
}
