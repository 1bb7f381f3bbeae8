// Package describe is how an operator describes a client: by one of the requests that it
// sends, in the flags of a command or in the fields of a form.
//
// Its invariant: each part of a description stands in one table, with its flag, its field of
// the form and its help; what is wrong with a part is said here, in words that never repeat the
// value of a header. The package must never import the command line, the console or what asks
// proxies about the client.
package describe

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

// Client is a client, described by one of its requests. What is empty is not described.
type Client struct {
	Method, Host, Path string
	Headers            []string // NAME:VALUE or NAME=VALUE
	Cookies            []string // NAME=VALUE
	Query              []string // NAME=VALUE
	ClientIP           string   // the address that the proxy trusts
	JSON               string   // the request as one object, in place of all above but ClientIP
}

// part is one part of a description: a text, or a list of texts.
type part struct {
	flag, help string
	text       func(*Client) *string
	list       func(*Client) *[]string
	besideJSON bool // it may be given beside the request as JSON
}

var parts = []part{
	{
		flag: "method", help: "`METHOD` (default GET)",
		text: func(c *Client) *string { return &c.Method },
	},
	{
		flag: "host", help: "`HOST` that the client asks for",
		text: func(c *Client) *string { return &c.Host },
	},
	{
		flag: "path", help: "`PATH` as the proxy normalizes it, with its query (default /)",
		text: func(c *Client) *string { return &c.Path },
	},
	{
		flag: "header", help: "a header as `NAME:VALUE` or NAME=VALUE; may be repeated",
		list: func(c *Client) *[]string { return &c.Headers },
	},
	{
		flag: "cookie", help: "a cookie as `NAME=VALUE`; may be repeated",
		list: func(c *Client) *[]string { return &c.Cookies },
	},
	{
		flag: "query", help: "a query parameter as `NAME=VALUE`; may be repeated",
		list: func(c *Client) *[]string { return &c.Query },
	},
	{
		flag: "client-ip", help: "`ADDRESS` of the client, as the proxy trusts it",
		text:       func(c *Client) *string { return &c.ClientIP },
		besideJSON: true,
	},
}

// field is the part's field of a form: client_ip for --client-ip.
func (p *part) field() string { return strings.ReplaceAll(p.flag, "-", "_") }

// isGiven reports whether the description has the part.
func (p *part) isGiven(c *Client) bool {
	if p.list != nil {
		return len(*p.list(c)) > 0
	}
	return *p.text(c) != ""
}

// Flags lists the flags that describe a client, for a hint.
func Flags() string {
	var names []string
	for _, p := range parts {
		names = append(names, "--"+p.flag)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last] + ", or with --request JSON"
}

// AddFlags adds the flags that describe a client.
func (c *Client) AddFlags(flags *pflag.FlagSet) {
	for _, p := range parts {
		if p.list != nil {
			flags.StringArrayVar(p.list(c), p.flag, nil, p.help)
		} else {
			flags.StringVar(p.text(c), p.flag, "", p.help)
		}
	}
	flags.StringVar(&c.JSON, "request", "", "the request as one `JSON` object, like a line of sluice simulate")
}

// FromForm reads a form. A list has one field for each value, or one line.
func FromForm(form url.Values) Client {
	var c Client
	for _, p := range parts {
		if p.list == nil {
			*p.text(&c) = strings.TrimSpace(form.Get(p.field()))
			continue
		}
		for line := range strings.Lines(strings.Join(form[p.field()], "\n")) {
			if value := strings.TrimSpace(line); value != "" {
				*p.list(&c) = append(*p.list(&c), value)
			}
		}
	}
	return c
}

// Form is the form that describes the same client.
func (c *Client) Form() url.Values {
	form := url.Values{}
	for _, p := range parts {
		switch {
		case !p.isGiven(c):
		case p.list != nil:
			form[p.field()] = *p.list(c)
		default:
			form.Set(p.field(), *p.text(c))
		}
	}
	return form
}

// IsZero reports whether nothing is described.
func (c *Client) IsZero() bool {
	isGiven := func(p part) bool { return p.isGiven(c) }
	return c.JSON == "" && !slices.ContainsFunc(parts, isGiven)
}

