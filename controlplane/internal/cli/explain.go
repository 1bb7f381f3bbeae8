package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

// maxDescribed is the longest description that a proxy gets: Envoy refuses
// headers of 60 KiB, of which some are its own.
const maxDescribed = 48 << 10

type explainOptions struct {
	requestOptions
	clientOptions
	manageOptions
	output output
	policy string
	proxy  string
	wasm   string
}

func newExplainCommand() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain (-f POLICY | --proxy URL | --server URL) [flags] [-- curl COMMAND LINE]",
		Short: "Say which rules match a request, and what is left, without counting it",
		Long: `Ask the filter what it would make of a request now: which rules match it and why
the others do not, by which key it counts, which override holds, and how much is
left of each limit. Nothing is counted.

With -f the filter runs here, on a policy file, and its counters are empty. With
--proxy one running proxy is asked, with --server all that the control plane
knows, through the management path as by sluice counters.

The request is described by flags, by JSON like a line of simulate, or by a curl
command line, which sends nothing: an unknown option of curl's is an error, and
values are never printed but where they are a key. user-agent is ` + assumedCurl + ` unless -A
or -H say otherwise. Paths are those that the proxy sees once it has normalised
them.`,
		Example: `  sluice explain -f policy.yaml --host api.example.com --path /v1/orders --header 'x-user-id: alice'

  sluice explain -f policy.yaml --request '{"path":"/v1/orders","headers":{"x-user-id":"alice"}}'

  sluice explain --proxy http://127.0.0.1:9902/.sluice/ --manage-token-file token \
      --client-ip 192.0.2.7 -- curl -X POST https://api.example.com/v1/orders -H 'x-user-id: alice'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return explain(cmd, o, args) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.policy, "file", "f", "", "policy `FILE` to ask, with empty counters")
	_ = cmd.MarkFlagFilename("file", "yaml", "yml", "json")
	f.StringVar(&o.proxy, "proxy", "", "`URL` of one proxy's management path to ask")
	f.StringVar(&o.wasm, "wasm", "", "with -f: `FILE` of the filter (default: the one inside this program)")
	o.requestOptions.AddFlags(cmd)
	o.clientOptions.AddFlags(cmd)
	o.manageOptions.AddFlags(cmd)
	o.output.AddFlags(cmd)
	return cmd
}

// whom checks that one is asked, and that no flag is there for another.
func (o *explainOptions) whom(cmd *cobra.Command) error {
	given := func(flag string) bool { return cmd.Flags().Changed(flag) }
	asked := 0
	for _, flag := range []string{"file", "proxy", "server"} {
		if given(flag) {
			asked++
		}
	}
	switch {
	case asked != 1:
		return usageError(errors.New("one of -f, --proxy and --server says whom to ask"),
			"-f asks a policy file with empty counters, --proxy one running proxy, --server all that it knows")
	case given("file"):
		for _, flag := range []string{"manage-token-file", "insecure", "timeout", "token-file", "ca", "cert", "key"} {
			if given(flag) {
				return usageError(fmt.Errorf("--%s does not go with -f, which asks no proxy", flag), "remove one of the two")
			}
		}
		if o.policy == "-" {
			return usageError(errors.New("-f - is not possible here"), "give the policy as a file")
		}
	case given("wasm"):
		return usageError(errors.New("--wasm goes with -f only: a proxy has its filter"), "remove it")
	case !given("manage-token-file"):
		return usageError(errors.New("--manage-token-file is required to ask a proxy"), "it holds the token that the policy's manage.token_sha256 knows")
	}
	return nil
}

func explain(cmd *cobra.Command, o explainOptions, pasted []string) error {
	if err := o.whom(cmd); err != nil {
		return err
	}
	r, err := o.request(cmd, pasted)
	if err != nil {
		return err
	}
	if o.policy != "" {
		return explainFile(cmd, o, r)
	}
	if r.AtNs != nil {
		return usageError(errors.New("--request has a time: a running proxy explains what holds now"), "remove the time, or ask a file with -f")
	}
	if len(r.Header()) > maxDescribed {
		return usageError(fmt.Errorf("the request takes %d bytes to describe, more than the %d that a proxy takes", len(r.Header()), maxDescribed), "leave out headers that no rule looks at")
	}
	config, err := o.tls()
	if err != nil {
		return err
	}
	m, err := o.managed(config)
	if err != nil {
		return err
	}
	if o.proxy != "" {
		return explainOne(cmd, o, m, r)
	}
	targets, err := o.targets(cmd.Context())
	if err != nil {
		return err
	}
	rows := make([]explainRow, len(targets))
	askEach(targets, func(i int, t target) {
		rows[i] = explainRow{Proxy: t.node, Revision: t.revision}
		if t.err == nil {
			rows[i].URL = t.url.String()
			rows[i].explained, t.err = m.explain(cmd.Context(), t.url, r)
		}
		if t.err != nil {
			rows[i].Error, rows[i].Hint = t.err.Error(), Hint(t.err)
		}
	})
	if cmd.Context().Err() != nil {
		return errInterrupted
	}
	if err := o.print(cmd, explainReport{Proxies: rows}); err != nil {
		return err
	}
	return explainFailures(rows)
}

func explainFile(cmd *cobra.Command, o explainOptions, r *simulate.Request) error {
	wasm, err := readFilter(o.wasm)
	if err != nil {
		return err
	}
	text, err := simulate.Explain(cmd.Context(), simulate.Options{
		Wasm: wasm, Policy: o.policy, CacheDir: compiledFilters(),
		Log: func(message string) { fmt.Fprintln(cmd.ErrOrStderr(), message) },
	}, r)
	if err != nil {
		return err
	}
	x, ok := readExplained(text)
	if !ok {
		return errors.New("the filter cannot explain: is it older than this program?")
	}
	return o.print(cmd, explainReport{File: o.policy, explained: x})
}

func explainOne(cmd *cobra.Command, o explainOptions, m *manageClient, r *simulate.Request) error {
	u, err := parseManageURL(o.proxy)
	if err != nil {
		return err
	}
	x, err := m.explain(cmd.Context(), u, r)
	if err != nil {
		return err
	}
	return o.print(cmd, explainReport{Proxies: []explainRow{{Proxy: u.Host, URL: u.String(), explained: x}}})
}

// explain asks one proxy.
func (m *manageClient) explain(ctx context.Context, base *url.URL, r *simulate.Request) (explained, error) {
	text, err := m.post(ctx, base, "explain", nil, http.Header{simulate.RequestHeader: {r.Header()}})
	if err != nil {
		return explained{}, err
	}
	x, ok := readExplained(text)
	if !ok {
		return explained{}, withHint(fmt.Errorf("%s answers, but not as a management path does", base.Host), noManageHint)
	}
	return x, nil
}

func readExplained(text []byte) (x explained, ok bool) {
	var raw struct {
		explained
		RetryNs *int64 `json:"retry_after_ns"`
	}
	if json.Unmarshal(text, &raw) != nil || raw.Allowed == nil || raw.Rules == nil {
		return x, false
	}
	x = raw.explained
	if raw.RetryNs != nil {
		ms := *raw.RetryNs
		if ms > 0 {
			ms = milliseconds(ms)
		}
		x.RetryMs = &ms
	}
	return x, true
}

// explainFailures makes an error of the proxies that did not answer.
func explainFailures(rows []explainRow) error {
	if len(rows) == 0 {
		return withHint(errors.New("no proxy is connected"), "sluice status shows those that were; --proxy asks one that the server does not know")
	}
	list := make([]counterRow, len(rows))
	for i, r := range rows {
		list[i] = counterRow{Error: r.Error, Hint: r.Hint}
	}
	return failures(list)
}
