package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/examples"
)

const (
	quickstartNode    = "quickstart"
	quickstartWorkers = 2

	// quickstartPatience covers an Envoy that compiles the filter on a busy
	// machine.
	quickstartPatience = 60 * time.Second

	quickstartListen = "127.0.0.1:10000"
	quickstartAdmin  = "127.0.0.1:9901"

	// What the second apply changes in the embedded policy.
	quickstartLimit, quickstartRaised = "3/minute", "5/minute"
)

type quickstartOptions struct {
	envoy  string
	policy string
	data   string
	wasm   string
	exit   bool
}

func newQuickstartCommand() *cobra.Command {
	var o quickstartOptions
	cmd := &cobra.Command{
		Use:   "quickstart",
		Short: "See it all work: control plane, proxy and upstream in one process",
		Long: `Start a control plane, a server that echoes requests, and the filter in front of
it as a reverse proxy; push a policy, send a few requests, print what became of
them, and then serve until Ctrl-C. With --envoy the filter runs in that Envoy.

Everything listens on loopback: on the usual ports where they are free, else on
others, and says where.`,
		Example: `  sluice quickstart
  sluice quickstart --envoy /usr/local/bin/envoy
  sluice quickstart --policy policy.yaml --data data   # keep the revisions
  sluice quickstart --exit                             # only the transcript`,
		RunE: func(cmd *cobra.Command, _ []string) error { return quickstart(cmd, o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.envoy, "envoy", "", "`PATH` of an Envoy to run the filter in")
	f.StringVar(&o.policy, "policy", "", "policy `FILE` to push (default: examples/quickstart.yaml, a copy of which is inside this program)")
	_ = cmd.MarkFlagFilename("policy", "yaml", "yml", "json")
	f.StringVar(&o.data, "data", "", "`DIR` of the policy store (default: one that is removed at the end)")
	_ = cmd.MarkFlagDirname("data")
	addWasmFlag(cmd, &o.wasm, "")
	f.BoolVar(&o.exit, "exit", false, "stop after the transcript")
	return cmd
}

// demo is a running quickstart.
type demo struct {
	cmd    *cobra.Command
	out    io.Writer
	log    *slog.Logger
	client *client
	server string // URL of the control plane
	xds    string
	echo   string // URL of the upstream
	plane  dataPlane
}

func quickstart(cmd *cobra.Command, o quickstartOptions) (err error) {
	text, name := examples.Quickstart, "quickstart.yaml"
	if o.policy != "" {
		read, err := (&policyInput{file: o.policy}).read(cmd)
		if err != nil {
			return err
		}
		text, name = read.text, read.name
	}
	d := &demo{cmd: cmd, out: cmd.OutOrStdout()}
	// Only warnings are logged, so that the transcript stands out.
	d.log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	if o.data == "" {
		if o.data, err = os.MkdirTemp("", "sluice-quickstart-"); err != nil {
			return fmt.Errorf("make data directory: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.data)) }()
	}
	stopControlPlane, failed, err := d.startControlPlane(o.data)
	if err != nil {
		return err
	}
	defer stopControlPlane()
	stopUpstream, err := d.startUpstream()
	if err != nil {
		return err
	}
	defer stopUpstream()
	if o.envoy != "" {
		d.plane, err = d.startEnvoy(o.envoy, o.wasm)
	} else {
		d.plane, err = d.startProxy(o.wasm)
	}
	if err != nil {
		return err
	}
	defer d.plane.stop()
	err = d.show(name, text, o.policy == "")
	if err != nil && cmd.Context().Err() != nil {
		return errInterrupted
	}
	if err != nil || o.exit {
		return err
	}
	d.farewell()
	select {
	case <-cmd.Context().Done():
		return nil
	case err := <-failed:
		return err
	}
}

// show pushes the policy and sends requests.
func (d *demo) show(name string, text []byte, embedded bool) error {
	ctx, cancel := context.WithTimeout(d.cmd.Context(), quickstartPatience)
	defer cancel()
	if err := d.connected(ctx); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\nThe policy is pushed: sluice apply -f %s\n", name)
	if err := d.apply(name, text); err != nil {
		return err
	}
	if err := d.plane.ready(ctx); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\ncontrol plane  %s, xDS on %s\nproxy          %s, %s\nupstream       %s, echoes requests\n\n",
		d.server, d.xds, d.plane.url, d.plane.what, d.echo)
	if !embedded {
		return d.send(ctx, "/", "", 3)
	}
	fmt.Fprintf(d.out, "Each user may send %s to /api/:\n", quickstartLimit)
	for _, step := range []struct {
		path, user string
		times      int
	}{{"/api/orders", "alice", 4}, {"/api/orders", "bob", 1}, {"/", "alice", 1}} {
		if err := d.send(ctx, step.path, step.user, step.times); err != nil {
			return err
		}
	}
	fmt.Fprintf(d.out, "\nThe limit is raised to %s. What alice has used still counts:\n", quickstartRaised)
	if err := d.apply(name, bytes.Replace(text, []byte(quickstartLimit), []byte(quickstartRaised), 1)); err != nil {
		return err
	}
	return d.send(ctx, "/api/orders", "alice", 3)
}

// connected waits until the control plane knows the proxy.
func (d *demo) connected(ctx context.Context) error {
	for {
		var status api.Status
		if err := d.client.call(ctx, http.MethodGet, "/v1/status", nil, nil, &status); err != nil {
			return err
		}
		for _, p := range status.Proxies {
			if p.Node == quickstartNode && p.Connected {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the proxy to connect: %w", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// apply does what sluice apply does.
func (d *demo) apply(name string, text []byte) error {
	var applied api.Applied
	if err := d.client.call(d.cmd.Context(), http.MethodPost, "/v1/policies", url.Values{"file": {name}}, text, &applied); err != nil {
		return err
	}
	return rollOut{client: d.client, output: outputText, wait: quickstartPatience, applied: applied}.run(d.cmd)
}

// send sends requests and prints what became of them.
func (d *demo) send(ctx context.Context, path, user string, times int) error {
	client := http.Client{Timeout: requestTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	for range times {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, d.plane.url+path, http.NoBody)
		if err != nil {
			return fmt.Errorf("make request: %w", err)
		}
		who := "no header"
		if user != "" {
			r.Header.Set("X-User-Id", user)
			who = "x-user-id: " + user
		}
		response, err := client.Do(r)
		if err != nil {
			return fmt.Errorf("send request: %w", err)
		}
		_, err = io.Copy(io.Discard, response.Body)
		if err = errors.Join(err, response.Body.Close()); err != nil {
			return fmt.Errorf("read response: %w", err)
		}
		fmt.Fprintf(d.out, "  GET %-12s %-17s → %d %-8s %s\n", path, who, response.StatusCode, outcome(response.StatusCode), fields(response.Header))
	}
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
	if len(shown) == 0 {
		return "(no rate limit fields)"
	}
	return strings.Join(shown, "  ")
}

// farewell suggests what to try.
func (d *demo) farewell() {
	program, server := "sluice", ""
	if filepath.Base(os.Args[0]) == program {
		program = os.Args[0]
	}
	if d.server != "http://"+defaultHTTP {
		server = " --server " + d.server
	}
	stats := d.plane.admin + "/stats/prometheus"
	fmt.Fprintf(d.out, `
It serves until Ctrl-C. In another terminal:
  curl -i -H 'x-user-id: alice' %[1]s/api/orders
  %[2]s apply -f examples/quickstart.yaml%[3]s
  %[2]s status%[3]s
  curl -s %[4]s | grep rate_limit
`, d.plane.url, program, server, stats)
}
