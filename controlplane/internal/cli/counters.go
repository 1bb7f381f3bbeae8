package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
)

const (
	// maxAsked is how many proxies are asked at the same time.
	maxAsked = 32
	// maxTimeout is the longest a proxy may take.
	maxTimeout = 10 * time.Minute
)

// operation is one of the operations on counters.
type operation struct {
	name    string // of the command
	wire    string // as the filter has it
	short   string
	example string
	keyed   bool // on one key of one rule
	units   bool // takes --n
	window  bool // takes --window
	sums    bool // values of several proxies add up
}

// operations lists them as help does.
var operations = []operation{
	{name: "hit", wire: "hit", short: "Count a hit as a request would, and say whether it was allowed", example: "--n 3", keyed: true, units: true},
	{name: "peek", wire: "peek", short: "Say whether a hit would be allowed, without counting it", keyed: true, units: true},
	{name: "get", wire: "get", short: "Show what is used", keyed: true, sums: true},
	{name: "inc", wire: "inc", short: "Count units without asking whether they are allowed", example: "--n 5", keyed: true, units: true, window: true, sums: true},
	{name: "set", wire: "set", short: "Set what is used", example: "--n 0 --window daily", keyed: true, units: true, window: true},
	{name: "reset", wire: "reset", short: "Forget a key, in all windows", keyed: true},
	{name: "expires-at", wire: "expires_at", short: "Show when a key's tightest window starts anew", keyed: true},
	{name: "clean", wire: "clean", short: "Free expired keys of a rule or of all", sums: true},
	{name: "stats", wire: "stats", short: "Show keys, memory and metrics of a rule or of all"},
}

// countersOptions are the flags of one operation.
type countersOptions struct {
	clientOptions
	manageOptions
	output output
	op     operation
	proxy  string
	rule   string
	keys   []string
	n      string
	window string
}

func newCountersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "counters",
		Short: "Read and change counters in running proxies",
		Long: `Read and change counters in running proxies, through the management path that
the policy turns on:

  manage: {path: /.sluice/, token_sha256: "…"}   # printf %s "$TOKEN" | sha256sum

With --proxy one proxy is asked. Otherwise the control plane tells which proxies
are connected and where they answer (sluice render envoy --manage tells it), and
each is asked from here: its answer, what went wrong and the sum are printed.
Counters are each proxy's own. The control plane never gets the management
token; every proxy it knows does, so let none connect that you do not trust.

Exits 1 unless every proxy did it.`,
		Example: `  sluice counters get --rule per-user --key alice --manage-token-file token
  sluice counters stats --manage-token-file token --proxy http://127.0.0.1:9902/.sluice/`,
		Args: cobra.NoArgs, // so that a wrong operation is an error
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, op := range operations {
		cmd.AddCommand(newOperationCommand(op))
	}
	return cmd
}

func newOperationCommand(op operation) *cobra.Command {
	o := countersOptions{op: op}
	subject := ""
	if op.keyed {
		subject = " --rule per-user --key alice"
	}
	if op.example != "" {
		subject += " " + op.example
	}
	use := "sluice counters " + op.name + subject + " --manage-token-file token"
	cmd := &cobra.Command{
		Use:   op.name,
		Short: op.short,
		Example: "  " + use + "\n" +
			"  " + use + " --proxy http://127.0.0.1:9902/.sluice/",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return counters(cmd, o) },
	}
	if op.name != op.wire {
		cmd.Aliases = []string{op.wire}
	}
	if op.name == "stats" {
		cmd.Long = op.short + ".\n\nKeys and bytes are the proxy's; metrics (all of them with --output json) are\nwhat all its workers have counted, those that did not answer up to a second ago."
	}
	o.AddFlags(cmd)
	return cmd
}

// AddFlags adds the flags that the operation takes.
func (o *countersOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	if o.op.keyed {
		f.StringVar(&o.rule, "rule", "", "`NAME` of the rule (required)")
		f.StringArrayVar(&o.keys, "key", nil, "a part of the key as `TEXT`; again for each further part, in the rule's order")
		_ = cmd.MarkFlagRequired("rule")
	} else {
		f.StringVar(&o.rule, "rule", "", "`NAME` of the rule (default: all rules)")
	}
	if o.op.units {
		f.StringVar(&o.n, "n", "1", "`UNITS`")
	}
	if o.op.name == "set" { // 1 is nothing that anyone means by leaving it out
		f.Lookup("n").DefValue, o.n = "", ""
		_ = cmd.MarkFlagRequired("n")
	}
	if o.op.window {
		f.StringVar(&o.window, "window", "", "`NAME` or index of the window (default: all)")
	}
	f.StringVar(&o.proxy, "proxy", "", "`URL` of one proxy's management path, instead of --server")
	o.keyFlag = "cert-key" // --key is a counter's
	o.clientOptions.AddFlags(cmd)
	o.manageOptions.AddFlags(cmd)
	_ = cmd.MarkFlagRequired("manage-token-file")
	o.output.AddFlags(cmd)
}

