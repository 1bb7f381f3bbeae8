package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/fleet"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/envoy/proxy"
)

// firstPolicyWithin is how long run waits for the control plane before it serves without a
// policy: Envoy's initial_fetch_timeout in a rendered bootstrap.
const firstPolicyWithin = 3 * time.Second

// runOptions are the flags of run.
type runOptions struct {
	file     string
	services serviceOptions
	listen   string
	upstream string
	admin    string
	wasm     string
	workers  int
	insecure bool
}

// AddFlags adds the flags.
func (o *runOptions) AddFlags(cmd *cobra.Command) {
	addFileFlag(cmd, &o.file, "policy `FILE`, read again on SIGHUP; with --xds, until the control plane gives one")
	o.services.AddFlags(cmd, "(default: sluice-run- and the host's name)")
	addWasmFlag(cmd, &o.wasm, "")
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", "127.0.0.1:10000", "`ADDRESS` on which to accept requests")
	f.StringVar(&o.upstream, "upstream", "", "`URL` of the upstream server, without a path")
	markRequired(cmd, "upstream")
	f.StringVar(&o.admin, "admin", "", "`ADDRESS` for /healthz and /stats/prometheus (default: none)")
	f.IntVar(&o.workers, "workers", 2, fmt.Sprintf("worker VMs, 1 to %d", maxWorkers))
	f.BoolVar(&o.insecure, "insecure", false, "allow a connection without TLS to a control plane on another machine")
}

func newRunCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [-f POLICY] [--xds ADDRESS] --upstream URL",
		Short: "Run the filter as a reverse proxy, without Envoy",
		Long: `Run the filter that Envoy loads as a reverse proxy in front of one HTTP server:
for a first try and for tests. Put an Envoy at the edge.

The policy comes from a file, read again on SIGHUP, or from sluice serve. If a new
policy is rejected or the control plane is away, the last good one stays in force. With
--xds alone the proxy waits three seconds for the first policy and then SERVES WITHOUT
LIMITS until there is one, with a warning: if that must not happen, give -f as well.

The client's address is that of its connection, whatever x-forwarded-for says, and
paths are normalized as in an Envoy that sluice render set up. It speaks HTTP/1, with
at most 4,096 connections, and has no timeout for a slow body.`,
		Example: `  sluice run -f policy.yaml --upstream http://127.0.0.1:8080
  sluice run --xds 127.0.0.1:18000 -f policy.yaml --node edge-1 --upstream http://127.0.0.1:8080 --admin 127.0.0.1:9901
  sluice run --xds sluice-1.example:18000,sluice-2.example:18000 --xds-ca ca.pem \
      --xds-cert proxy.pem --xds-key proxy.key --upstream http://127.0.0.1:8080`,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd, &o) },
	}
	o.AddFlags(cmd)
	return cmd
}

func run(cmd *cobra.Command, o *runOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	r, err := o.start(cmd, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
	if err != nil {
		return err
	}
	defer r.close()
	return r.run(cmd.Context())
}

// check rejects flags that do not go together.
func (o *runOptions) check() error {
	const hint = "the policy comes from a file with -f, from sluice serve with --xds, or from both"
	switch {
	case o.file == "" && len(o.services.xds) == 0:
		return usageError(errors.New("no policy: give -f or --xds"), hint)
	case len(o.services.xds) == 0 && o.services.node != "":
		return usageError(errors.New("--node needs --xds"), hint)
	case o.file == "-":
		return usageError(errStdin, "give the policy as a file, because it is read again on SIGHUP")
	case o.workers < 1 || o.workers > maxWorkers:
		return usageError(fmt.Errorf("--workers %d is not from 1 to %d", o.workers, maxWorkers),
			"as many as processors is a good choice")
	}
	if err := o.checkAddresses("--xds", "anyone on the way could read and change the policy", o.services.xds); err != nil {
		return err
	}
	if err := o.checkAddresses("--quota", "anyone on the way could answer in its place", o.services.quota); err != nil {
		return err
	}
	return o.services.check()
}

// checkAddresses rejects addresses of a service that others can reach, if nothing protects the
// way there.
func (o *runOptions) checkAddresses(flag, danger string, addresses []string) error {
	isProtected := o.services.tls.CA != "" || o.insecure
	for _, address := range addresses {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return usageError(fmt.Errorf("%s %q is not an address", flag, address), addressHint)
		}
		if !isProtected && !manage.IsLoopback(host) {
			return usageError(fmt.Errorf("%s %s is not a loopback address: %s", flag, address, danger),
				"give --xds-ca, and --xds-cert and --xds-key if the server asks for them; --insecure allows it nevertheless")
		}
	}
	return nil
}

