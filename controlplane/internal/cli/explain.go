package cli

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
	"github.com/sluice-ratelimit/sluice/shared/answer"
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
	r, err := o.request()
	if err != nil {
		return err
	}
	if o.policy != "" {
		return explainFile(cmd, o, r)
	}
	rows, a, err := o.ask(cmd, r)
	if err != nil {
		return err
	}
	if a.proxy == nil && slices.ContainsFunc(rows, func(row manage.ExplainRow) bool { return row.Pending }) {
		if err := o.askQuotaService(cmd, rows); err != nil {
			return err
		}
	}
	report := explainReport{Proxies: rows}
	if err := o.output.print(cmd, report, report.print); err != nil {
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

// askQuotaService adds what the quota service says of keys that proxies would ask it about:
// one without units of a key does not know how it stands.
func (o *explainOptions) askQuotaService(cmd *cobra.Command, rows []manage.ExplainRow) error {
	keys, _, a, err := o.clientKeys(cmd, &o.requestOptions)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if !slices.ContainsFunc(rows, k.isPendingAt) {
			continue
		}
		if err := k.read(cmd.Context(), a); err != nil {
			return err
		}
		if k.Error != "" {
			fmt.Fprintf(cmd.ErrOrStderr(), "note: the quota service did not say how the key of %s stands: %s\n",
				printable.Text(k.Rule), printable.Text(k.Error))
			continue
		}
		for i := range rows {
			if k.isPendingAt(rows[i]) {
				k.answer(&rows[i])
			}
		}
	}
	for i := range rows {
		judgePending(&rows[i].Explanation)
	}
	return nil
}

// isPendingAt reports whether the proxy would ask the quota service about this key.
func (k *clientKey) isPendingAt(row manage.ExplainRow) bool {
	_, has := k.hashes[row.Proxy]
	return has && slices.ContainsFunc(row.Rules, func(r answer.ExplainedRule) bool { return r.Rule == k.Rule && r.Pending })
}

// answer makes the quota service's word that of the row's rule, unless only the request itself
// says the limit.
func (k *clientKey) answer(row *manage.ExplainRow) {
	isQuota := func(c clientCounter) bool { return c.Proxy == quotaService }
	isSaid := func(w answer.Window) bool { return w.LimitFrom != "" }
	said := slices.IndexFunc(k.Counters, isQuota)
	if said < 0 || k.limits == nil && slices.ContainsFunc(k.Counters[said].Windows, isSaid) {
		return
	}
	c := &k.Counters[said]
	r := &row.Rules[slices.IndexFunc(row.Rules, func(r answer.ExplainedRule) bool { return r.Rule == k.Rule })]
	r.Pending = false
	r.Allowed, r.Reason = c.Allowed, c.Reason
	r.Windows = c.Windows
	if !*c.Allowed && r.Mode == "enforced" {
		row.DeniedBy = cmp.Or(row.DeniedBy, r.Rule)
		if row.RetryMs == nil || *c.RetryMs < 0 || *row.RetryMs >= 0 && *c.RetryMs > *row.RetryMs {
			row.RetryMs = c.RetryMs
		}
	}
}

// judgePending decides once an enforced rule denies, or none has to ask any more.
func judgePending(x *answer.Explanation) {
	asks := func(r answer.ExplainedRule) bool { return r.Pending && r.Mode == "enforced" }
	if denied := x.DeniedBy != ""; x.Pending && (denied || !slices.ContainsFunc(x.Rules, asks)) {
		allowed := !denied
		x.Pending, x.Allowed = false, &allowed
	}
}

func explainFile(cmd *cobra.Command, o explainOptions, r *simulate.Request) error {
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
	json     string
	method   string
	host     string
	path     string
	headers  []string
	clientIP string
	cookies  []string
	query    []string
}

// AddFlags adds the flags that describe a request.
func (o *requestOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.json, "request", "", "the request as a `JSON` object, like a line of simulate")
	f.StringVar(&o.method, "method", "", "`METHOD` (default GET)")
	f.StringVar(&o.host, "host", "", "`HOST` that the client asks for")
	f.StringVar(&o.path, "path", "", "`PATH` as the proxy normalised it, with query (default /)")
	f.StringArrayVar(&o.headers, "header", nil, "a header as `NAME:VALUE` or NAME=VALUE; again for each further one")
	f.StringArrayVar(&o.cookies, "cookie", nil, "a cookie as `NAME=VALUE`; again for each further one")
	f.StringArrayVar(&o.query, "query", nil, "a parameter of the query as `NAME=VALUE`; again for each further one")
	f.StringVar(&o.clientIP, "client-ip", "", "`ADDRESS` of the client as the proxy trusts it")
}

const requestHint = "describe it by --method, --host, --path, --query, --header, --cookie and --client-ip, or by --request JSON"

// byFlags reports whether flags describe a request, beside the client's address.
func (o *requestOptions) byFlags() bool {
	return o.method != "" || o.host != "" || o.path != "" || len(o.headers)+len(o.cookies)+len(o.query) > 0
}

// isGiven reports whether any flag describes a request.
func (o *requestOptions) isGiven() bool { return o.byFlags() || o.json != "" || o.clientIP != "" }

// request is the request that the flags describe.
func (o *requestOptions) request() (*simulate.Request, error) {
	switch {
	case o.byFlags() && o.json != "":
		return nil, usageError(errors.New("the request is described in two ways"), requestHint)
	case !o.isGiven():
		return nil, usageError(errors.New("there is no request to explain"), requestHint)
	}
	r, err := o.described()
	switch {
	case err != nil:
		return nil, err
	case r.ClientIP != "" && o.clientIP != "":
		return nil, usageError(errors.New("both --request and --client-ip give the client's address"), "keep one")
	}
	r.ClientIP = cmp.Or(o.clientIP, r.ClientIP)
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
	r := &simulate.Request{Method: o.method, Host: o.host, Path: o.path, Headers: map[string]simulate.Values{}}
	for _, line := range o.headers {
		at := strings.IndexAny(line, ":=")
		if at < 0 {
			return nil, usageError(errors.New(`--header lacks the ":" behind its name`), "give something like --header 'x-user-id: alice'")
		}
		name := strings.ToLower(strings.TrimSpace(line[:at]))
		r.Headers[name] = append(r.Headers[name], strings.TrimSpace(line[at+1:]))
	}
	if len(o.cookies) > 0 {
		r.Headers["cookie"] = append(r.Headers["cookie"], strings.Join(o.cookies, "; "))
	}
	for _, pair := range o.query {
		name, value, found := strings.Cut(pair, "=")
		if !found {
			return nil, usageError(errors.New(`--query lacks the "=" behind its name`), "give something like --query user=alice")
		}
		separator := "?"
		if strings.Contains(r.Path, "?") {
			separator = "&"
		}
		r.Path = cmp.Or(r.Path, "/") + separator + url.QueryEscape(name) + "=" + url.QueryEscape(value)
	}
	return r, nil
}
