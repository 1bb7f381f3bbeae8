package cli

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const (
	// maxManageAnswer is more than the statistics of the largest policy.
	maxManageAnswer = 16 << 20

	manageURLHint = "give scheme, address and the policy's manage.path, for example http://127.0.0.1:9902/.sluice/"
	noManageHint  = "the policy it runs needs manage: {path, token_sha256}, the URL manage.path, and the port must be manage.port if that is given"
)

// manageOptions say how proxies are asked.
type manageOptions struct {
	manageToken string
	insecure    bool
	timeout     time.Duration
}

// AddFlags adds the flags of commands that ask proxies themselves.
func (o *manageOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.manageToken, "manage-token-file", "", "`FILE` with the bearer token that the policy's manage.token_sha256 knows (required to ask a proxy)")
	_ = cmd.MarkFlagFilename("manage-token-file")
	f.BoolVar(&o.insecure, "insecure", false, "send that token without TLS to addresses that are not loopback, too")
	f.DurationVar(&o.timeout, "timeout", 5*time.Second, "how long each proxy may take")
}

// manageClient asks proxies. The token goes to them alone: no HTTP proxy of the
// environment is used, and no redirect followed.
type manageClient struct {
	token    string
	insecure bool
	timeout  time.Duration
	http     *http.Client
}

func (o *manageOptions) managed(config *tls.Config) (*manageClient, error) {
	if o.timeout <= 0 || o.timeout > maxTimeout {
		return nil, usageError(fmt.Errorf("--timeout %s is not above 0 and up to %s", o.timeout, maxTimeout), "5s is the default")
	}
	token, err := readToken(o.manageToken)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = config
	transport.Proxy = nil
	return &manageClient{
		token: token, insecure: o.insecure, timeout: o.timeout,
		http: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
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

// ask has one proxy do the operation.
func (m *manageClient) ask(ctx context.Context, base *url.URL, op operation, query url.Values) (counterAnswer, error) {
	text, err := m.post(ctx, base, "counters/"+op.wire, query, nil)
	if err != nil {
		return counterAnswer{}, err
	}
	a, ok := readCounterAnswer(op, text)
	if !ok {
		return counterAnswer{}, withHint(fmt.Errorf("%s answers, but not as a management path does", base.Host), noManageHint)
	}
	return a, nil
}

// post makes one management request and returns the body of its answer.
func (m *manageClient) post(ctx context.Context, base *url.URL, path string, query url.Values, header http.Header) ([]byte, error) {
	if base.Scheme == "http" && !isLoopback(base.Hostname()) && !m.insecure {
		return nil, withHint(fmt.Errorf("refuse to send the token to %s without TLS", base.Host),
			"use https, ask on the proxy's own machine, or trust the network with --insecure")
	}
	limited, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	u := *base
	u.Path += path
	u.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(limited, http.MethodPost, u.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	for name, values := range header {
		request.Header[name] = values
	}
	request.Header.Set("Authorization", "Bearer "+m.token)
	response, err := m.http.Do(request)
	var text []byte
	if err == nil {
		defer response.Body.Close()
		text, err = io.ReadAll(io.LimitReader(response.Body, maxManageAnswer))
	}
	switch {
	case ctx.Err() != nil:
		return nil, errInterrupted
	case limited.Err() != nil:
		return nil, withHint(fmt.Errorf("no answer from %s within %s", base.Host, m.timeout), "--timeout says how long a proxy may take")
	case err != nil:
		return nil, manageUnreachable(base, err)
	case response.StatusCode != http.StatusOK:
		return nil, manageRefused(base, response, text)
	}
	return text, nil
}

// manageUnreachable leaves out the URL, in which the key stands.
func manageUnreachable(base *url.URL, err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	hint := "is the proxy running, and does it listen there for management requests? sluice render envoy --manage gives it a listener"
	if strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		hint = "the proxy speaks plain http there: use an http URL"
	}
	return withHint(fmt.Errorf("reach proxy %s: %w", base.Host, err), hint)
}

func manageRefused(base *url.URL, response *http.Response, text []byte) error {
	var body struct {
		Error string `json:"error"`
	}
	ours := json.Unmarshal(text, &body) == nil && body.Error != ""
	switch {
	case ours && response.StatusCode == http.StatusUnauthorized:
		return withHint(fmt.Errorf("proxy %s does not know the token", base.Host),
			"--manage-token-file must hold the token whose SHA-256 is manage.token_sha256 in the policy it runs")
	case ours:
		return fmt.Errorf("proxy %s: %s", base.Host, plain(body.Error))
	}
	return withHint(fmt.Errorf("%s answers %s, not as a management path does", base.Host, plain(response.Status)), noManageHint)
}
