package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/console"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/xds"
	"github.com/sluice-ratelimit/sluice/examples"
)

const (
	quickstartProxies = 2
	quickstartWorkers = 2 // of each

	// quickstartPatience covers Envoys that compile the filter on a busy
	// machine.
	quickstartPatience = 2 * time.Minute

	// Ports of the first proxy; the next one has the next.
	quickstartPort  = 10000
	quickstartAdmin = 9901

	// What the second apply changes in the embedded policy.
	quickstartLimit, quickstartRaised = "3/minute", "5/minute"
	// The limit over all proxies in the last policy, and how many requests meet it.
	quickstartShared, quickstartTurns = "10/minute", 14
)

// quickstartOptions are the flags of quickstart.
type quickstartOptions struct {
	envoy string
	wasm  string
}

// AddFlags adds the flags.
func (o *quickstartOptions) AddFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.envoy, "envoy", "", "`PATH` of an Envoy to run the filter in")
	addWasmFlag(cmd, &o.wasm, "")
}

func newQuickstartCommand() *cobra.Command {
	var o quickstartOptions
	cmd := &cobra.Command{
		Use:   "quickstart",
		Short: "See it all work: control plane, two proxies and upstream in one process",
		Long: `Start a control plane with its quota service, a server that echoes requests, and
in front of it two reverse proxies with the filter. Then push a policy, send a few
requests, print the results, and serve until Ctrl-C. With --envoy the proxies are
two processes of that Envoy.

Everything listens on loopback: on the usual ports if they are free, otherwise on
others. The output has the addresses.`,
		Example: `  sluice quickstart
  sluice quickstart --envoy /usr/local/bin/envoy`,
		RunE: func(cmd *cobra.Command, _ []string) error { return quickstart(cmd, &o) },
	}
	o.AddFlags(cmd)
	return cmd
}

// demo is a running quickstart.
type demo struct {
	quickstartOptions
	cmd    *cobra.Command
	out    io.Writer
	log    *slog.Logger
	data   string // directory of the store
	client *client
	server string // URL of the control plane
	xds    string
	echo   string // URL of the upstream
	planes []*dataPlane
	failed chan error // of the control plane
	ends   []func() error
}

// later adds something to do at the end. What was added last is done first.
func (d *demo) later(f func() error) { d.ends = append(d.ends, f) }

func (d *demo) end() {
	for _, f := range slices.Backward(d.ends) {
		if err := f(); err != nil {
			d.log.Error("stop the quickstart", "error", err)
		}
	}
}

func quickstart(cmd *cobra.Command, o *quickstartOptions) (err error) {
	d := &demo{quickstartOptions: *o, cmd: cmd, out: cmd.OutOrStdout(), failed: make(chan error, 1)}
	// Only warnings are logged, so that the transcript stands out.
	d.log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	d.data, err = os.MkdirTemp("", "sluice-quickstart-")
	if err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(d.data)) }()
	defer d.end()
	for _, step := range []func() error{d.startControlPlane, d.startUpstream, d.startPlanes, d.show} {
		err := step()
		if err != nil && cmd.Context().Err() != nil {
			return errInterrupted
		}
		if err != nil {
			return err
		}
	}
	d.farewell()
	select {
	case <-cmd.Context().Done():
		return nil
	case err := <-d.failed:
		return err
	}
}

// show pushes the policy and sends requests.
func (d *demo) show() error {
	ctx, cancel := context.WithTimeout(d.cmd.Context(), quickstartPatience)
	defer cancel()
	if err := d.connected(ctx); err != nil {
		return err
	}
	const name = "quickstart.yaml"
	fmt.Fprintf(d.out, "\nThe policy is pushed: sluice apply -f %s\n", name)
	if err := d.apply(name, examples.Quickstart); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\ncontrol plane  %s, xDS and quota service on %s\n", d.server, d.xds)
	fmt.Fprintf(d.out, "console        %s%s\n", d.server, console.Path)
	for _, p := range d.planes {
		if err := p.ready(ctx); err != nil {
			return err
		}
		fmt.Fprintf(d.out, "%-14s %s, %s\n", p.node, p.url, p.what)
	}
	fmt.Fprintf(d.out, "upstream       %s, echoes requests\n\n", d.echo)
	fmt.Fprintf(d.out, "Each user may send %s to /api/ at each proxy. At %s:\n", quickstartLimit, d.planes[0].node)
	for _, step := range []struct {
		path, user string
		times      int
	}{{"/api/orders", "alice", 4}, {"/api/orders", "bob", 1}, {"/", "alice", 1}} {
		if err := d.send(ctx, step.path, step.user, step.times); err != nil {
			return err
		}
	}
	fmt.Fprintf(d.out, "\nThe limit is raised to %s. What alice has used still counts:\n", quickstartRaised)
	raised := bytes.Replace(examples.Quickstart, []byte(quickstartLimit), []byte(quickstartRaised), 1)
	if err := d.apply(name, raised); err != nil {
		return err
	}
	if err := d.send(ctx, "/api/orders", "alice", 3); err != nil {
		return err
	}
	return d.share(ctx)
}

