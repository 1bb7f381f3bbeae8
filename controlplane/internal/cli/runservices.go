package cli

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proxy"
)

// xdsOptions say which control plane gives the policy.
type xdsOptions struct {
	addresses     []string
	node          string
	resource      string
	ca, cert, key string
}

// AddFlags adds the flags of a proxy that gets its policy from a control plane.
func (o *xdsOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&o.addresses, "xds", nil, "`ADDRESS` of the control plane's xDS server, or several, tried in turn")
	f.StringVar(&o.node, "node", "", "node `ID` by which the control plane knows this proxy (default: sluice-run- and the host's name)")
	f.StringVar(&o.resource, "resource", envoy.ResourceName, "`NAME` of the extension configuration to ask for")
	f.StringVar(&o.ca, "xds-ca", "", "`FILE` with the certificate authority of the control plane: use TLS")
	f.StringVar(&o.cert, "xds-cert", "", "`FILE` with this proxy's client certificate; --node must be a DNS or URI name in it, or granted to one by serve --node-names")
	f.StringVar(&o.key, "xds-key", "", "`FILE` with its key")
}

func (o *xdsOptions) subscription() (proxy.Subscription, error) {
	s := proxy.Subscription{Addresses: o.addresses, Node: o.node, Resource: o.resource}
	if len(o.addresses) == 0 {
		return s, nil
	}
	if s.Node == "" {
		host, err := os.Hostname()
		if err != nil {
			return s, withHint(fmt.Errorf("find a node id: %w", err), "give --node ID")
		}
		s.Node = "sluice-run-" + host
	}
	switch {
	case o.ca == "" && o.cert == "" && o.key == "":
		return s, nil
	case o.ca == "":
		return s, usageError(errors.New("--xds-cert and --xds-key need --xds-ca"), "TLS needs the certificate authority of the control plane")
	case (o.cert == "") != (o.key == ""):
		return s, usageError(errors.New("--xds-cert and --xds-key belong together"), "give both or none")
	}
	var err error
	s.TLS, err = clientTLS("--xds-ca", o.ca, "--xds-cert and --xds-key", o.cert, o.key)
	return s, err
}

// serviceOptions say where the quota service is.
type serviceOptions struct {
	addresses     []string
	ca, cert, key string
}

// AddFlags adds the flags of a proxy that asks a quota service.
func (o *serviceOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&o.addresses, "quota", nil, "`ADDRESS` of the quota service, for rules of scope cluster, or several, tried in turn (default: the control plane)")
	f.StringVar(&o.ca, "quota-ca", "", "`FILE` with the certificate authority of the quota service: use TLS")
	f.StringVar(&o.cert, "quota-cert", "", "`FILE` with the client certificate shown to it")
	f.StringVar(&o.key, "quota-key", "", "`FILE` with its key")
}

// connect returns a connection to the quota service, nil if there is none. It
// dials when it is first used.
func (o *serviceOptions) connect() (*grpc.ClientConn, error) {
	if len(o.addresses) == 0 {
		return nil, nil
	}
	security := insecure.NewCredentials()
	if o.ca != "" {
		config, err := clientTLS("--quota-ca", o.ca, "--quota-cert and --quota-key", o.cert, o.key)
		if err != nil {
			return nil, err
		}
		security = credentials.NewTLS(config)
	}
	conn, err := proxy.Dial(o.addresses, grpc.WithTransportCredentials(security))
	if err != nil {
		return nil, fmt.Errorf("connect to the quota service: %w", err)
	}
	return conn, nil
}

// exposed returns an address that would be reached over a network without TLS, "" where
// there is none.
func (o *runOptions) exposed(addresses []string, ca string) string {
	i := slices.IndexFunc(addresses, func(address string) bool {
		host, _, _ := net.SplitHostPort(address)
		return ca == "" && !manage.IsLoopback(host) && !o.insecure
	})
	if i < 0 {
		return ""
	}
	return addresses[i]
}

func (o *runOptions) checkQuota() error {
	q := &o.quota
	switch {
	case len(q.addresses) == 0 && q.ca+q.cert+q.key != "":
		return usageError(errors.New("--quota-ca, --quota-cert and --quota-key need --quota"), "give --quota HOST:PORT")
	case q.ca == "" && (q.cert != "" || q.key != ""):
		return usageError(errors.New("--quota-cert and --quota-key need --quota-ca"), "TLS needs the certificate authority of the quota service")
	case (q.cert == "") != (q.key == ""):
		return usageError(errors.New("--quota-cert and --quota-key belong together"), "give both or none")
	}
	if address := o.exposed(q.addresses, q.ca); address != "" {
		return usageError(fmt.Errorf("--quota %s is not a loopback address: anyone on the way could answer in its place", address),
			"give --quota-ca; --insecure allows it nevertheless")
	}
	if len(q.addresses) == 0 {
		*q = serviceOptions{o.xds.addresses, o.xds.ca, o.xds.cert, o.xds.key}
	}
	return nil
}