// start makes the proxy and opens its listeners.
func (o *runOptions) start(cmd *cobra.Command, log *slog.Logger) (*runner, error) {
	r := &runner{cmd: cmd, log: log, file: o.file, hasQuota: len(o.services.xds)+len(o.services.quota) > 0}
	if err := o.open(r); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// open gives the runner what it serves with. After an error it has some of that.
func (o *runOptions) open(r *runner) error {
	var first []byte
	var err error
	if o.file != "" {
		first, err = r.readPolicy()
		if err != nil {
			return err
		}
	}
	r.from, r.quota, err = o.services.open()
	if err != nil {
		return err
	}
	options, err := o.proxyOptions(r)
	if err != nil {
		return err
	}
	if err := o.openListeners(r); err != nil {
		return err
	}
	r.proxy, err = proxy.New(r.cmd.Context(), options)
	if err == nil && o.file != "" {
		_, err = r.proxy.Configure(first)
	}
	return err
}

func (o *runOptions) proxyOptions(r *runner) (proxy.Options, error) {
	options := proxy.Options{ReadFile: readFilterFile, Workers: o.workers, CacheDir: fleet.CacheDir(), Log: r.log}
	if r.quota != nil {
		options.Cluster = func(string) grpc.ClientConnInterface { return r.quota } // whatever the policy calls it
	}
	var err error
	options.Upstream, err = proxy.ParseUpstream(o.upstream)
	if err != nil {
		return options, usageError(fmt.Errorf("--upstream: %w", err), "give something like http://127.0.0.1:8080")
	}
	options.Wasm, err = readFilter(o.wasm)
	if err != nil {
		return options, withHint(err, "make build makes the filter, build/out/sluice.wasm")
	}
	if o.wasm != "" {
		options.WasmName, err = filepath.Abs(o.wasm)
		if err != nil {
			return options, fmt.Errorf("find the filter: %w", err)
		}
	}
	return options, nil
}

func (o *runOptions) openListeners(r *runner) error {
	var err error
	r.requests, err = settingAddress{"--listen", o.listen}.open()
	if err != nil || o.admin == "" {
		return err
	}
	r.admin, err = settingAddress{"--admin", o.admin}.open()
	if err != nil {
		return err
	}
	if host, _, _ := net.SplitHostPort(o.admin); !manage.IsLoopback(host) {
		r.log.Warn("anyone who reaches --admin can read the names of rules and how often they deny", "admin", o.admin)
	}
	return nil
}

// runner serves with a policy from a file, from the control plane, or from both.
type runner struct {
	cmd      *cobra.Command
	log      *slog.Logger
	file     string // empty: none
	from     proxy.Subscription
	hasQuota bool

	proxy           *proxy.Proxy
	quota           *grpc.ClientConn // nil: none
	requests, admin net.Listener     // admin may be nil
}

// close closes what start has opened.
func (r *runner) close() {
	if r.proxy != nil {
		r.proxy.Close()
	}
	if r.quota != nil {
		_ = r.quota.Close()
	}
	for _, l := range []net.Listener{r.requests, r.admin} {
		if l != nil {
			_ = l.Close() // Serve may have closed it already
		}
	}
}

// readPolicy reads the policy file, prints its warnings and returns what the filter gets.
func (r *runner) readPolicy() ([]byte, error) {
	read, err := readPolicy(r.cmd, r.file, false)
	if err != nil {
		return nil, err
	}
	if read.policy.Quota != nil && !r.hasQuota {
		return nil, errNoQuotaService
	}
	return read.json(), nil
}

var errNoQuotaService = usageError(
	errors.New("the policy has quota or rules of scope cluster, but there is no quota service"), "give --quota HOST:PORT")

// run serves until the context ends.
func (r *runner) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer stop()
	if r.file != "" {
		hangups := make(chan os.Signal, 1)
		signal.Notify(hangups, syscall.SIGHUP)
		defer signal.Stop(hangups)
		background.Go(func() { r.rereadOn(ctx, hangups) })
	}
	if len(r.from.Addresses) == 0 {
		return r.serve(ctx)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.proxy.Subscribe(ctx, r.from) }()
	select {
	case <-r.proxy.Ready():
	case err := <-ended:
		return err
	case <-time.After(firstPolicyWithin):
		r.log.Warn("no policy from the control plane yet: NOTHING IS LIMITED until there is one; "+
			"-f would give one for the meantime", "xds", strings.Join(r.from.Addresses, ","))
	}
	err := r.serve(ctx)
	stop()
	return errors.Join(err, <-ended)
}

// rereadOn reads the policy file again at each signal.
func (r *runner) rereadOn(ctx context.Context, signals <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			r.reread()
		}
	}
}

// reread puts the policy file as it is now in force, if it is valid.
func (r *runner) reread() {
	var inForce bool
	text, err := r.readPolicy()
	if err == nil {
		inForce, err = r.proxy.Configure(text)
	}
	switch {
	case err == nil && inForce:
		r.log.Info("policy in force", "file", r.file)
		return
	case err == nil:
		r.log.Info("policy read; that of the control plane stays in force", "file", r.file)
		return
	}
	for _, line := range Lines(err) {
		r.log.Error("policy refused", "problem", line)
	}
	r.log.Error("the policy before stays in force", "file", r.file)
}

func (r *runner) serve(ctx context.Context) error {
	attributes := []any{"listen", r.requests.Addr().String()}
	if r.admin != nil {
		attributes = append(attributes, "admin", r.admin.Addr().String())
	}
	r.log.Info("serving", attributes...)
	return r.proxy.Serve(ctx, r.requests, r.admin)
}
