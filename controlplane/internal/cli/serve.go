package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli/flagfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli/serving"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/console"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

// defaultKeep is years of changes for most users, and at most two GiB.
const defaultKeep = 1000

// serveOptions are the flags of serve.
type serveOptions struct {
	listenOptions
	manage    serveManageOptions
	quotas    quotaOptions
	calls     callOptions
	data      string
	store     string
	nodeNames string
	keep      int
	wasm      string
}

// AddFlags adds the flags.
func (o *serveOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.data, "data", "", "`DIR` of the store, created if need be; this or --store is required")
	f.StringVar(&o.store, "store", "", "`URL` of a store on etcd, for several control planes at once")
	f.StringVar(&o.wasm, "wasm", "", "absolute `PATH` of the filter's binary on the proxies' machines, used "+
		"if neither apply nor the node names one")
	f.IntVar(&o.keep, "keep", defaultKeep, "how many revisions to keep, from 2; older ones are dropped once no proxy "+
		"runs them or can fall back to them; 0 keeps all")
	f.StringVar(&o.nodeNames, "node-names", "", "`FILE` with lines SAN ID: which node ids a certificate may use "+
		"besides its own names")
	o.listenOptions.AddFlags(cmd, defaultHTTP, defaultXDS)
	o.manage.AddFlags(cmd)
	o.quotas.AddFlags(cmd, "memory|URL|off", "default: the domains of serve's policies")
	o.calls.AddFlags(cmd)
}

func newServeCommand() *cobra.Command {
	o := serveOptions{listenOptions: listenOptions{words: serveWords}}
	cmd := &cobra.Command{
		Use:   "serve --data DIR | --store URL",
		Short: "Run the control plane",
		Long: `Run the control plane: a versioned policy store in a directory or on etcd, the xDS
server that pushes policies to proxies, the HTTP API that the other commands use, with
/healthz and /metrics, and for browsers the console at /console/. It logs to standard
error and ends on SIGINT or SIGTERM.

With --access every HTTP request except /healthz needs a bearer token or a client
certificate that the file gives a role:

  token NAME ROLE SHA256HEX      # printf %s TOKEN | sha256sum
  certificate SAN ROLE           # a DNS name or a URI, * as below

The roles are read, apply (also apply and roll back) and admin (also change the
manage section and the wasm path). A role such as edge:apply is for the policy edge
alone; separate several roles by commas. The certificate, the authorities and the access
file are read again when they change.

With --store several control planes share a store on etcd: etcd://HOST:PORT,HOST:PORT,…,
or etcds:// for TLS, with USER@ before the hosts, /PREFIX of the keys after them (sluice),
and ?ca=FILE&cert=FILE&key=FILE&server_name=NAME&password_file=FILE. Each of them takes
every command. One that cannot reach etcd pushes what it knows, and changes nothing.

On loopback without --access anyone may call as an admin, and HTTP requests must name
localhost or an address as their host.

With --xds-client-ca a proxy's node id must be a DNS or URI name in its certificate.
--node-names allows further ids, one line each, where * and {id} stand for characters
of a label or segment, and {id} for the same text on both sides:

  {id}.edge.corp {id}       # edge-1.edge.corp may call itself edge-1`,
		Example: `  sluice serve --data data --http 127.0.0.1:0 --xds 127.0.0.1:0   # any free ports, see the log
  sluice serve --store 'etcds://sluice@etcd.corp:2379/prod?ca=/etc/sluice/etcd-ca&password_file=/etc/sluice/password'
  sluice serve --data /var/lib/sluice --http 0.0.0.0:18080 --xds 0.0.0.0:18000 \
      --tls-cert server.pem --tls-key server.key --xds-client-ca proxies.pem --access access`,
		RunE: func(cmd *cobra.Command, _ []string) error { return unlessStopped(cmd.Context(), serve(cmd, &o)) },
	}
	o.AddFlags(cmd)
	return cmd
}

