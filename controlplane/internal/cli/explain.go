package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/find"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

type explainOptions struct {
	requestOptions
	manageOptions
	filterOptions
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
so does SLUICE_SERVER where none of the three is given. Where a proxy holds no units
of a key of scope cluster, the control plane asks the quota service how that stands.
Values are printed only where they are part of a key.`,
		Example: `  sluice explain -f policy.yaml --request '{"path":"/v1/orders","headers":{"x-user-id":"alice"}}'
  sluice explain --proxy http://127.0.0.1:9902/.sluice/ --manage-token-file token \
      --client-ip 192.0.2.7 --method POST --host api.example.com --path /v1/orders --header 'x-user-id: alice'`,
		RunE: func(cmd *cobra.Command, _ []string) error { return explain(cmd, o) },
	}
	o.filterOptions.AddFlags(cmd, "policy `FILE` to ask, with empty counters", "with -f: ")
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
	if o.policy != "" {
		return explainFile(cmd, o)
	}
	r, a, err := o.asked(cmd, &o.requestOptions)
	if err != nil {
		return err
	}
	rows, err := a.Explain(cmd.Context(), r.Header())
	if err != nil {
		return err
	}
	if a.proxy == nil && slices.ContainsFunc(rows, func(row manage.ExplainRow) bool { return row.Pending }) {
		silent, err := find.AskQuotaService(cmd.Context(), a, r, rows)
		if err != nil {
			return err
		}
		for _, k := range silent {
			fmt.Fprintf(cmd.ErrOrStderr(), "note: the quota service did not say how the key of %s stands: %s\n",
				printable.Text(k.Rule), printable.Text(k.Error))
		}
	}
	report := explainReport{Proxies: rows}
	if err := o.output.print(cmd, report, report.print); err != nil {
		return err
	}
	return failures(rows, func(r *manage.ExplainRow) *manage.Asked { return &r.Asked })
}

// asked is the described request, and whom to ask about it.
func (o *manageOptions) asked(cmd *cobra.Command, described *requestOptions) (*simulate.Request, *asker, error) {
	r, err := described.request()
	if err != nil {
		return nil, nil, err
	}
	if r.When != nil {
		return nil, nil, usageError(errors.New("--request has a time: a running proxy explains what holds now"), "remove the time, or ask a file with explain -f")
	}
	if err := find.CheckLength(r); err != nil {
		return nil, nil, usageError(err, "leave out headers that no rule looks at")
	}
	a, err := o.asker(cmd)
	return r, a, err
}

func explainFile(cmd *cobra.Command, o explainOptions) error {
	r, err := o.request()
	if err != nil {
		return err
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

// requestOptions describe one request.
type requestOptions struct {
	find.Description
	json string
}

// AddFlags adds the flags that describe a request.
func (o *requestOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.json, "request", "", "the request as a `JSON` object, like a line of simulate")
	f.StringVar(&o.Method, "method", "", "`METHOD` (default GET)")
	f.StringVar(&o.Host, "host", "", "`HOST` that the client asks for")
	f.StringVar(&o.Path, "path", "", "`PATH` as the proxy normalised it, with query (default /)")
	f.StringArrayVar(&o.Headers, "header", nil, "a header as `NAME:VALUE` or NAME=VALUE; again for each further one")
	f.StringArrayVar(&o.Cookies, "cookie", nil, "a cookie as `NAME=VALUE`; again for each further one")
	f.StringArrayVar(&o.Query, "query", nil, "a parameter of the query as `NAME=VALUE`; again for each further one")
	f.StringVar(&o.ClientIP, "client-ip", "", "`ADDRESS` of the client as the proxy trusts it")
}

const requestHint = "describe it by --method, --host, --path, --query, --header, --cookie and --client-ip, or by --request JSON"

// isGiven reports whether any flag describes a request.
func (o *requestOptions) isGiven() bool { return o.json != "" || !o.IsZero() }

// request is the request that the flags describe.
func (o *requestOptions) request() (*simulate.Request, error) {
	switch {
	case o.HasRequest() && o.json != "":
		return nil, usageError(errors.New("the request is described in two ways"), requestHint)
	case !o.isGiven():
		return nil, usageError(errors.New("there is no request to explain"), requestHint)
	}
	r, err := o.described()
	switch {
	case err != nil:
		return nil, err
	case o.json != "" && r.ClientIP != "" && o.ClientIP != "":
		return nil, usageError(errors.New("both --request and --client-ip give the client's address"), "keep one")
	}
	r.ClientIP = cmp.Or(o.ClientIP, r.ClientIP)
	if err := r.Check(); err != nil {
		return nil, usageError(fmt.Errorf("request: %w", err), requestHint)
	}
	return r, nil
}

func (o *requestOptions) described() (*simulate.Request, error) {
	if o.json != "" {
		r, err := simulate.ReadRequest([]byte(o.json))
		if err != nil {
			err = usageError(fmt.Errorf("--request: %w", err), `give something like {"path":"/v1/orders","headers":{"x-user-id":"alice"}}`)
		}
		return r, err
	}
	r, err := o.Request()
	var malformed *find.MalformedError
	if errors.As(err, &malformed) {
		return nil, usageError(errors.New("--"+err.Error()),
			"give something like --"+malformed.Part+" '"+malformed.Example+"'")
	}
	return r, err
}
