package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli/flagfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/clients"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// askOptions say which proxies a command asks, and how: all of a policy through the server, or,
// with --proxy, one directly.
type askOptions struct {
	serverOptions
	proxy       string
	manageToken string
	insecure    bool
	timeout     time.Duration
}

// askFlags are the flags that say it, in the order in which a printed command repeats them.
var askFlags = []string{
	"server", "policy", "token-file", "ca", "cert", "cert-key", "proxy", "manage-token-file", "insecure",
}

// AddFlags adds the flags of commands that ask all proxies or one.
func (o *askOptions) AddFlags(cmd *cobra.Command) {
	o.serverOptions.AddFlags(cmd)
	o.addPolicyNameFlag(cmd, store.DefaultPolicy)
	f := cmd.Flags()
	f.StringVar(&o.proxy, "proxy", "",
		"`URL` of one proxy's management path, to ask that proxy directly instead of --server")
	f.StringVar(&o.manageToken, "manage-token-file", "",
		"with --proxy: `FILE` with the bearer token whose SHA-256 is the policy's manage.token_sha256")
	f.BoolVar(&o.insecure, "insecure", false,
		"with --proxy: send that token without TLS even to addresses that are not loopback")
	f.DurationVar(&o.timeout, "timeout", manage.DefaultTimeout, "how long to wait for each proxy")
}

// check rejects flags that do not go together.
func (o *askOptions) check(cmd *cobra.Command) error {
	if err := manage.CheckTimeout(o.timeout); err != nil {
		return usageError(errors.New("--"+err.Error()), manage.DefaultTimeout.String()+" is the default")
	}
	given := func(flag string) bool { return cmd.Flags().Changed(flag) }
	if !given("proxy") {
		for _, flag := range []string{"manage-token-file", "insecure"} {
			if given(flag) {
				return usageError(fmt.Errorf("--%s goes with --proxy only", flag),
					"sluice serve has the management token and asks the proxies: see its --manage-token-file")
			}
		}
		return nil
	}
	switch {
	case given("server"):
		return usageError(errors.New("--proxy and --server exclude each other"),
			"--proxy asks one proxy, --server asks all proxies of a policy")
	case given("policy"):
		return usageError(errors.New("--policy does not go with --proxy"),
			"--proxy asks that proxy, whichever policy it runs")
	case o.manageToken == "":
		return usageError(errors.New("--proxy needs --manage-token-file"),
			"the file holds the token whose SHA-256 is the policy's manage.token_sha256")
	}
	return nil
}

// asker returns what asks the proxies. It notes that --proxy bypasses the audit log.
func (o *askOptions) asker(cmd *cobra.Command) (clients.Asker, error) {
	if o.proxy != "" {
		return o.proxyAsker(cmd)
	}
	c, err := o.client()
	if err != nil {
		return nil, err
	}
	return &clients.Server{Policy: o.policyName, Timeout: o.timeout, Post: c.post}, nil
}

func (o *askOptions) proxyAsker(cmd *cobra.Command) (clients.Asker, error) {
	u, err := parseManageURL(o.proxy)
	if err != nil {
		return nil, err
	}
	config, err := o.tls(u)
	if err != nil {
		return nil, err
	}
	token, err := flagfile.Token(o.manageToken)
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(cmd.ErrOrStderr(),
		"note: this asks the proxy directly, so the audit log of sluice serve does not have it")
	return &clients.Proxy{URL: u, Client: &manage.Client{
		Token: token, TLS: config, Timeout: o.timeout, Reach: manage.Reach{Insecure: o.insecure},
	}}, nil
}

// post makes a call for clients.Server. It takes as long as the proxies may.
func (c *client) post(ctx context.Context, call *clients.Call) error {
	err := c.ask(ctx, http.MethodPost, call.Path, call.Query, content{call.Kind, []byte(call.Body)}, call.Answer)
	if err == nil && !call.IsWhole() {
		return c.notOurs()
	}
	return err
}

// failures is the error of rows of proxies that failed, nil if none did.
func failures[Row any](rows []Row, asked func(*Row) *manage.Asked) error {
	failed := 0
	hint := ""
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

const manageURLHint = "give scheme, address and the policy's manage.path, for example http://127.0.0.1:9902/.sluice/"

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
