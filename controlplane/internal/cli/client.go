package cli

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/cli/flagfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

const (
	// serverVariable is the environment's default for --server.
	serverVariable = "SLUICE_SERVER"
	defaultHTTP    = "127.0.0.1:18080"
	defaultXDS     = "127.0.0.1:18000"

	requestTimeout = 30 * time.Second

	// maxAnswer is longer than any answer of serve: ten thousand proxies, each
	// with the longest refusal.
	maxAnswer = 256 << 20

	notOurs = "is this the HTTP address of sluice serve?"
)

// clientOptions say where the control plane is and who asks.
type clientOptions struct {
	server    string
	tokenFile string
	ca        string
	cert      string
	key       string
}

// AddFlags adds the flags of every command that talks to a server.
func (o *clientOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.server, "server", cmp.Or(os.Getenv(serverVariable), "http://"+defaultHTTP),
		"`URL` of sluice serve; "+serverVariable+" sets the default")
	f.StringVar(&o.tokenFile, "token-file", "", "`FILE` with the bearer token")
	f.StringVar(&o.ca, "ca", "", "`FILE` with the certificate authorities of the server (default: the system's)")
	f.StringVar(&o.cert, "cert", "", "`FILE` with the caller's certificate")
	f.StringVar(&o.key, "cert-key", "", "`FILE` with its private key")
}

// client talks to the API.
type client struct {
	base  *url.URL
	token string
	http  *http.Client
}

func (o *clientOptions) client() (*client, error) {
	base, err := url.Parse(o.server)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, usageError(fmt.Errorf("--server %q is not an http or https URL", o.server),
			"give something like http://"+defaultHTTP)
	}
	c := &client{base: base}
	if o.tokenFile != "" {
		c.token, err = flagfile.Token(o.tokenFile)
		if err != nil {
			return nil, err
		}
		if base.Scheme == "http" && !manage.IsLoopback(base.Hostname()) {
			return nil, withHint(fmt.Errorf("refuse to send the token to %s without TLS", base.Host),
				"use an https URL")
		}
	}
	config, err := o.tls(base)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = config
	transport.ResponseHeaderTimeout = requestTimeout
	c.http = &http.Client{
		Transport: transport,
		// serve never redirects, and the token is for serve alone.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// tls is the configuration of a connection to a URL.
func (o *clientOptions) tls(to *url.URL) (*tls.Config, error) {
	if (o.cert == "") != (o.key == "") {
		return nil, usageError(errors.New("--cert and --cert-key belong together"), "give both or none")
	}
	if o.cert != "" && to.Scheme == "http" {
		return nil, usageError(fmt.Errorf("--cert needs TLS, but %s is without", to.Redacted()), "use an https URL")
	}
	return flagfile.ClientTLS("--ca", o.ca, "client certificate", o.cert, o.key)
}

// serverOptions are the flags of a command that prints what the server answers.
type serverOptions struct {
	clientOptions
	output     output
	policyName string
}

// AddFlags adds the flags that all these commands have.
func (o *serverOptions) AddFlags(cmd *cobra.Command) {
	o.clientOptions.AddFlags(cmd)
	o.output.AddFlags(cmd)
}

// addPolicyNameFlag adds --policy. Without it, the command is about byDefault: one policy, or all.
func (o *serverOptions) addPolicyNameFlag(cmd *cobra.Command, byDefault string) {
	cmd.Flags().StringVar(&o.policyName, "policy", "", "`NAME` of the policy (default: "+byDefault+")")
}

func policyQuery(name string) url.Values {
	query := url.Values{}
	if name != "" {
		query.Set("policy", name)
	}
	return query
}

// ofPolicy begins a line about a policy. It is empty for the default one.
func ofPolicy(name string) string {
	if name == "" || name == store.DefaultPolicy {
		return ""
	}
	return "policy " + name + ": "
}

// withPolicies adds the column POLICY to a table with a head, if any row is about a policy that
// has a name.
func withPolicies[T any](rows [][]string, at int, list []T, of func(T) string) [][]string {
	if !slices.ContainsFunc(list, func(v T) bool { return ofPolicy(of(v)) != "" }) {
		return rows
	}
	rows[0] = slices.Insert(rows[0], at, "POLICY")
	for i, v := range list {
		rows[i+1] = slices.Insert(rows[i+1], at, of(v))
	}
	return rows
}

// content is the body of a request, the zero value that of a request without one.
type content struct {
	kind string // its media type
	text []byte
}

// call sends a request, and reads the JSON answer.
func call[T any](ctx context.Context, c *client, method, path string, query url.Values, body content) (*T, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer := new(T)
	return answer, c.ask(ctx, method, path, query, body, answer)
}

// ask is call without its timeout: serve needs longer when it asks proxies.
func (c *client) ask(ctx context.Context, method, path string, query url.Values, body content, result any) error {
	answer, err := c.open(ctx, method, path, query, body)
	if err != nil {
		return err
	}
	defer answer.Close()
	err = decoder(answer).Decode(result)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return errInterrupted
	case ctx.Err() != nil:
		return fmt.Errorf("read answer of %s: %w", c.base.Redacted(), ctx.Err())
	case err != nil:
		return c.notOurs()
	}
	return nil
}

