package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

const manageURLHint = "give scheme, address and the policy's manage.path, for example http://127.0.0.1:9902/.sluice/"

// manageOptions say which proxies are asked, by whom and how: by the server, or,
// with --proxy, from here.
type manageOptions struct {
	serverOptions
	proxy       string
	manageToken string
	insecure    bool
	timeout     time.Duration
}

// AddFlags adds the flags of commands that ask all proxies or one.
func (o *manageOptions) AddFlags(cmd *cobra.Command) {
	o.serverOptions.AddFlags(cmd, store.DefaultPolicy)
	f := cmd.Flags()
	f.StringVar(&o.proxy, "proxy", "", "`URL` of one proxy's management path, to ask it from here instead of --server")
	f.StringVar(&o.manageToken, "manage-token-file", "", "with --proxy: `FILE` with the bearer token whose SHA-256 is the policy's manage.token_sha256")
	f.BoolVar(&o.insecure, "insecure", false, "with --proxy: send that token without TLS to addresses that are not loopback, too")
	f.DurationVar(&o.timeout, "timeout", manage.DefaultTimeout, "how long each proxy may take")
}

// check refuses flags that do not go together.
func (o *manageOptions) check(cmd *cobra.Command) error {
	given := func(flag string) bool { return cmd.Flags().Changed(flag) }
	if err := manage.CheckTimeout(o.timeout); err != nil {
		return usageError(errors.New("--"+err.Error()), manage.DefaultTimeout.String()+" is the default")
	}
	switch {
	case !given("proxy"):
		for _, flag := range []string{"manage-token-file", "insecure"} {
			if given(flag) {
				return usageError(fmt.Errorf("--%s goes with --proxy only", flag), "sluice serve has the management token and asks the proxies: see its --manage-token-file")
			}
		}
	case given("server"):
		return usageError(errors.New("--proxy and --server exclude each other"), "--proxy asks one proxy, --server all that it knows")
	case given("policy"):
		return usageError(errors.New("--policy does not go with --proxy, which asks that proxy whatever its policy"), "remove one of the two")
	case o.manageToken == "":
		return usageError(errors.New("--manage-token-file is required to ask a proxy"), "it holds the token that the policy's manage.token_sha256 knows")
	}
	return nil
}

// asker asks all proxies through the server, or the one of --proxy from here.
type asker struct {
	server  *client
	policy  url.Values // of which proxies
	timeout time.Duration

	proxy *manage.Client // nil: the server is asked
	at    *url.URL
}

// asker returns what the flags say. It notes that no audit log has what --proxy is asked.
func (o *manageOptions) asker(cmd *cobra.Command) (*asker, error) {
	if o.proxy == "" {
		c, err := o.client()
		return &asker{server: c, policy: policyQuery(o.policyName), timeout: o.timeout}, err
	}
	u, err := parseManageURL(o.proxy)
	if err != nil {
		return nil, err
	}
	config, err := o.tls(u)
	if err != nil {
		return nil, err
	}
	token, err := readToken(o.manageToken)
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "note: the proxy is asked directly, so this is not in the audit log of sluice serve")
	return &asker{proxy: &manage.Client{Token: token, TLS: config, Timeout: o.timeout, Rules: manage.Rules{Insecure: o.insecure}}, at: u}, nil
}

func (a *asker) asked() manage.Asked { return manage.Asked{Proxy: a.at.Host, URL: a.at.String()} }

// Counters does an operation. The report may have rows of proxies that failed; with
// --proxy that is an error.
func (a *asker) Counters(ctx context.Context, op manage.Operation, query url.Values) (*api.Counters, error) {
	if a.proxy != nil {
		done, err := a.proxy.Counters(ctx, a.at, op, query)
		if err != nil {
			return nil, interrupted(err)
		}
		report := api.NewCounters(op, []manage.Row{{Asked: a.asked(), Result: done}})
		report.Sum = nil
		return &report, nil
	}
	form := maps.Clone(query)
	maps.Copy(form, a.policy)
	form.Set("timeout", a.timeout.String())
	report, of := new(api.Counters), op // of is of the proxies' answers
	if err := a.server.ask(ctx, http.MethodPost, "/v1/counters/"+op.Name, nil, "application/x-www-form-urlencoded", []byte(form.Encode()), report); err != nil {
		return nil, err
	}
	if report.Quota != nil {
		of = manage.Leased
	}
	switch {
	case report.Quota != nil && !manage.Answers(op, report.Quota),
		slices.ContainsFunc(report.Proxies, func(r manage.Row) bool { return r.Error == "" && !manage.Answers(of, &r.Result) }):
		return nil, a.server.notOurs()
	case len(report.Proxies) == 0 && report.Quota == nil:
		return nil, errNoProxy
	}
	return report, nil
}

// Explain explains a described request, like Counters.
func (a *asker) Explain(ctx context.Context, described string) ([]manage.ExplainRow, error) {
	if a.proxy != nil {
		x, err := a.proxy.Explain(ctx, a.at, described)
		return []manage.ExplainRow{{Asked: a.asked(), Explanation: x}}, interrupted(err)
	}
	report, query := new(api.Explanations), maps.Clone(a.policy)
	query.Set("timeout", a.timeout.String())
	if err := a.server.ask(ctx, http.MethodPost, "/v1/explain", query, "application/json", []byte(described), report); err != nil {
		return nil, err
	}
	switch {
	case slices.ContainsFunc(report.Proxies, func(r manage.ExplainRow) bool { return r.Error == "" && !manage.Explains(&r.Explanation) }):
		return nil, a.server.notOurs()
	case len(report.Proxies) == 0:
		return nil, errNoProxy
	}
	return report.Proxies, nil
}

var errNoProxy = withHint(errors.New("no proxy is connected"), "sluice status shows those that were; --proxy asks one that the server does not know")

// failures is the error of rows of proxies that failed, nil if none did.
func failures[Row any](rows []Row, asked func(*Row) *manage.Asked) error {
	failed, hint := 0, ""
	for i := range rows {
		if a := asked(&rows[i]); a.Error != "" {
			failed++
			hint = cmp.Or(hint, a.Hint)
		}
	}
	if failed == 0 {
		return nil
	}
	return withHint(fmt.Errorf("it failed on %d of %s", failed, count(len(rows), "proxy", "proxies")), hint)
}

// parseManageURL reads --proxy.
func parseManageURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, usageError(fmt.Errorf("--proxy %q is not an http or https URL", text), manageURLHint)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, usageError(errors.New("--proxy has more than scheme, address and path"), manageURLHint)
	case strings.Trim(u.Path, "/") == "":
		return nil, usageError(fmt.Errorf("--proxy %s has no path", text), manageURLHint)
	}
	if !strings.HasSuffix(u.Path, "/") {
		u.Path += "/"
	}
	return u, nil
}

// interrupted replaces the error of a call that a signal has ended.
func interrupted(err error) error {
	if errors.Is(err, context.Canceled) {
		return errInterrupted
	}
	return err
}
