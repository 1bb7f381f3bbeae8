package cli

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

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