// check rejects flags that do not go together.
func (o *serveOptions) check(cmd *cobra.Command) error {
	if (o.data == "") == (o.store == "") {
		return usageError(errors.New("serve takes one of --data and --store"),
			"--data DIR keeps the store of this serve alone, --store etcd://HOST:PORT,… that of several")
	}
	if err := api.CheckWasm(o.wasm); err != nil {
		return usageError(err, "--wasm is read by Envoy, not by this command")
	}
	if o.keep < 0 || o.keep == 1 {
		return usageError(fmt.Errorf("--keep %d is neither 0 nor from 2", o.keep),
			"2 are the current revision and the one before; 0 keeps all")
	}
	if o.store != "" && !store.IsURL(o.store) {
		return usageError(errors.New("--store is not a URL"),
			"give something like etcd://HOST:PORT,…; a directory goes with --data")
	}
	if err := checkDirectory(o.data, "give it as --store"); err != nil {
		return err
	}
	if err := o.quotas.check(&o.listenOptions); err != nil {
		return err
	}
	if o.calls.areOn() && o.quotas.store == quotaOff {
		return usageError(errors.New("rate limit calls need a quota service, and --quota-store is off"),
			"give memory or a URL as --quota-store")
	}
	return o.calls.check(cmd)
}

func serve(cmd *cobra.Command, o *serveOptions) error {
	if err := o.check(cmd); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
	guard, err := o.guard(log)
	if err != nil {
		return err
	}
	identify, err := o.identify(log)
	if err != nil {
		return err
	}
	policies, err := o.openPolicies(cmd.Context(), log)
	if err != nil {
		return err
	}
	defer func() {
		if err := policies.Close(); err != nil {
			log.Error("close store", "error", err)
		}
	}()
	listeners, err := o.listen()
	if err != nil {
		return err
	}
	defer listeners.Close()
	fleet, err := o.manage.fleet(cmd, log, listeners)
	if err != nil {
		return err
	}
	s := serving.New(serving.Options{Log: log, Guard: guard, Name: o.words.name})
	defer s.Close()
	handler, err := o.addParts(cmd.Context(), s, policies, fleet, identify)
	if err != nil {
		return err
	}
	return s.Run(cmd.Context(), listeners, handler)
}

// identifyFunc finds the name by which a certificate may use a node id. Nil stands for the
// certificate's own names.
type identifyFunc = func(cert *x509.Certificate, node string) (san string, err error)

// identify reads --node-names.
func (o *serveOptions) identify(log *slog.Logger) (identifyFunc, error) {
	files := flagfile.Watched{Log: log}
	names := files.NodeIDs("--node-names", o.nodeNames)
	if names == nil {
		return nil, files.Err
	}
	return func(cert *x509.Certificate, node string) (string, error) { return names().SAN(cert, node) }, nil
}

func (o *serveOptions) openPolicies(ctx context.Context, log *slog.Logger) (store.Store, error) {
	s, err := openStore(ctx, o.data+o.store, log) // one of the two is empty
	switch {
	case errors.Is(err, store.ErrHeld):
		return nil, withHint(fmt.Errorf("data directory %s is held by another sluice serve", o.data),
			"stop that one, give this one another --data, or let both share --store etcd://…")
	case err != nil:
		return nil, err
	}
	if name, mode := store.Exposed(o.data); o.data != "" && name != "" {
		log.Warn("everybody on this machine may change the store: chmod o-w", "name", name, "mode", mode.String())
	}
	return s, nil
}

