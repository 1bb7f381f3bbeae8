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
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/console"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/listener"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/lograte"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
)

// shutdownGrace is how long requests may take to end once serve stops.
const shutdownGrace = 10 * time.Second

// maxHeaderBytes is far more than any client of the API sends.
const maxHeaderBytes = 32 << 10

// maxRequests is how many requests of one HTTP/2 connection are served at a time.
const maxRequests = 16

type serveOptions struct {
	listenOptions
	manage    serveManageOptions
	quotas    quotaOptions
	data      string
	store     string
	nodeNames string
	keep      int
	wasm      string
}

func newServeCommand() *cobra.Command {
	o := serveOptions{listenOptions: listenOptions{proxies: xdsListener}}
	cmd := &cobra.Command{
		Use:   "serve --data DIR | --store URL",
		Short: "Run the control plane",
		Long: `Run the control plane: a versioned policy store in a directory or on etcd, the xDS
server that pushes it to proxies, and the HTTP API that the other commands use, with
/healthz and /metrics, and for browsers the console at /console/. It logs to standard
error and ends on SIGINT or SIGTERM.

With --access every HTTP request but /healthz needs a bearer token or a client
certificate that the file gives a role:

  token NAME ROLE SHA256HEX      # printf %s TOKEN | sha256sum
  certificate SAN ROLE           # a DNS name or a URI, * as below

The roles are read, apply (also apply and roll back) and admin (also change the
manage section and the wasm path). A role as edge:apply is for the policy edge alone;
several are separated by commas. The certificate, the authorities and the access file
are read again when they change.

With --store several of them share a store on etcd: etcd://HOST:PORT,HOST:PORT,…, or
etcds:// for TLS, with USER@ before the hosts, /PREFIX of the keys behind them (sluice), and
?ca=FILE&cert=FILE&key=FILE&server_name=NAME&password_file=FILE. Any takes any command. One
that does not reach etcd pushes what it knows, and changes nothing.

On loopback without --access anyone may call as an admin, and HTTP requests must name
localhost or an address as their host.

With --xds-client-ca a proxy's node id must be a DNS or URI name in its certificate.
--node-names grants further ids, one line each, where * and {id} stand for characters
of a label or segment, and {id} for the same on both sides:

  {id}.edge.corp {id}       # edge-1.edge.corp may call itself edge-1`,
		Example: `  sluice serve --data data --http 127.0.0.1:0 --xds 127.0.0.1:0   # ports of the system's choice, see the log
  sluice serve --store 'etcds://sluice@etcd.corp:2379/prod?ca=/etc/sluice/etcd-ca&password_file=/etc/sluice/etcd-password'
  sluice serve --data /var/lib/sluice --http 0.0.0.0:18080 --xds 0.0.0.0:18000 \
      --tls-cert server.pem --tls-key server.key --xds-client-ca proxies.pem --access access`,
		RunE: func(cmd *cobra.Command, _ []string) error { return unlessStopped(cmd.Context(), serve(cmd, o)) },
	}
	cmd.Flags().StringVar(&o.data, "data", "", "`DIR` of the store, created if need be; this or --store is required")
	cmd.Flags().StringVar(&o.store, "store", "", "`URL` of a store on etcd, for several control planes at once")
	cmd.Flags().StringVar(&o.wasm, "wasm", "", "absolute `PATH` of the filter's binary on the proxies' machines, where neither apply nor the node names one")
	cmd.Flags().IntVar(&o.keep, "keep", defaultKeep, "how many revisions to keep, from 2; older ones are dropped once no proxy runs them or may fall back on them; 0 keeps all")
	o.AddFlags(cmd, defaultHTTP, defaultXDS)
	cmd.Flags().StringVar(&o.nodeNames, "node-names", "", "`FILE` with lines SAN ID: which node ids a certificate may use beside its own names")
	o.manage.AddFlags(cmd)
	o.quotas.AddFlags(cmd, "memory|URL|off", "default: that of serve's policy")
	return cmd
}

// defaultKeep is years of changes for most users, and at most two GiB.
const defaultKeep = 1000