// query is the operation as proxies get it.
func (o *countersOptions) query() (url.Values, error) {
	q := url.Values{}
	if o.op.units {
		if _, err := strconv.ParseUint(o.n, 10, 32); err != nil {
			return nil, usageError(fmt.Errorf("--n %q is not a whole number from 0 to 4294967295", o.n), "give the number of units")
		}
		q.Set("n", o.n)
	}
	if o.rule != "" {
		q.Set("rule", o.rule)
	} else if o.op.keyed {
		return nil, usageError(errors.New("--rule is empty"), "give the name of a rule of the policy")
	}
	if o.window != "" {
		q.Set("window", o.window)
	}
	if len(o.keys) > 0 {
		q["key"] = o.keys
	}
	return q, nil
}

// target is a proxy to ask, or why it cannot be.
type target struct {
	node     string
	revision uint64
	url      *url.URL
	err      error
}

func counters(cmd *cobra.Command, o countersOptions) error {
	if cmd.Flags().Changed("proxy") && cmd.Flags().Changed("server") {
		return usageError(errors.New("--proxy and --server exclude each other"), "--proxy asks one proxy, --server all that it knows")
	}
	query, err := o.query()
	if err != nil {
		return err
	}
	config, err := o.tls()
	if err != nil {
		return err
	}
	m, err := o.managed(config)
	if err != nil {
		return err
	}
	if cmd.Flags().Changed("proxy") {
		return counterOfOne(cmd, o, m, query)
	}
	targets, err := o.targets(cmd.Context())
	if err != nil {
		return err
	}
	if len(targets) == 0 {
		return withHint(errors.New("no proxy is connected"), "sluice status shows those that were; --proxy asks one that the server does not know")
	}
	rows := askAll(cmd.Context(), m, targets, o.op, query)
	if cmd.Context().Err() != nil {
		return errInterrupted
	}
	if err := o.print(cmd.OutOrStdout(), rows, true); err != nil {
		return err
	}
	return failures(rows)
}

func counterOfOne(cmd *cobra.Command, o countersOptions, m *manageClient, query url.Values) error {
	u, err := parseManageURL(o.proxy)
	if err != nil {
		return err
	}
	a, err := m.ask(cmd.Context(), u, o.op, query)
	if err != nil {
		return err
	}
	return o.print(cmd.OutOrStdout(), []counterRow{{Proxy: u.Host, URL: u.String(), counterAnswer: a}}, false)
}

// targets asks the control plane which proxies there are.
func (o *clientOptions) targets(ctx context.Context) ([]target, error) {
	c, err := o.client()
	if err != nil {
		return nil, err
	}
	var known api.Management
	if err := c.call(ctx, http.MethodGet, "/v1/manage", nil, nil, &known); err != nil {
		return nil, err
	}
	targets := make([]target, 0, len(known.Proxies))
	for _, p := range known.Proxies {
		targets = append(targets, targetOf(p, c.base.Hostname()))
	}
	return targets, nil
}

// targetOf checks what the server says of a proxy. What is loopback to it is
// another machine's here, unless it is on loopback itself.
func targetOf(p api.ManagedProxy, server string) target {
	t := target{node: p.Node, revision: p.Revision}
	switch u, err := url.Parse(p.URL); {
	case p.Problem != "":
		t.err = withHint(errors.New(p.Problem), p.Hint)
	case err != nil || u.Host == "":
		t.err = fmt.Errorf("the server tells the management URL %q, which is none", p.URL)
	case isLoopback(u.Hostname()) && !isLoopback(server):
		t.err = withHint(fmt.Errorf("its management address %s is of loopback on the server's machine", u.Host),
			"ask it there, or give it a management address that can be reached")
	default:
		t.url = u
	}
	return t
}

// askAll asks every proxy.
func askAll(ctx context.Context, m *manageClient, targets []target, op operation, query url.Values) []counterRow {
	rows := make([]counterRow, len(targets))
	askEach(targets, func(i int, t target) {
		rows[i] = counterRow{Proxy: t.node, Revision: t.revision}
		if t.err == nil {
			rows[i].URL = t.url.String()
			rows[i].counterAnswer, t.err = m.ask(ctx, t.url, op, query)
		}
		if t.err != nil {
			rows[i].fail(t.err)
		}
	})
	return rows
}

// askEach asks the targets, some at a time. One with an err is only told of.
func askEach(targets []target, ask func(i int, t target)) {
	slots := make(chan struct{}, maxAsked)
	var asked sync.WaitGroup
	for i, t := range targets {
		if t.err != nil {
			ask(i, t)
			continue
		}
		asked.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			ask(i, t)
		})
	}
	asked.Wait()
}

// failures makes an error of the proxies that did not do it, with the first
// advice there is.
func failures(rows []counterRow) error {
	failed, hint := 0, ""
	for _, r := range rows {
		if r.Error != "" {
			failed++
			if hint == "" {
				hint = r.Hint
			}
		}
	}
	if failed == 0 {
		return nil
	}
	return withHint(fmt.Errorf("it failed on %d of %s", failed, count(len(rows), "proxy", "proxies")), hint)
}
