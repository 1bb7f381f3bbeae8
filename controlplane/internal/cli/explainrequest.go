package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
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
}

// AddFlags adds the flags that describe a request.
func (o *requestOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.json, "request", "", "the request as a `JSON` object, like a line of simulate")
	f.StringVar(&o.method, "method", "", "`METHOD` (default GET)")
	f.StringVar(&o.host, "host", "", "`HOST` that the client asks for")
	f.StringVar(&o.path, "path", "", "`PATH` as the proxy normalised it, with query (default /)")
	f.StringArrayVar(&o.headers, "header", nil, "a header as `NAME:VALUE`; again for each further one")
	f.StringVar(&o.clientIP, "client-ip", "", "`ADDRESS` of the client as the proxy trusts it")
}

const requestHint = "describe it by --method, --host, --path, --header and --client-ip, by --request JSON, or paste a curl command line after --"

// request is the request that the flags, or a curl command line, describe.
func (o *requestOptions) request(cmd *cobra.Command, pasted []string) (*simulate.Request, error) {
	flags := o.method != "" || o.host != "" || o.path != "" || len(o.headers) > 0
	if at := cmd.ArgsLenAtDash(); len(pasted) > 0 && at != 0 {
		return nil, usageError(fmt.Errorf("unknown argument %q", printable.Text(pasted[0])), "a curl command line goes after --")
	}
	ways := 0
	for _, way := range []bool{flags, o.json != "", len(pasted) > 0} {
		if way {
			ways++
		}
	}
	if ways > 1 {
		return nil, usageError(errors.New("the request is described in two ways"), requestHint)
	}
	if ways == 0 && o.clientIP == "" {
		return nil, usageError(errors.New("there is no request to explain"), requestHint)
	}
	r, err := o.described(pasted)
	if err != nil {
		return nil, err
	}
	if o.clientIP != "" {
		if r.ClientIP != "" {
			return nil, usageError(errors.New("both --request and --client-ip give the client's address"), "keep one")
		}
		r.ClientIP = o.clientIP
	}
	if err := r.Check(); err != nil {
		return nil, usageError(fmt.Errorf("request: %w", err), requestHint)
	}
	return r, nil
}

func (o *requestOptions) described(pasted []string) (*simulate.Request, error) {
	switch {
	case len(pasted) > 0:
		return parseCurl(pasted)
	case o.json != "":
		r, err := simulate.ReadRequest([]byte(o.json))
		if err != nil {
			return nil, usageError(fmt.Errorf("--request: %w", err), `give something like {"path":"/v1/orders","headers":{"x-user-id":"alice"}}`)
		}
		return r, nil
	}
	r := &simulate.Request{Method: o.method, Host: o.host, Path: o.path, Headers: map[string][]string{}}
	for _, line := range o.headers {
		name, value, found := strings.Cut(line, ":")
		if !found {
			return nil, usageError(errors.New(`--header lacks the ":" behind its name`), "give something like --header 'x-user-id: alice'")
		}
		name = strings.ToLower(strings.TrimSpace(name))
		r.Headers[name] = append(r.Headers[name], strings.TrimSpace(value))
	}
	return r, nil
}