// unlessStopped takes the error off a server that a signal stopped while it started: it
// ends like one that has served.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func serve(cmd *cobra.Command, o serveOptions) error {
	switch wasm := api.CheckWasm(o.wasm); {
	case (o.data == "") == (o.store == ""):
		return usageError(errors.New("serve takes one of --data and --store"), "--data DIR keeps the store of this serve alone, --store etcd://HOST:PORT,… that of several")
	case wasm != nil:
		return usageError(wasm, "--wasm is read by Envoy, not by this command")
	case o.keep < 0 || o.keep == 1:
		return usageError(fmt.Errorf("--keep %d is not 0 or from 2", o.keep), "2 are the current revision and the one before; 0 keeps all")
	case o.store != "" && !store.IsURL(o.store):
		return usageError(errors.New("--store is not a URL"), "etcd://HOST:PORT,… is one; a directory is given with --data")
	}
	if err := directory(o.data, "give it as --store"); err != nil {
		return err
	}
	if err := o.quotas.check(o.xdsClientCA, "--xds-client-ca"); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
	guard, err := o.guard(log)
	if err != nil {
		return err
	}
	files := watchedFiles{log: log}
	var identify func(*x509.Certificate, string) (string, error) // nil: by the certificate's own names
	if names := files.names("--node-names", o.nodeNames); names != nil {
		identify = func(cert *x509.Certificate, node string) (string, error) { return names().SAN(cert, node) }
	}
	if files.err != nil {
		return files.err
	}
	policies, err := openStore(cmd.Context(), o.data+o.store, log)
	switch {
	case errors.Is(err, store.ErrHeld):
		return withHint(fmt.Errorf("data directory %s is held by another sluice serve", o.data),
			"stop that one, give this one another --data, or have both share --store etcd://…")
	case err != nil:
		return err
	}
	defer func() {
		if err := policies.Close(); err != nil {
			log.Error("close store", "error", err)
		}
	}()
	if name, mode := store.Exposed(o.data); o.data != "" && name != "" {
		log.Warn("everybody on this machine may change the store: chmod o-w", "name", name, "mode", mode.String())
	}
	s, err := o.listen(log, guard)
	if err != nil {
		return err
	}
	defer s.close()
	fleet, err := o.manage.fleet(cmd, s)
	if err != nil {
		return err
	}
	if err := o.start(cmd.Context(), s, policies, fleet, identify); err != nil {
		return err
	}
	return s.run(cmd.Context())
}

// start makes what answers on the listeners.
func (o *serveOptions) start(ctx context.Context, s *servers, policies store.Store, fleet *manage.Fleet, identify func(*x509.Certificate, string) (string, error)) (err error) {
	if s.quotas, err = o.quotas.open(ctx, s.log, s.guard.proxyCAs, policies); err != nil {
		return err
	}
	s.push, err = xds.New(ctx, xds.Options{
		Store: policies, Keep: o.keep, Wasm: o.wasm, Log: s.log, Identify: identify, ClientCAs: s.guard.proxyCAs,
	})
	if err != nil {
		return fmt.Errorf("start xDS server: %w", err)
	}
	quotas := api.Quota{Service: s.quotas.service, Private: o.quotas.store == quotaMemory}
	quotas.Apart = quotas.Private && o.store != ""
	mux := api.New(ctx, api.Options{
		Store: policies, XDS: s.push, Identify: s.guard.identify, Fleet: fleet, Log: s.log,
		Quota: quotas, Collectors: s.quotas.collectors(),
	})
	console.Add(mux, console.Options{Access: s.guard.identify != nil, Log: s.log})
	s.handler = mux
	return nil
}

// directory refuses a --data that is none.
func directory(data, hint string) error {
	if store.IsURL(data) {
		return usageError(errors.New("--data is a URL, not a directory"), hint)
	}
	return nil
}

// openStore opens a store at a URL or in a directory.
func openStore(ctx context.Context, at string, log *slog.Logger) (store.Store, error) {
	if store.IsURL(at) {
		return store.OpenEtcd(ctx, at, log)
	}
	s, err := store.Open(at)
	return s, storeHint(err, at)
}

// servers are the two listeners of one serve.
type servers struct {
	log          *slog.Logger
	push         *xds.Server // nil = no xDS
	quotas       quotas
	proxies      string // what the log calls the listener for proxies
	guard        guard
	handler      http.Handler
	httpListener net.Listener
	xdsListener  net.Listener
}

func (s *servers) close() {
	_ = s.httpListener.Close() // run may have closed them
	_ = s.xdsListener.Close()
}

