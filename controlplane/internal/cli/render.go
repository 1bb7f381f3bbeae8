package cli

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// proxyOptions are the flags of what render writes for an Envoy.
type proxyOptions struct {
	file      string
	wasm      string
	bootstrap envoy.BootstrapOptions
	services  serviceOptions
	manageTLS envoy.ServerTLS
}

// AddFlags adds the flags. Unlike elsewhere, -f is optional.
func (o *proxyOptions) AddFlags(cmd *cobra.Command) {
	b := &o.bootstrap
	o.services.AddFlags(cmd, "(required with --xds)")
	f := cmd.Flags()
	f.StringVar(&b.Manage, "manage", "", "`IP:PORT` of a separate listener for management requests")
	f.StringVar(&o.manageTLS.Cert, "manage-cert", "",
		"`FILE` on the proxy's machine with the certificate chain of that listener: use TLS")
	f.StringVar(&o.manageTLS.Key, "manage-key", "", "`FILE` on the proxy's machine with its private key")
	f.StringVar(&o.wasm, "wasm", "", "`FILE` of the filter on the proxy's machine (default: the one inside this program, "+
		"written to the user's cache folder)")
	f.StringVar(&b.Plugin.Envoy, "envoy-version", envoy.NewestVersion,
		"oldest Envoy `VERSION` that will read the output, such as 1.36")
	f.StringVar(&b.AccessLog, "access-log", "/dev/stdout", "`FILE` on the proxy's machine that gets a line for each "+
		"request, with the verdict, the client's address and the keys' headers; empty for none")
	addFileFlag(cmd, &o.file, "policy `FILE` to bake in, - for standard input "+
		"(default: with --xds none, otherwise a policy that limits nothing)")
	f.BoolVar(&b.OpenWithoutPolicy, "open-without-policy", false, "with --xds and without -f: "+
		"let requests through without a limit until the control plane gives a policy (default: answer 500)")
}

// renderEnvoyOptions are the flags of render envoy.
type renderEnvoyOptions struct{ proxyOptions }

// AddFlags adds the flags.
func (o *renderEnvoyOptions) AddFlags(cmd *cobra.Command) {
	o.proxyOptions.AddFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.bootstrap.Listen, "listen", "", "`IP:PORT` on which the proxy accepts requests")
	f.StringVar(&o.bootstrap.Upstream, "upstream", "", "`HOST:PORT` of the server behind it")
	f.StringVar(&o.bootstrap.Admin, "admin", "", "`IP:PORT` of Envoy's admin interface")
	markRequired(cmd, "listen", "upstream", "admin")
}