// notOurs is the error of an answer that sluice serve does not give.
func (c *client) notOurs() error {
	return withHint(fmt.Errorf("read answer of %s: it is cut off, or not from sluice serve",
		c.base.Redacted()), notOurs)
}

// decoder reads JSON from an answer, at most maxAnswer bytes of it.
func decoder(answer io.Reader) *json.Decoder {
	return json.NewDecoder(io.LimitReader(answer, maxAnswer))
}

// open sends a request and returns the body of the answer, unless it is an error. The body may
// be of any length.
func (c *client) open(
	ctx context.Context, method, path string, query url.Values, body content,
) (io.ReadCloser, error) {
	u := c.base.JoinPath(path)
	u.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body.text))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	if body.kind != "" {
		request.Header.Set("Content-Type", body.kind)
	}
	response, err := c.http.Do(request)
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, errInterrupted
	}
	if err != nil {
		return nil, c.unreachable(err)
	}
	if response.StatusCode >= 300 {
		defer response.Body.Close()
		return nil, c.refused(response)
	}
	return response.Body, nil
}

// unreachable is the error of a request that got no answer.
func (c *client) unreachable(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // without the method and URL once more
	}
	return withHint(fmt.Errorf("reach server %s: %w", c.base.Redacted(), err), c.unreachableHint(err))
}

func (c *client) unreachableHint(err error) string {
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	switch {
	case errors.As(err, &authority):
		return "--ca names the certificate authorities of the server"
	case errors.As(err, &host):
		return "the server's certificate has to be valid for the host of --server"
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return "the server speaks plain http: use an http URL"
	case c.base.Scheme == "https" && mayBeRejected(err):
		return "the server may want a client certificate that it trusts: --cert and --cert-key"
	}
	return "is sluice serve running there? --server or " + serverVariable + " says where it is"
}

// mayBeRejected reports whether a TLS server may have rejected the client. With TLS 1.3 that
// comes after the handshake, and the request may meet the closed connection first, with errors
// of many kinds.
func mayBeRejected(err error) bool {
	var network *net.OpError
	isDial := errors.As(err, &network) && network.Op == "dial"
	isOver := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	return !isDial && !isOver
}

// refused is the error of an answer that says what went wrong.
func (c *client) refused(response *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(response.Body, 8<<20))
	if err != nil {
		return fmt.Errorf("read answer of %s: %w", c.base.Redacted(), err)
	}
	var body api.Error
	if json.Unmarshal(text, &body) != nil || body.Error == "" {
		line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
		line = printable.Text(line[:min(len(line), 200)])
		return withHint(fmt.Errorf("server %s answered %s: %s", c.base.Redacted(), response.Status, line), notOurs)
	}
	if len(body.Problems) > 0 {
		return policyfile.Errors(body.Problems)
	}
	err = fmt.Errorf("server %s: %s", c.base.Redacted(), body.Error)
	if response.StatusCode == http.StatusUnauthorized {
		return withHint(err,
			"give a token with --token-file, or a certificate with --cert, that the server's --access file lists")
	}
	return err
}
