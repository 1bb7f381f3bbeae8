package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
)

const manageURLHint = "give scheme, address and the policy's manage.path, for example http://127.0.0.1:9902/.sluice/"

// manageOptions say who is asked about counters, and how.
type manageOptions struct {
	proxy       string
	manageToken string
	insecure    bool
	timeout     time.Duration
}

// AddFlags adds the flags of commands that ask all proxies or one.
func (o *manageOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.proxy, "proxy", "", "`URL` of one proxy's management path, to ask it from here instead of --server")
	f.StringVar(&o.manageToken, "manage-token-file", "", "with --proxy: `FILE` with the bearer token that the policy's manage.token_sha256 knows")
	_ = cmd.MarkFlagFilename("manage-token-file")
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
	case o.manageToken == "":
		return usageError(errors.New("--manage-token-file is required to ask a proxy"), "it holds the token that the policy's manage.token_sha256 knows")
	}
	return nil
}

// direct returns what asks the proxy of --proxy, and where. It says that nobody
// writes down what is done.
func (o *manageOptions) direct(cmd *cobra.Command, c *clientOptions) (*manage.Client, *url.URL, error) {
	u, err := parseManageURL(o.proxy)
	if err != nil {
		return nil, nil, err
	}
	config, err := c.tls(u)
	if err != nil {
		return nil, nil, err
	}
	token, err := readToken(o.manageToken)
	if err != nil {
		return nil, nil, err
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "note: the proxy is asked directly, so this is not in the audit log of sluice serve")
	return &manage.Client{Token: token, TLS: config, Timeout: o.timeout, Rules: manage.Rules{Insecure: o.insecure}}, u, nil
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

// interrupted names what a signal has ended.
func interrupted(err error) error {
	if errors.Is(err, context.Canceled) {
		return errInterrupted
	}
	return err
}