func newRenderEnvoyCommand() *cobra.Command {
	var o renderEnvoyOptions
	cmd := &cobra.Command{
		Use:   "envoy --listen IP:PORT --upstream HOST:PORT --admin IP:PORT [--xds HOST:PORT --node ID] [-f POLICY]",
		Short: "Write an Envoy bootstrap to standard output",
		Long: `Write an Envoy bootstrap to standard output: a listener with the filter, one
upstream, and Envoy's admin interface.

With --xds the policy comes from the control plane. The listener stays closed until
the control plane has answered, for at most three seconds. If it has not answered by
then, the policy of -f is in force until it does; without -f requests get 500.
Without --xds the policy of -f is static.`,
		Example: `  sluice render envoy --xds 127.0.0.1:18000 --node edge-1 -f policy.yaml \
    --listen 0.0.0.0:10000 --upstream 127.0.0.1:8080 --admin 127.0.0.1:9901 > envoy.yaml
  envoy -c envoy.yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.render(cmd, envoy.Bootstrap) },
	}
	o.AddFlags(cmd)
	return cmd
}

func newRenderFilterCommand() *cobra.Command {
	var o proxyOptions
	cmd := &cobra.Command{
		Use:   "filter [-f POLICY] [--xds HOST:PORT --node ID] [--manage IP:PORT]",
		Short: "Write the parts that your own Envoy configuration lacks",
		Long: `Write the parts that your own Envoy configuration lacks, as three YAML documents: the
entry of http_filters, what belongs next to http_filters, and what belongs at the top
level. docs/envoy.md shows where to put each.`,
		Example: `  sluice render filter -f policy.yaml --wasm /usr/lib/sluice/sluice.wasm --manage 127.0.0.1:9902
  sluice render filter --xds 10.0.0.1:18000,10.0.0.2:18000 --xds-ca ca.pem --node edge-1`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.file == "" && len(o.services.xds) == 0 {
				return usageError(errors.New("no policy, and no control plane that gives one"), "give -f FILE or --xds HOST:PORT")
			}
			return o.render(cmd, envoy.FilterEntry)
		},
	}
	o.AddFlags(cmd)
	return cmd
}

// render writes a configuration of the policy and the flags.
func (o *proxyOptions) render(cmd *cobra.Command, write func(envoy.BootstrapOptions) ([]byte, error)) error {
	if err := o.services.check(); err != nil {
		return err
	}
	if o.bootstrap.OpenWithoutPolicy && (o.file != "" || len(o.services.xds) == 0) {
		return usageError(errors.New("--open-without-policy needs --xds, and no -f"),
			"it is for a proxy that gets its first policy from the control plane")
	}
	b := o.withServices()
	if o.file != "" {
		if err := o.addPolicy(cmd, &b); err != nil {
			return err
		}
	}
	var err error
	b.Plugin.Wasm, err = filterFile(o.wasm, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	text, err := write(b)
	if err == nil {
		warnOfAddresses(cmd.ErrOrStderr(), &b)
	}
	return printResource(cmd, text, err)
}

// withServices is the bootstrap with the control plane, the quota service and their TLS.
func (o *proxyOptions) withServices() envoy.BootstrapOptions {
	b := o.bootstrap
	b.Node = o.services.node
	b.XDS = o.services.xds
	b.Quota = o.services.quota
	if tls := &o.services.tls; tls.CA != "" {
		if len(b.XDS) > 0 {
			b.XDSTLS = tls
		}
		if len(b.Quota) > 0 {
			b.QuotaTLS = tls
		}
	}
	if o.manageTLS != (envoy.ServerTLS{}) {
		b.ManageTLS = &o.manageTLS
	}
	return b
}

// addPolicy reads the policy of -f into the bootstrap.
func (o *proxyOptions) addPolicy(cmd *cobra.Command, b *envoy.BootstrapOptions) error {
	read, err := readPolicy(cmd, o.file, true)
	if err != nil {
		return err
	}
	if err := checkManage(read.policy.Manage, b.Manage); err != nil {
		return err
	}
	if q := read.policy.Quota; q != nil {
		b.QuotaCluster = q.Cluster
		b.QuotaTimeout = time.Duration(q.TimeoutNs)
		if len(b.XDS) == 0 && len(b.Quota) == 0 {
			return errNoQuotaService
		}
	}
	b.Plugin.Policy = read.json()
	b.Headers = logged(read.policy)
	return nil
}

// logged are the headers in a policy's keys, each once.
func logged(p *policy.Policy) (headers []string) {
	var add func(parts []policy.KeyPart)
	add = func(parts []policy.KeyPart) {
		for _, part := range parts {
			if name := part.Header(); name != "" && !slices.Contains(headers, name) {
				headers = append(headers, name)
			}
			add(part.Of)
		}
	}
	for i := range p.Rules {
		add(p.Rules[i].Key)
	}
	return headers
}

// warnOfAddresses warns of addresses that other machines reach and that nothing protects.
func warnOfAddresses(w io.Writer, b *envoy.BootstrapOptions) {
	warn := func(flag, danger string, addresses ...string) {
		for _, address := range addresses {
			if host, _, err := net.SplitHostPort(address); err == nil && !manage.IsLoopback(host) {
				fmt.Fprintf(w, "warning: %s %s is not a loopback address: %s\n", flag, address, danger)
			}
		}
	}
	warn("--admin", "anyone who reaches it can read the configuration and stop Envoy", b.Admin)
	if b.ManageTLS == nil {
		warn("--manage", "the management token and clients' keys cross the network in plain text: "+
			"give --manage-cert and --manage-key", b.Manage)
	}
	if b.QuotaTLS == nil {
		warn("--quota", "anyone on the way can read which counters are used and answer in its place: give --xds-ca",
			b.Quota...)
	}
	if b.XDSTLS == nil {
		warn("--xds", "anyone on the way can read the policy and replace it: give --xds-ca", b.XDS...)
	}
}

// checkManage rejects a management listener that would answer nothing, and a policy whose
// management requests other listeners would answer too.
func checkManage(m *policy.Manage, listener string) error {
	_, port, err := net.SplitHostPort(listener)
	switch {
	case err != nil: // none, or an address that Bootstrap rejects
		return nil //nolint:nilerr // see above
	case m == nil:
		return usageError(
			fmt.Errorf("--manage %s, but the policy has no manage section: it answers no management requests", listener),
			"add manage with path, port and token_sha256 to the policy")
	case m.Port == 0:
		return usageError(
			fmt.Errorf("--manage %s, but the policy's manage has no port: the listeners of clients would answer too", listener),
			"add port: "+port+" to manage in the policy")
	case strconv.Itoa(int(m.Port)) != port:
		return usageError(
			fmt.Errorf("--manage %s, but the policy answers management requests on port %d only", listener, m.Port),
			"make the two ports the same")
	}
	return nil
}
