package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

type explainOptions struct {
	requestOptions
	manageOptions
	policy string
	wasm   string
}

func newExplainCommand() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain (-f POLICY | --proxy URL | --server URL) [flags]",
		Short: "Say which rules match a request, and what is left, without counting it",
		Long: `Ask the filter what it would decide about a request now: which rules match it and why
the others do not, by which key it counts, which override holds, and how much is
left of each limit. Nothing is counted.

With -f the filter runs here, on a policy file, with empty counters. --proxy asks
one running proxy, --server all that the control plane knows, like sluice counters;
so does SLUICE_SERVER where none of the three is given. Values are printed only where
they are part of a key.`,
		Example: `  sluice explain -f policy.yaml --request '{"path":"/v1/orders","headers":{"x-user-id":"alice"}}'
  sluice explain --proxy http://127.0.0.1:9902/.sluice/ --manage-token-file token \
      --client-ip 192.0.2.7 --method POST --host api.example.com --path /v1/orders --header 'x-user-id: alice'`,
		RunE: func(cmd *cobra.Command, _ []string) error { return explain(cmd, o) },
	}
	addFileFlag(cmd, &o.policy, "policy `FILE` to ask, with empty counters")
	addWasmFlag(cmd, &o.wasm, "with -f: ")
	o.requestOptions.AddFlags(cmd)
	o.manageOptions.AddFlags(cmd)
	return cmd
}

// checkTarget checks that exactly one target is given, and no flag for another. The
// environment's server is the target where no flag names one.
func (o *explainOptions) checkTarget(cmd *cobra.Command) error {
	given := func(flag string) bool { return cmd.Flags().Changed(flag) }
	asked := slices.DeleteFunc([]string{"file", "proxy", "server"}, func(flag string) bool { return !given(flag) })
	switch {
	case len(asked) > 1 || len(asked) == 0 && os.Getenv(serverVariable) == "":
		return usageError(errors.New("one of -f, --proxy and --server says whom to ask"),
			"-f asks a policy file with empty counters, --proxy one running proxy, --server all that it knows")
	case given("file"):
		for _, flag := range []string{"manage-token-file", "insecure", "timeout", "policy", "token-file", "ca", "cert", "cert-key"} {
			if given(flag) {
				return usageError(fmt.Errorf("--%s does not go with -f, which asks no proxy", flag), "remove one of the two")
			}
		}
		if o.policy == "-" {
			return usageError(errors.New("-f - is not possible here"), "give the policy as a file")
		}
	case given("wasm"):
		return usageError(errors.New("--wasm goes with -f only: a proxy has its filter"), "remove it")
	default:
		return o.check(cmd)
	}
	return nil
}

func explain(cmd *cobra.Command, o explainOptions) error {
	if err := o.checkTarget(cmd); err != nil {
		return err
	}
	r, err := o.request()
	if err != nil {
		return err
	}
	if o.policy != "" {
		return explainFile(cmd, o, r)
	}
	rows, _, err := o.ask(cmd, r)
	if err != nil {
		return err
	}
	if err := o.print(cmd, explainReport{Proxies: rows}); err != nil {
		return err
	}
	return failures(rows, func(r *manage.ExplainRow) *manage.Asked { return &r.Asked })
}

// ask has the proxies explain the request.
func (o *manageOptions) ask(cmd *cobra.Command, r *simulate.Request) ([]manage.ExplainRow, *asker, error) {
	if r.When != nil {
		return nil, nil, usageError(errors.New("--request has a time: a running proxy explains what holds now"), "remove the time, or ask a file with explain -f")
	}
	described := r.Header()
	if len(described) > manage.MaxDescribed {
		return nil, nil, usageError(fmt.Errorf("the request takes %d bytes to describe, more than the %d that a proxy takes", len(described), manage.MaxDescribed), "leave out headers that no rule looks at")
	}
	a, err := o.asker(cmd)
	if err != nil {
		return nil, nil, err
	}
	rows, err := a.explain(cmd.Context(), described)
	return rows, a, err
}

func explainFile(cmd *cobra.Command, o explainOptions, r *simulate.Request) error {
	policy, _, err := readText(cmd, "policy", o.policy, false)
	if err != nil {
		return err
	}
	wasm, err := readFilter(o.wasm)
	if err != nil {
		return err
	}
	text, err := simulate.Explain(cmd.Context(), simulate.Options{
		Wasm: wasm, Policy: o.policy, Text: policy, CacheDir: compiledFilters(),
		Log: func(message string) { fmt.Fprintln(cmd.ErrOrStderr(), message) },
	}, r)
	if err != nil {
		return err
	}
	x, ok := manage.ReadExplanation(text)
	if !ok {
		return errors.New("the filter cannot explain: is it older than this program?")
	}
	return o.print(cmd, explainReport{File: o.policy, Explanation: x})
}