// connected waits until the control plane knows the proxies.
func (d *demo) connected(ctx context.Context) error {
	for {
		status, err := call[api.Status](ctx, d.client, http.MethodGet, "/v1/status", nil, content{})
		if err != nil {
			return err
		}
		isGone := func(p xds.ProxyStatus) bool { return !p.Connected }
		if len(slices.DeleteFunc(status.Proxies, isGone)) >= quickstartProxies {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the proxies to connect: %w", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// apply does what sluice apply does.
func (d *demo) apply(name string, text []byte) error {
	applied, err := d.client.apply(d.cmd.Context(), []policyText{{name: name, text: text}}, nil, url.Values{})
	if err != nil {
		return err
	}
	r := rollout{client: d.client, output: outputText, wait: quickstartPatience, done: "applied"}
	return r.run(d.cmd, applied...)
}

// send sends requests to the first proxy and prints what became of them.
func (d *demo) send(ctx context.Context, path, user string, times int) error {
	for range times {
		status, got, err := d.planes[0].get(ctx, path, "x-user-id", user)
		if err != nil {
			return err
		}
		fmt.Fprintf(d.out, "  GET %-12s %-17s → %d %-8s %s\n",
			path, "x-user-id: "+user, status, outcome(status), fields(got))
	}
	return nil
}

// share pushes a rule for all proxies together, sends the requests of one tenant to them
// in turn, and prints what became of them.
func (d *demo) share(ctx context.Context) error {
	fmt.Fprintf(d.out, "\nThe next policy has a limit over both proxies together: sluice apply -f cluster.yaml\n")
	if err := d.apply("cluster.yaml", examples.Cluster); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\nEach tenant may send %s to /reports/, whichever proxy it meets. They get requests in turn:\n",
		quickstartShared)
	counts := map[string]int{}
	lines := make([]string, len(d.planes))
	for i := range quickstartTurns {
		turn := i % len(d.planes)
		status, _, err := d.planes[turn].get(ctx, "/reports/1", "x-tenant", "acme")
		if err != nil {
			return err
		}
		counts[outcome(status)]++
		lines[turn] += fmt.Sprintf(" %d", status)
	}
	for i, line := range lines {
		fmt.Fprintf(d.out, "  GET /reports/1   x-tenant: acme    → %s:%s\n", d.planes[i].node, line)
	}
	fmt.Fprintf(d.out, "%d of %d were allowed.\n", counts["allowed"], quickstartTurns)
	return nil
}

func outcome(status int) string {
	switch {
	case status == http.StatusTooManyRequests:
		return "denied"
	case status < http.StatusBadRequest:
		return "allowed"
	}
	return "failed"
}

// fields shows the fields that explain a response.
func fields(h http.Header) string {
	var shown []string
	for _, name := range []string{"RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "Retry-After"} {
		if value := h.Get(name); value != "" {
			shown = append(shown, name+": "+value)
		}
	}
	return cmp.Or(strings.Join(shown, "  "), "(no rate limit fields)")
}

// farewell suggests what to try. The clients are new ones, which have used nothing yet.
func (d *demo) farewell() {
	program, server := "sluice", ""
	if filepath.Base(os.Args[0]) == program {
		program = os.Args[0]
	}
	if d.server != "http://"+defaultHTTP {
		server = " --server " + d.server
	}
	first, second := d.planes[0], d.planes[1]
	fmt.Fprintf(d.out, "\nIt serves until Ctrl-C. In another terminal:\n")
	fmt.Fprintf(d.out, `  curl -i -H 'x-user-id: carol' %[1]s/api/orders   # 200 up to %[5]s, then 429
  curl -i -H 'x-tenant: initech' %[2]s/reports/1   # 200 up to %[6]s over both proxies, then 429
  %[3]s counters top%[4]s   # who was denied most
  %[3]s get%[4]s | sed s,%[6]s,20/minute, | %[3]s apply -f -%[4]s
  %[3]s status%[4]s
  curl -s %[7]s/stats/prometheus | grep rate_limit
`, first.url, second.url, program, server, quickstartRaised, quickstartShared, first.admin)
}
