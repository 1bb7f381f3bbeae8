package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/clients"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/describe"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

// explainOptions are the flags of explain: the request, and what explains it.
type explainOptions struct {
	client describe.Client
	askOptions
	filterOptions
}

// AddFlags adds the flags.
func (o *explainOptions) AddFlags(cmd *cobra.Command) {
	o.filterOptions.AddFlags(cmd, "policy `FILE` to ask, with empty counters", "with -f: ")
	o.client.AddFlags(cmd.Flags())
	o.askOptions.AddFlags(cmd)
}

func newExplainCommand() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain (-f POLICY | --proxy URL | --server URL) [flags]",
		Short: "Say which rules match a request, and what is left, without counting it",
		Long: `Ask the filter what it would decide about a request now: which rules match it and why
the others do not, by which key it counts, which override applies, and how much is left
of each limit. Nothing is counted.

With -f the filter runs here, on a policy file, with empty counters. --proxy asks one
running proxy directly, and --server asks the control plane for all its proxies, like
sluice counters. Without these three flags, SLUICE_SERVER names the control plane. If a
proxy has leased no units of a key of scope cluster, the control plane asks the quota
service about the key. A value is printed only if it is part of a key.`,
		Example: `  sluice explain -f policy.yaml --request '{"path":"/v1/orders","headers":{"x-user-id":"alice"}}'
  sluice explain --proxy http://127.0.0.1:9902/.sluice/ --manage-token-file token \
      --client-ip 192.0.2.7 --method POST --host api.example.com --path /v1/orders --header 'x-user-id: alice'`,
		RunE: func(cmd *cobra.Command, _ []string) error { return explain(cmd, &o) },
	}
	o.AddFlags(cmd)
	return cmd
}

func explain(cmd *cobra.Command, o *explainOptions) error {
	if err := o.check(cmd); err != nil {
		return err
	}
	if o.policy != "" {
		return explainFile(cmd, o)
	}
	return explainProxies(cmd, o)
}

// check checks that exactly one of -f, --proxy and --server says what to ask, and that no flag
// is for another one. Without any of them the environment's server is asked.
func (o *explainOptions) check(cmd *cobra.Command) error {
	given := func(flag string) bool { return cmd.Flags().Changed(flag) }
	targets := 0
	for _, flag := range []string{"file", "proxy", "server"} {
		if given(flag) {
			targets++
		}
	}
	switch {
	case targets > 1, targets == 0 && os.Getenv(serverVariable) == "":
		return usageError(errors.New("give one of -f, --proxy and --server"),
			"-f asks a policy file with empty counters, --proxy one running proxy, --server all proxies of the control plane")
	case given("file"):
		return o.checkFile(given)
	case given("wasm"):
		return usageError(errors.New("--wasm goes with -f only: a proxy has its own filter"), "remove it")
	}
	return o.askOptions.check(cmd)
}

func (o *explainOptions) checkFile(given func(flag string) bool) error {
	for _, flag := range append([]string{"timeout"}, askFlags...) {
		if given(flag) {
			return usageError(fmt.Errorf("--%s does not go with -f, which asks no proxy", flag), "remove one of the two")
		}
	}
	if o.policy == "-" {
		return usageError(errStdin, "give the policy as a file")
	}
	return nil
}

// explainFile asks a filter that runs here.
func explainFile(cmd *cobra.Command, o *explainOptions) error {
	r, err := o.client.Request()
	if err != nil {
		return describedError(err)
	}
	s, err := o.options(cmd)
	if err != nil {
		return err
	}
	text, err := simulate.Explain(cmd.Context(), s, r)
	if err != nil {
		return err
	}
	x, ok := manage.ReadExplanation(text)
	if !ok {
		return errors.New("the filter cannot explain: is it older than this program?")
	}
	report := explainReport{File: o.policy, Explanation: x}
	return o.output.print(cmd, report, report.print)
}

// explainProxies asks running proxies, and the quota service for what they do not know.
func explainProxies(cmd *cobra.Command, o *explainOptions) error {
	r, a, err := o.about(cmd, &o.client)
	if err != nil {
		return err
	}
	rows, notKnown, err := clients.Explain(cmd.Context(), a, r)
	if err != nil {
		return err
	}
	for _, k := range notKnown {
		fmt.Fprintf(cmd.ErrOrStderr(), "note: the quota service did not say how the key of %s stands: %s\n",
			printable.Text(k.Rule), printable.Text(k.Error))
	}
	report := explainReport{Proxies: rows}
	if err := o.output.print(cmd, report, report.print); err != nil {
		return err
	}
	return failures(rows, func(r *manage.ExplainRow) *manage.Asked { return &r.Asked })
}
