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

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/envoy/proxy"
)

// firstPolicyWithin is how long run waits for the control plane before it
// serves without a policy: Envoy's initial_fetch_timeout in a rendered
// bootstrap.
const firstPolicyWithin = 3 * time.Second

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

func newRunCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [-f POLICY] [--xds ADDRESS] --upstream URL",
		Short: "Run the filter as a reverse proxy, without Envoy",
		Long: `Run the filter that Envoy loads as a reverse proxy in front of one HTTP server:
for a first try and for tests. Put an Envoy at the edge.

The policy comes from a file, read again on SIGHUP, or from sluice serve. A refused
policy changes nothing: the last good one stays in force, also while the control
plane is away. With both, the file's policy is in force until the control plane has
sent one. With --xds alone the proxy waits three seconds for the first policy and
then SERVES WITHOUT LIMITS until there is one, with a warning: give -f as well where
that must not happen.

The client's address is that of its connection, whatever x-forwarded-for says, and
paths are normalized as in an Envoy that sluice render set up. It speaks HTTP/1;
websockets and other upgrades do not pass. The head of a request has at most 64 KiB
and 10 seconds, the upstream 15 seconds to begin its response. There are 4,096
connections; one more waits. Nothing ends a slow body. Logs go to standard error.`,
		Example: `  sluice run -f policy.yaml --upstream http://127.0.0.1:8080
  sluice run -f policy.yaml --upstream http://127.0.0.1:8080 --listen 127.0.0.1:0   # a port of the system's choice, see the log
  sluice run --xds 127.0.0.1:18000 -f policy.yaml --node edge-1 --upstream http://127.0.0.1:8080 --admin 127.0.0.1:9901
  sluice run --xds sluice-1.example:18000,sluice-2.example:18000 --xds-ca ca.pem --xds-cert proxy.pem --xds-key proxy.key --upstream http://127.0.0.1:8080`,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd, o) },
	}
	f := cmd.Flags()
	addFileFlag(cmd, &o.file, "policy `FILE`, read again on SIGHUP; with --xds, until the control plane gives one")
	o.services.AddFlags(cmd, "(default: sluice-run- and the host's name)")
	f.StringVar(&o.listen, "listen", "127.0.0.1:10000", "`ADDRESS` on which to accept requests")
	f.StringVar(&o.upstream, "upstream", "", "`URL` of the server behind, without a path (required)")
	f.StringVar(&o.admin, "admin", "", "`ADDRESS` for /healthz and /stats/prometheus (default: none)")
	addWasmFlag(cmd, &o.wasm, "")
	f.IntVar(&o.workers, "workers", 2, fmt.Sprintf("worker VMs, 1 to %d", maxWorkers))
	f.BoolVar(&o.insecure, "insecure", false, "allow a control plane on another machine without TLS")
	return cmd
}

func run(cmd *cobra.Command, o runOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	upstream, err := proxy.ParseUpstream(o.upstream)
	if err != nil {
		return usageError(fmt.Errorf("--upstream: %w", err), "give something like http://127.0.0.1:8080")
	}
	var first []byte
	if o.file != "" {
		if first, err = readPolicyJSON(cmd, o.file, len(o.services.xds)+len(o.services.quota) > 0); err != nil {
			return err
		}
	}
	subscription, err := o.services.subscription()
	if err != nil {
		return err
	}
	wasm, err := readFilter(o.wasm)
	if err != nil {
		return withHint(err, "make build makes the filter, build/out/sluice.wasm")
	}
	listeners, err := o.open()
	if err != nil {
		return err
	}
	defer listeners.close()

	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
	options := proxy.Options{
		Wasm: wasm, ReadFile: readFilterFile, Workers: o.workers, Upstream: upstream, CacheDir: compiledFilters(), Log: log,
	}
	if o.wasm != "" {
		if options.WasmName, err = filepath.Abs(o.wasm); err != nil {
			return fmt.Errorf("find the filter: %w", err)
		}
	}
	quota, err := o.services.connect()
	if err != nil {
		return err
	}
	if quota != nil {
		defer quota.Close()
		options.Cluster = func(string) grpc.ClientConnInterface { return quota } // whatever the policy calls it
	}
	p, err := proxy.New(cmd.Context(), options)
	if err != nil {
		return err
	}
	defer p.Close()
	if host, _, _ := net.SplitHostPort(o.admin); o.admin != "" && !manage.IsLoopback(host) {
		log.Warn("anyone who reaches --admin can read the names of rules and how often they deny", "admin", o.admin)
	}
	r := runner{cmd: cmd, proxy: p, log: log, file: o.file, hasQuota: quota != nil}
	if o.file != "" {
		if _, err := p.Configure(first); err != nil {
			return err
		}
	}
	return r.run(subscription, listeners)
}

