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
	// maxShown bounds what a message repeats of a proxy's words.
	maxShown = 200
)

// Client asks one proxy at a time.
type Client struct {
	Token   string
	TLS     *tls.Config // nil: the system's roots
	Reach   Reach
	Timeout time.Duration // for each proxy

	resolver *net.Resolver // nil: the system's
	bounds   *bounds       // nil: it is not one of a Fleet's
}

// question is one management request.
type question struct {
	path   string // below the management path
	query  url.Values
	header http.Header
	read   func(text []byte) (answer any, ok bool) // ok: it is an answer to this question
}

// Counters has the proxy do the operation.
func (c *Client) Counters(ctx context.Context, at *url.URL, op Operation, query url.Values) (result.Result, error) {
	var a result.Result
	err := c.ask(ctx, at, &question{path: "counters/" + op.Wire, query: query, read: func(text []byte) (any, bool) {
		var ok bool
		a, ok = ReadAnswer(op, text)
		return a, ok
	}})
	if err != nil {
		return result.Result{}, err
	}
	return a, nil
}

// Explain has the proxy explain the described request.
func (c *Client) Explain(ctx context.Context, at *url.URL, described string) (result.Explanation, error) {
	var x result.Explanation
	header := http.Header{http.CanonicalHeaderKey(RequestHeader): {described}}
	err := c.ask(ctx, at, &question{path: "explain", header: header, read: func(text []byte) (any, bool) {
		var ok bool
		x, ok = ReadExplanation(text)
		return x, ok
	}})
	if err != nil {
		return result.Explanation{}, err
	}
	return x, nil
}

// ask makes one management request and reads its answer, both within the timeout.
func (c *Client) ask(ctx context.Context, at *url.URL, q *question) error {
	if err := c.Reach.check(at); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	err := c.exchange(limited, at, q)
	var failure *Failure
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &failure):
		return failure
	case limited.Err() != nil:
		return &Failure{
			fmt.Sprintf("no answer from %s within %s", at.Host, c.Timeout), "--timeout says how long a proxy may take",
		}
	case err != nil:
		return unreachable(at, err)
	}
	return nil
}

func (c *Client) exchange(ctx context.Context, at *url.URL, q *question) error {
	u := *at
	u.Path += q.path
	u.RawQuery = q.query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), http.NoBody)
	if err != nil {
		return &Failure{Text: "make request to " + at.Host} // err has the key in it
	}
	maps.Copy(request.Header, q.header)
	request.Header.Set("Authorization", "Bearer "+c.Token)
	transport := c.transport(at)
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request) // which follows no redirect
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return c.readResponse(ctx, at, response, q)
}

// transport reaches one proxy, by no HTTP proxy of the environment.
func (c *Client) transport(at *url.URL) *http.Transport {
	dialer := net.Dialer{Resolver: c.resolver, Control: func(_, address string, _ syscall.RawConn) error {
		dialed, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if err := c.Reach.checkDialed(at, dialed); err != nil {
			return err
		}
		return c.bounds.claim(dialed)
	}}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        c.TLS,
		DisableKeepAlives:      true,
		DisableCompression:     true, // what is read is what was sent
		MaxResponseHeaderBytes: maxHeaders,
	}
}

func (c *Client) readResponse(ctx context.Context, at *url.URL, response *http.Response, q *question) error {
	text, err := io.ReadAll(io.LimitReader(response.Body, smallAnswer+1))
	if err != nil {
		return err
	}
	if len(text) > smallAnswer {
		done, err := c.bounds.waitForLarge(ctx)
		if err != nil {
			return err
		}
		defer done()
		whole := io.MultiReader(bytes.NewReader(text), io.LimitReader(response.Body, maxAnswer))
		text, err = io.ReadAll(whole)
		if err != nil {
			return err
		}
	}
	return c.readAnswer(at, response, text, q)
}

func (c *Client) readAnswer(at *url.URL, response *http.Response, text []byte, q *question) error {
	switch {
	case len(text) > maxAnswer:
		return &Failure{fmt.Sprintf("%s answers more than %d MiB", at.Host, maxAnswer>>20), noManageHint}
	case c.Token != "" && bytes.Contains(text, []byte(c.Token)):
		return &Failure{at.Host + " answers with the token in it, which no management path does", noManageHint}
	case response.StatusCode != http.StatusOK:
		return rejected(at, response, text)
	}
	a, ok := q.read(text)
	if !ok {
		return &Failure{at.Host + " answers, but not as a management path does", noManageHint}
	}
	return c.bounds.keep(a)
}

const noManageHint = "the policy it runs needs manage: {path, port, token_sha256}, " +
	"and its management address must be the listener on that port, where no other filter answers before sluice"

// unreachable is the error of a request that got no answer.
func unreachable(at *url.URL, err error) error {
	hint := "is the proxy running, and does it listen there for management requests? " +
		"sluice render envoy --manage gives it a listener"
	var unverified *tls.CertificateVerificationError
	switch {
	case errors.As(err, &unverified):
		hint = "the certificate of the management listener must be for that name or address and from a trusted CA: " +
			"--manage-ca of serve, --ca with --proxy"
	case errors.As(err, new(tls.RecordHeaderError)):
		hint = "the proxy speaks plain http there: use an http URL"
	case strings.HasPrefix(err.Error(), "malformed HTTP response") || strings.Contains(err.Error(), "EOF"):
		hint = "does the proxy speak TLS there? then put https:// before its address"
	}
	return &Failure{fmt.Sprintf("reach proxy %s: %s", at.Host, shown(err.Error())), hint}
}

// rejected is the error of an answer that is not 200.
func rejected(at *url.URL, response *http.Response, text []byte) error {
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
	return &Failure{
		fmt.Sprintf("%s answers %d, not as a management path does", at.Host, response.StatusCode), noManageHint,
	}
}

// shown is a text that a proxy sent, short and safe for a terminal.
func shown(text string) string { return printable.Text(printable.Cut(text, maxShown)) }
