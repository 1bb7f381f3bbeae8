package find

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

// Description is a request as flags or a form describe it.
type Description struct {
	Method, Host, Path string
	Headers            []string // NAME:VALUE or NAME=VALUE
	Cookies            []string // NAME=VALUE
	Query              []string // NAME=VALUE
	ClientIP           string   // as the proxy trusts it
}

// MalformedError says what is wrong with a part of a description, and what would be right.
type MalformedError struct{ Part, Text, Example string }

func (e *MalformedError) Error() string { return e.Part + " " + e.Text }

// IsZero reports whether nothing is described.
func (d *Description) IsZero() bool { return !d.HasRequest() && d.ClientIP == "" }

// HasRequest reports whether more than the client's address is described.
func (d *Description) HasRequest() bool {
	return d.Method != "" || d.Host != "" || d.Path != "" || len(d.Headers)+len(d.Cookies)+len(d.Query) > 0
}

// Request is the described request, not checked yet.
func (d *Description) Request() (*simulate.Request, error) {
	r := &simulate.Request{
		Method: d.Method, Host: d.Host, Path: d.Path, Headers: map[string]simulate.Values{}, ClientIP: d.ClientIP,
	}
	for _, line := range d.Headers {
		at := strings.IndexAny(line, ":=")
		if at < 0 {
			return nil, &MalformedError{"header", `lacks the ":" behind its name`, "x-user-id: alice"}
		}
		name := strings.ToLower(strings.TrimSpace(line[:at]))
		r.Headers[name] = append(r.Headers[name], strings.TrimSpace(line[at+1:]))
	}
	if len(d.Cookies) > 0 {
		r.Headers["cookie"] = append(r.Headers["cookie"], strings.Join(d.Cookies, "; "))
	}
	for _, pair := range d.Query {
		name, value, found := strings.Cut(pair, "=")
		if !found {
			return nil, &MalformedError{"query", `lacks the "=" behind its name`, "user=alice"}
		}
		separator := "?"
		if strings.Contains(r.Path, "?") {
			separator = "&"
		}
		r.Path = cmp.Or(r.Path, "/") + separator + url.QueryEscape(name) + "=" + url.QueryEscape(value)
	}
	return r, nil
}

// CheckLength refuses a request that no proxy takes a description of.
func CheckLength(r *simulate.Request) error {
	if n := len(r.Header()); n > manage.MaxDescribed {
		return fmt.Errorf("the request takes %d bytes to describe, more than the %d that a proxy takes",
			n, manage.MaxDescribed)
	}
	return nil
}
