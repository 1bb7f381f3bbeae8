package manage

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"

	"github.com/sluice-ratelimit/sluice/shared/result"
)

const (
	// smallAnswer is more than the answer about one key ever is.
	smallAnswer = 8 << 10
	// maxAnswer is more than the statistics of the largest policy.
	maxAnswer = 16 << 20
	// maxHeaders bounds an answer's headers.
	maxHeaders = 64 << 10
)

// Client asks one proxy at a time.
type Client struct {
	Token   string
	TLS     *tls.Config // nil: the system's roots
	Rules   Rules
	Timeout time.Duration // for each proxy

	resolver *net.Resolver // nil: the system's

	large chan struct{}              // a place for each answer that is not small; nil: no bound
	keep  func(answer any) error     // fails if there is no room for it; nil: there is
	claim func(netip.AddrPort) error // fails if this address may not be dialed; nil: it may
}

// Counters has the proxy do the operation.
func (c *Client) Counters(ctx context.Context, at *url.URL, op Operation, query url.Values) (result.Result, error) {
	return ask(ctx, c, at, "counters/"+op.Wire, query, nil, func(text []byte) (result.Result, bool) { return ReadAnswer(op, text) })
}

// Explain has the proxy explain the described request.
func (c *Client) Explain(ctx context.Context, at *url.URL, described string) (result.Explanation, error) {
	return ask(ctx, c, at, "explain", nil, http.Header{http.CanonicalHeaderKey(RequestHeader): {described}}, ReadExplanation)
}

// ask makes one management request, and reads and judges its answer.
func ask[A any](ctx context.Context, c *Client, at *url.URL, path string, query url.Values, header http.Header, read func([]byte) (A, bool)) (a A, err error) {
	err = c.post(ctx, at, path, query, header, func(text []byte) error {
		var ok bool
		a, ok = read(text)
		switch {
		case !ok:
			return &Failure{at.Host + " answers, but not as a management path does", noManageHint}
		case c.keep != nil:
			return c.keep(a)
		}
		return nil
	})
	if err != nil {
		return *new(A), err // what there is no room for goes
	}
	return a, nil
}

// post makes one management request and reads its answer.
func (c *Client) post(
	ctx context.Context, at *url.URL, path string, query url.Values, header http.Header, read func([]byte) error,
) error {
	if err := c.Rules.check(at); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	u := *at
	u.Path += path
	u.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(limited, http.MethodPost, u.String(), http.NoBody)
	if err != nil {
		return fmt.Errorf("make request to %s", at.Host) // the cause has the key in it
	}
	maps.Copy(request.Header, header)
	request.Header.Set("Authorization", "Bearer "+c.Token)
	transport := c.transport(at)
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request) // which follows no redirect
	if err == nil {
		defer response.Body.Close()
		err = c.readAnswer(limited, at, response, read)
	}
	var failure *Failure
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &failure):
		return failure
	case limited.Err() != nil:
		return &Failure{fmt.Sprintf("no answer from %s within %s", at.Host, c.Timeout), "--timeout says how long a proxy may take"}
	case err != nil:
		return unreachable(at, err)
	}
	return nil
}

// transport reaches one proxy, by no HTTP proxy of the environment.
func (c *Client) transport(at *url.URL) *http.Transport {
	dialer := net.Dialer{Resolver: c.resolver, Control: func(_, address string, _ syscall.RawConn) error {
		dialed, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if err := c.Rules.checkDialled(at, dialed); err != nil || c.claim == nil {
			return err
		}
		return c.claim(dialed)
	}}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        c.TLS,
		DisableKeepAlives:      true,
		DisableCompression:     true, // what is read is what was sent
		MaxResponseHeaderBytes: maxHeaders,
	}
}

func (c *Client) readAnswer(ctx context.Context, at *url.URL, response *http.Response, read func([]byte) error) error {
	text, err := io.ReadAll(io.LimitReader(response.Body, smallAnswer+1))
	if err != nil {
		return err
	}
	if len(text) > smallAnswer {
		if c.large != nil {
			select {
			case c.large <- struct{}{}:
				defer func() { <-c.large }()
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		whole := io.MultiReader(bytes.NewReader(text), io.LimitReader(response.Body, maxAnswer))
		if text, err = io.ReadAll(whole); err != nil {
			return err
		}
	}
	switch {
	case len(text) > maxAnswer:
		return &Failure{fmt.Sprintf("%s answers more than %d MiB", at.Host, maxAnswer>>20), noManageHint}
	case c.Token != "" && bytes.Contains(text, []byte(c.Token)):
		return &Failure{at.Host + " answers with the token in it, as no management path does", noManageHint}
	case response.StatusCode != http.StatusOK:
		return refused(at, response, text)
	}
	return read(text)
}

const noManageHint = "the policy it runs needs manage: {path, port, token_sha256}, " +
	"and its management address must be the listener on that port, where no other filter answers before sluice"

// unreachable says why there was no answer.
func unreachable(at *url.URL, err error) error {
	hint := "is the proxy running, and does it listen there for management requests? " +
		"sluice render envoy --manage gives it a listener"
	var unverified *tls.CertificateVerificationError
	switch {
	case errors.As(err, &unverified):
		hint = "the certificate of the management listener must be for that name or address and from a CA that is trusted: " +
			"--manage-ca of serve, --ca with --proxy"
	case errors.As(err, new(tls.RecordHeaderError)):
		hint = "the proxy speaks plain http there: use an http URL"
	case strings.HasPrefix(err.Error(), "malformed HTTP response") || strings.Contains(err.Error(), "EOF"):
		hint = "does the proxy speak TLS there? then https:// belongs before its address"
	}
	return &Failure{fmt.Sprintf("reach proxy %s: %s", at.Host, shown(err.Error())), hint}
}

func refused(at *url.URL, response *http.Response, text []byte) error {
	var body struct {
		Error string `json:"error"`
	}
	ours := json.Unmarshal(text, &body) == nil && body.Error != ""
	switch {
	case ours && response.StatusCode == http.StatusUnauthorized:
		return &Failure{
			fmt.Sprintf("proxy %s does not know the token", at.Host),
			"--manage-token-file must hold the token whose SHA-256 is manage.token_sha256 in the policy it runs",
		}
	case ours:
		return &Failure{Text: fmt.Sprintf("proxy %s: %s", at.Host, shown(body.Error))}
	}
	return &Failure{fmt.Sprintf("%s answers %d, not as a management path does", at.Host, response.StatusCode), noManageHint}
}

// shown makes a text that a proxy sent short and fit for a terminal.
func shown(text string) string { return printable.Text(printable.Cut(text, maxShown)) }