// run serves until ctx ends, then lets what is under way finish.
func (s *servers) run(ctx context.Context) error {
	// Canceled when serve stops, so that waits for proxies end at once.
	requests, endRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer endRequests()
	web := &http.Server{
		Handler:           s.handler,
		ConnContext:       listener.Context,
		TLSConfig:         s.guard.http,
		MaxHeaderBytes:    maxHeaderBytes,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxRequests},
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      time.Minute,
		IdleTimeout:       2 * time.Minute,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ErrorLog:          slog.NewLogLogger(lograte.NewLimit(1).Logger(s.log).Handler(), slog.LevelWarn),
	}
	stream := s.grpcServer(requests)

	failed := make(chan error, 2)
	go func() {
		if s.guard.http != nil {
			failed <- web.ServeTLS(s.httpListener, "", "")
		} else {
			failed <- web.Serve(s.httpListener)
		}
	}()
	go func() { failed <- stream.Serve(s.xdsListener) }()
	s.log.Info("serving", "http", s.httpListener.Addr().String(), s.proxies, s.xdsListener.Addr().String(),
		"tls", s.guard.http != nil, "access", s.guard.identify != nil)

	var err error
	select {
	case <-ctx.Done():
		s.log.Info("stopping")
	case err = <-failed:
		err = fmt.Errorf("serve: %w", err)
	}
	if s.push != nil {
		s.push.Stop()
	}
	endRequests()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	if s.quotas.service != nil {
		defer s.quotas.close(s.log) // after the last stream
		s.quotas.service.Drain(grace)
	}
	if e := web.Shutdown(grace); e != nil {
		s.log.Warn("stop HTTP", "error", e)
	}
	stopGRPC(grace, stream)
	return err
}

// grpcServer makes the server for proxies. What it does besides ends with ctx.
func (s *servers) grpcServer(ctx context.Context) *grpc.Server {
	options := append(listener.ServerOptions(s.guard.xds), grpc.ForceServerCodecV2(xds.NewCodec()))
	if s.quotas.service != nil {
		options = append(options, s.quotas.serverOptions(s.push == nil)...)
	}
	server := grpc.NewServer(options...)
	if s.push != nil {
		s.push.Register(server)
	}
	if s.quotas.service != nil {
		s.quotas.server.Register(server)
		go s.quotas.server.Run(ctx)
	}
	return server
}

func stopGRPC(ctx context.Context, s *grpc.Server) {
	stopped := make(chan struct{})
	go func() {
		s.GracefulStop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-ctx.Done():
		s.Stop()
	}
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
	f.StringVar(&o.token, "manage-token-file", "", "`FILE` with the bearer token whose SHA-256 is the policy's manage.token_sha256, for sluice counters and explain; read again when it changes")
	f.StringVar(&o.allow, "manage-allow", manage.DefaultAllow, "`NETWORK|NAME,…` of the proxies' management listeners: the token goes nowhere else")
	f.StringVar(&o.ca, "manage-ca", "", "`FILE` with the certificates that vouch for management listeners; default: the system's; read again when it changes")
}

// fleet returns what asks the proxies, nil without a token.
func (o *serveManageOptions) fleet(cmd *cobra.Command, s *servers) (*manage.Fleet, error) {
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
		return nil, usageError(fmt.Errorf("--manage-allow: %w", err), "give networks and names separated by commas, for example 10.0.0.0/8,edge.example.com")
	}
	names := []string{o.token}
	if o.ca != "" {
		names = append(names, o.ca)
	}
	files := watchedFiles{log: s.log}
	credentials := watch(&files, "management token", readCredentials, names...)
	return s.fleet(allow, credentials), files.err
}

// fleet sends the token to what is allowed, but to no listener of this process.
func (s *servers) fleet(allow manage.Allow, credentials func() manage.Credentials) *manage.Fleet {
	rules := manage.Rules{Allow: &allow}
	for _, l := range []net.Listener{s.httpListener, s.xdsListener} {
		if at, err := netip.ParseAddrPort(l.Addr().String()); err == nil {
			rules.Own = append(rules.Own, at)
		}
	}
	return manage.NewFleet(rules, credentials)
}

// readCredentials reads the contents of the token's file and of --manage-ca.
func readCredentials(contents [][]byte) (manage.Credentials, error) {
	token, err := parseToken(contents[0])
	if err != nil {
		return manage.Credentials{}, errors.New("--manage-token-file " + err.Error())
	}
	c := manage.Credentials{Token: token, TLS: &tls.Config{MinVersion: tls.VersionTLS12}}
	if len(contents) > 1 {
		c.TLS.RootCAs, err = parsePool("--manage-ca", contents[1])
	}
	return c, err
}
