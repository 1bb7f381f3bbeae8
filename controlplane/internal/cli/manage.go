package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
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
	o.serverOptions.AddFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.proxy, "proxy", "", "`URL` of one proxy's management path, to ask it from here instead of --server")
	f.StringVar(&o.manageToken, "manage-token-file", "", "with --proxy: `FILE` with the bearer token whose SHA-256 is the policy's manage.token_sha256")
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

// askOne asks the proxy of --proxy. It notes that no audit log has that.
func askOne[T any](cmd *cobra.Command, o *manageOptions, ask func(*manage.Client, *url.URL) (T, error)) (manage.Asked, T, error) {
	var none T
	u, err := parseManageURL(o.proxy)
	if err != nil {
		return manage.Asked{}, none, err
	}
	config, err := o.tls(u)
	if err != nil {
		return manage.Asked{}, none, err
	}
	token, err := readToken(o.manageToken)
	if err != nil {
		return manage.Asked{}, none, err
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "note: the proxy is asked directly, so this is not in the audit log of sluice serve")
	result, err := ask(&manage.Client{Token: token, TLS: config, Timeout: o.timeout, Rules: manage.Rules{Insecure: o.insecure}}, u)
	return manage.Asked{Proxy: u.Host, URL: u.String()}, result, interrupted(err)
}

// askAll has the server ask all proxies and prints their rows. Rows also says whether
// the report is one without proxies. Asked returns the proxy of a row, and whether its
// answer is whole.
func askAll[Report, Row any](cmd *cobra.Command, o *manageOptions, path string, query url.Values, kind, body string,
	rows func(*Report) (list []Row, alone bool), asked func(*Row) (manage.Asked, bool), text func(io.Writer, *Report) error,
) error {
	c, err := o.client()
	if err != nil {
		return err
	}
	report := new(Report)
	if err := c.ask(cmd.Context(), path, query, kind, body, report); err != nil {
		return err
	}
	list, alone := rows(report)
	failed, hint := 0, ""
	for i := range list {
		a, whole := asked(&list[i])
		switch {
		case a.Error != "":
			failed++
			hint = cmp.Or(hint, a.Hint)
		case !whole:
			return c.notOurs()
		}
	}
	if len(list) == 0 && !alone {
		return withHint(errors.New("no proxy is connected"), "sluice status shows those that were; --proxy asks one that the server does not know")
	}
	if err := o.output.print(cmd, report, func(w io.Writer) error { return text(w, report) }); err != nil {
		return err
	}
	if failed > 0 {
		return withHint(fmt.Errorf("it failed on %d of %s", failed, count(len(list), "proxy", "proxies")), hint)
	}
	return nil
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