// addParts gives the servers what serve has, and returns what answers over HTTP.
func (o *serveOptions) addParts(
	ctx context.Context, s *serving.Servers, policies store.Store, fleet *manage.Fleet, identify identifyFunc,
) (http.Handler, error) {
	options := api.Options{Store: policies, Identify: s.Guard.Identify, Fleet: fleet, Log: s.Log}
	if o.quotas.store != quotaOff {
		quota, err := o.quotas.open(ctx, s.Log, s.Guard.ProxyCAs, policies)
		if err != nil {
			return nil, err
		}
		s.AddQuota(quota)
		isPrivate := o.quotas.isPrivate()
		options.Quota = api.Quota{Service: quota.Service, Private: isPrivate, Apart: isPrivate && o.store != ""}
		options.Calls, err = o.calls.open(ctx, s, quota, &o.listenOptions)
		if err != nil {
			return nil, err
		}
	}
	push, err := xds.New(ctx, xds.Options{
		Store: policies, Keep: o.keep, Wasm: o.wasm, Log: s.Log, Identify: identify, ClientCAs: s.Guard.ProxyCAs,
	})
	if err != nil {
		return nil, fmt.Errorf("start xDS server: %w", err)
	}
	s.AddXDS(push)
	options.XDS, options.Collectors = push, s.Collectors()
	mux := api.New(ctx, options)
	console.Add(mux, console.Options{Access: s.Guard.Identify != nil, Log: s.Log})
	return mux, nil
}

// serveManageOptions say how serve asks proxies about counters.
type serveManageOptions struct {
	token string
	ca    string
	allow string
}

// AddFlags adds the flags of serve.
func (o *serveManageOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.token, "manage-token-file", "", "`FILE` with the bearer token whose SHA-256 is the policy's "+
		"manage.token_sha256, for sluice counters and explain; read again when it changes")
	f.StringVar(&o.allow, "manage-allow", manage.DefaultAllow,
		"`NETWORK|NAME,…` of the proxies' management listeners; the token is sent to no other address")
	f.StringVar(&o.ca, "manage-ca", "", "`FILE` with the certificate authorities of management listeners, read again "+
		"when it changes (default: the system's)")
}

// fleet returns what asks the proxies, nil without a token.
func (o *serveManageOptions) fleet(
	cmd *cobra.Command, log *slog.Logger, listeners serving.Listeners,
) (*manage.Fleet, error) {
	if o.token == "" {
		for _, flag := range []string{"manage-allow", "manage-ca"} {
			if cmd.Flags().Changed(flag) {
				return nil, usageError(fmt.Errorf("--%s needs --manage-token-file", flag), "without a token no proxy is asked")
			}
		}
		return nil, nil
	}
	allow, err := manage.ParseAllow(o.allow)
	if err != nil {
		return nil, usageError(fmt.Errorf("--manage-allow: %w", err),
			"give networks and names separated by commas, for example 10.0.0.0/8,edge.example.com")
	}
	names := []string{o.token}
	if o.ca != "" {
		names = append(names, o.ca)
	}
	files := flagfile.Watched{Log: log}
	credentials := flagfile.Watch(&files, "management token", readCredentials, names...)
	return newFleet(listeners, allow, credentials), files.Err
}

// newFleet returns what sends the token to allowed addresses, but to no listener of this process.
func newFleet(own serving.Listeners, allow manage.Allow, credentials func() manage.Credentials) *manage.Fleet {
	reach := manage.Reach{Allow: &allow}
	for _, l := range []net.Listener{own.HTTP, own.Proxies} {
		if at, err := netip.ParseAddrPort(l.Addr().String()); err == nil {
			reach.Own = append(reach.Own, at)
		}
	}
	return manage.NewFleet(reach, credentials)
}

// readCredentials reads the contents of --manage-token-file and of --manage-ca, if there is one.
func readCredentials(contents [][]byte) (manage.Credentials, error) {
	token, err := flagfile.ParseToken(contents[0])
	if err != nil {
		return manage.Credentials{}, errors.New("--manage-token-file " + err.Error())
	}
	c := manage.Credentials{Token: token, TLS: &tls.Config{MinVersion: tls.VersionTLS12}}
	if len(contents) > 1 {
		c.TLS.RootCAs, err = flagfile.ParsePool("--manage-ca", contents[1])
	}
	return c, err
}