func (o *runOptions) check() error {
	const hint = "the policy comes from a file with -f, from sluice serve with --xds, or from both"
	switch {
	case o.file == "" && len(o.services.xds) == 0:
		return usageError(errors.New("no policy: give -f or --xds"), hint)
	case len(o.services.xds) == 0 && o.services.node != "":
		return usageError(errors.New("--node needs --xds"), hint)
	case o.file == "-":
		return usageError(errors.New("-f - is not possible here"), "the policy is read again on SIGHUP, so it has to be a file")
	case o.workers < 1 || o.workers > maxWorkers:
		return usageError(fmt.Errorf("--workers %d is not from 1 to %d", o.workers, maxWorkers), "as many as processors is a good choice")
	}
	var admin []string
	if o.admin != "" {
		admin = []string{o.admin}
	}
	for _, f := range []struct {
		flag      string
		addresses []string
	}{
		{"--listen", []string{o.listen}}, {"--admin", admin}, {"--xds", o.services.xds}, {"--quota", o.services.quota},
	} {
		for _, address := range f.addresses {
			if _, _, err := net.SplitHostPort(address); err != nil {
				return usageError(fmt.Errorf("%s %q is not an address", f.flag, address), "give HOST:PORT, for example 127.0.0.1:10000")
			}
		}
	}
	if err := o.services.check(); err != nil || o.insecure {
		return err
	}
	return o.services.checkExposed()
}

// runListeners are what run accepts on.
type runListeners struct{ requests, admin net.Listener }

func (o *runOptions) open() (runListeners, error) {
	var l runListeners
	var err error
	if l.requests, err = listen("--listen", o.listen); err != nil || o.admin == "" {
		return l, err
	}
	if l.admin, err = listen("--admin", o.admin); err != nil {
		l.close()
	}
	return l, err
}

func (l runListeners) close() {
	for _, listener := range []net.Listener{l.requests, l.admin} {
		if listener != nil {
			_ = listener.Close() // Serve may have closed it already
		}
	}
}

// readPolicyJSON reads a policy file, prints its warnings and returns what the
// filter gets. hasQuota says that there is a quota service.
func readPolicyJSON(cmd *cobra.Command, file string, hasQuota bool) ([]byte, error) {
	read, err := (&policyInput{file: file, noDash: true}).read(cmd)
	if err != nil {
		return nil, err
	}
	if read.policy.Quota != nil && !hasQuota {
		return nil, usageError(errors.New("the policy has quota or rules of scope cluster, but there is no quota service"), "give --quota HOST:PORT")
	}
	return read.json(), nil
}

// runner serves with a policy from either source, or both.
type runner struct {
	cmd   *cobra.Command
	proxy *proxy.Proxy
	log   *slog.Logger
	file  string // empty if there is none

	hasQuota bool
}

// run serves until the command's context ends.
func (r runner) run(s proxy.Subscription, listeners runListeners) error {
	ctx, stop := context.WithCancel(r.cmd.Context())
	var background sync.WaitGroup
	defer func() { stop(); background.Wait() }()
	if r.file != "" {
		hangups := make(chan os.Signal, 1)
		signal.Notify(hangups, syscall.SIGHUP)
		defer signal.Stop(hangups)
		background.Go(func() { r.watch(ctx, hangups) })
	}
	if len(s.Addresses) == 0 {
		return r.serve(ctx, listeners)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.proxy.Subscribe(ctx, s) }()
	select {
	case <-r.proxy.Ready():
	case err := <-ended:
		return err
	case <-time.After(firstPolicyWithin):
		r.log.Warn("no policy from the control plane yet: NOTHING IS LIMITED until there is one; -f would give one for the meantime", "xds", strings.Join(s.Addresses, ","))
	}
	err := r.serve(ctx, listeners)
	stop()
	return errors.Join(err, <-ended)
}

func (r runner) watch(ctx context.Context, hangups <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			r.reread()
		}
	}
}

// reread takes the policy file as it is now, if it is any good.
func (r runner) reread() {
	var inForce bool
	text, err := readPolicyJSON(r.cmd, r.file, r.hasQuota)
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

func (r runner) serve(ctx context.Context, l runListeners) error {
	attributes := []any{"listen", l.requests.Addr().String()}
	if l.admin != nil {
		attributes = append(attributes, "admin", l.admin.Addr().String())
	}
	r.log.Info("serving", attributes...)
	return r.proxy.Serve(ctx, l.requests, l.admin)
}
