package simulate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"path"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// Request is a request for the filter to explain. Method and path have the
// filter's defaults.
type Request struct {
	Method     string            `json:"method,omitempty"`
	Host       string            `json:"host,omitempty"`
	Path       string            `json:"path,omitempty"`
	Headers    map[string]Values `json:"headers,omitempty"`
	ClientIP   string            `json:"client_ip,omitempty"`
	Route      string            `json:"route,omitempty"`
	Properties map[string]string `json:"properties,omitempty"` // text alone: by path, segments joined by dots

	Keys bool   `json:"-"` // say the key of each rule, of credentials too
	When *int64 `json:"-"` // in nanoseconds, nil if the request does not say
}

// Values are the values of a header: in JSON one, or a list of them.
type Values []string

// UnmarshalJSON reads either.
func (v *Values) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*v = Values{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(v))
}

// ReadRequest reads a request as a line of simulate has it; it needs no time.
func ReadRequest(text []byte) (*Request, error) {
	l, err := decode(text)
	if err != nil {
		return nil, err
	}
	if err := l.only(requestFields); err != nil {
		return nil, err
	}
	r := l.Request
	r.Headers = map[string]Values{}
	for name, v := range l.Headers {
		if lower := strings.ToLower(name); len(v) > 0 {
			r.Headers[lower] = append(r.Headers[lower], v...)
		}
	}
	if l.AtMs != nil || l.AtNs != nil || l.At != nil {
		if err := l.readTime(); err != nil {
			return nil, err
		}
		r.When = &l.ns
	}
	return &r, r.Check()
}

// Check refuses a request that no proxy would show to the filter. No error
// repeats a header's value.
func (r *Request) Check() error {
	for name, list := range r.Headers {
		if !utf8.ValidString(strings.Join(list, " ")) {
			return fmt.Errorf("headers: %s is not UTF-8", name)
		}
	}
	_, err := netip.ParseAddr(r.ClientIP)
	switch {
	case r.ClientIP != "" && err != nil:
		return fmt.Errorf("client_ip: %q is no IP address", r.ClientIP)
	case strings.ContainsFunc(r.Method, notInToken):
		return fmt.Errorf("method: %q is none", r.Method)
	case r.Path != "" && (r.Path[0] != '/' || strings.ContainsFunc(r.Path, unicode.IsControl)):
		return fmt.Errorf("path: %q is none: it begins with / and holds no control characters", r.Path)
	}
	return checkNames("headers", r.Headers)
}

// Header is the request as the value of manage.RequestHeader: JSON in ASCII.
func (r *Request) Header() string {
	text, err := json.Marshal(struct {
		*Request
		Keys bool `json:"keys,omitempty"`
	}{r, r.Keys})
	if err != nil {
		panic(err) // texts and lists of texts
	}
	return printable.JSON(string(text), func(r rune) bool { return r >= utf8.RuneSelf })
}

// Explain asks the compiled filter what a policy makes of a request. Its counters
// are empty. The answer is the filter's, an answer.Explanation in JSON.
func Explain(ctx context.Context, o Options, r *Request) ([]byte, error) {
	p, err := readPolicy(o.Policy, o.Text)
	if err != nil {
		return nil, err
	}
	now := time.Now().UnixNano()
	if r.When != nil {
		now = *r.When
	}
	s := &simulation{now: now, interrupted: ctx.Err}
	defer s.close()
	o.Workers, o.Proxies, o.Seed = 1, 1, 1
	if err := s.start(ctx, o, "", p); err != nil {
		return nil, err
	}
	response, err := s.hosts[0].Serve(0, &sim.Request{
		Method: http.MethodPost, Path: path.Join(managePath, "explain"),
		Headers: [][2]string{{"authorization", "Bearer " + manageToken}, {manage.RequestHeader, r.Header()}},
	})
	if err != nil {
		return nil, err
	}
	if response.Status != http.StatusOK {
		return nil, fmt.Errorf("explain: %s", bytes.TrimSpace(response.Body))
	}
	return response.Body, nil
}