// isTwice reports whether the description has the request as JSON, and in parts as well.
func (c *Client) isTwice() bool {
	isRepeated := func(p part) bool { return p.isGiven(c) && !p.besideJSON }
	return c.JSON != "" && slices.ContainsFunc(parts, isRepeated)
}

// Error says what is wrong with a description, and what would be right.
type Error struct {
	Part    string // the flag that is wrong, empty if it is the whole
	Text    string
	Example string // of the part
}

func (e *Error) Error() string {
	if e.Part == "" {
		return e.Text
	}
	return e.Part + " " + e.Text
}

// Request is the described request, checked. It may have a time, if it is given as JSON.
func (c *Client) Request() (*simulate.Request, error) {
	r, err := c.unchecked()
	if err != nil {
		return nil, err
	}
	if err := r.Check(); err != nil {
		return nil, &Error{Text: "request: " + err.Error()}
	}
	return r, nil
}

// RequestForProxy is the described request, if a running proxy can explain it.
func (c *Client) RequestForProxy() (*simulate.Request, error) {
	r, err := c.Request()
	if err != nil {
		return nil, err
	}
	if r.When != nil {
		return nil, &Error{Part: "request", Text: "has a time, but a running proxy explains what holds now"}
	}
	if n := len(r.Header()); n > manage.MaxDescribed {
		return nil, &Error{Text: fmt.Sprintf(
			"the request takes %d bytes to describe, and a proxy accepts %d: leave out headers that no rule uses",
			n, manage.MaxDescribed)}
	}
	return r, nil
}

func (c *Client) unchecked() (*simulate.Request, error) {
	switch {
	case c.IsZero():
		return nil, &Error{Text: "no request is described"}
	case c.isTwice():
		return nil, &Error{Text: "the request is described twice: as JSON and in parts"}
	case c.JSON != "":
		return c.fromJSON()
	}
	return c.fromParts()
}

const exampleJSON = `{"path":"/v1/orders","headers":{"x-user-id":"alice"}}`

func (c *Client) fromJSON() (*simulate.Request, error) {
	r, err := simulate.ReadRequest([]byte(c.JSON))
	switch {
	case err != nil:
		return nil, &Error{Part: "request", Text: "cannot be read: " + err.Error(), Example: exampleJSON}
	case r.ClientIP != "" && c.ClientIP != "":
		return nil, &Error{Part: "client-ip", Text: "is given twice: --request has a client_ip too"}
	}
	r.ClientIP = cmp.Or(c.ClientIP, r.ClientIP)
	return r, nil
}

func (c *Client) fromParts() (*simulate.Request, error) {
	headers, err := c.headers()
	if err != nil {
		return nil, err
	}
	path, err := c.pathWithQuery()
	if err != nil {
		return nil, err
	}
	return &simulate.Request{Method: c.Method, Host: c.Host, Path: path, Headers: headers, ClientIP: c.ClientIP}, nil
}

// headers are the headers by name in lower case. The cookies make one of them.
func (c *Client) headers() (map[string]simulate.Values, error) {
	headers := map[string]simulate.Values{}
	for _, line := range c.Headers {
		at := strings.IndexAny(line, ":=")
		if at < 0 {
			return nil, &Error{Part: "header", Text: `has no ":" after its name`, Example: "x-user-id: alice"}
		}
		name := strings.ToLower(strings.TrimSpace(line[:at]))
		headers[name] = append(headers[name], strings.TrimSpace(line[at+1:]))
	}
	if len(c.Cookies) > 0 {
		headers["cookie"] = append(headers["cookie"], strings.Join(c.Cookies, "; "))
	}
	return headers, nil
}

func (c *Client) pathWithQuery() (string, error) {
	path := c.Path
	for _, pair := range c.Query {
		name, value, found := strings.Cut(pair, "=")
		if !found {
			return "", &Error{Part: "query", Text: `has no "=" after its name`, Example: "user=alice"}
		}
		separator := "?"
		if strings.Contains(path, "?") {
			separator = "&"
		}
		path = cmp.Or(path, "/") + separator + url.QueryEscape(name) + "=" + url.QueryEscape(value)
	}
	return path, nil
}
