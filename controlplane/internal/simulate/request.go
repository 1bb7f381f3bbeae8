package simulate

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/fleet"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
)

// Request is a request for the filter to explain. Method and path have the filter's defaults.
type Request struct {
	Method     string            `json:"method,omitempty"`
	Host       string            `json:"host,omitempty"`
	Path       string            `json:"path,omitempty"`
	Headers    map[string]Values `json:"headers,omitempty"`
	ClientIP   string            `json:"client_ip,omitempty"`
	Route      string            `json:"route,omitempty"`
	Properties map[string]string `json:"properties,omitempty"` // only texts, by path; points join its segments

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

// ReadRequest reads a request as a line of simulate has it. It needs no time.
func ReadRequest(text []byte) (*Request, error) {
	l, err := decode(text)
	if err != nil {
		return nil, err
	}
	if err := l.checkFields(text, requestFields); err != nil {
		return nil, err
	}
	r := l.Request
	r.Headers = map[string]Values{}
	for name, values := range l.Headers {
		lower := strings.ToLower(name)
		if len(values) > 0 {
			r.Headers[lower] = append(r.Headers[lower], values...)
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

// FieldError says what is wrong with a field of a line, by its name there.
type FieldError struct{ Field, Why string }

// Error implements error.
func (e *FieldError) Error() string { return e.Field + ": " + e.Why }

// Check rejects a request that no proxy would show to the filter. No error repeats a header's
// value. The error is a *FieldError.
func (r *Request) Check() error {
	for name, values := range r.Headers {
		if !utf8.ValidString(strings.Join(values, " ")) {
			return &FieldError{"headers", name + " is not UTF-8"}
		}
	}
	_, err := netip.ParseAddr(r.ClientIP)
	switch {
	case r.ClientIP != "" && err != nil:
		return &FieldError{"client_ip", fmt.Sprintf("%q is not an IP address", r.ClientIP)}
	case strings.ContainsFunc(r.Method, isNotInToken):
		return &FieldError{"method", fmt.Sprintf("%q is not a method", r.Method)}
	case r.Path != "" && (r.Path[0] != '/' || strings.ContainsFunc(r.Path, unicode.IsControl)):
		why := fmt.Sprintf("%q is not a path: a path begins with / and holds no control characters", r.Path)
		return &FieldError{"path", why}
	}
	return checkNames("headers", r.Headers)
}

func checkNames(field string, headers map[string]Values) error {
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if name == "" || strings.ContainsFunc(name, isNotInToken) {
			return &FieldError{field, fmt.Sprintf("%q is not a header name", name)}
		}
	}
	return nil
}

// isNotInToken reports a character that no token of HTTP has, such as a method or a header's
// name.
func isNotInToken(r rune) bool {
	return r <= ' ' || r >= 0x7F || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", r)
}

// sorted are the headers of a map by name, in lower case.
func sorted(headers map[string]Values) (list [][2]string) {
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		for _, value := range headers[name] {
			list = append(list, [2]string{strings.ToLower(name), value})
		}
	}
	return list
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

// Explain asks the compiled filter what a policy makes of a request. Its counters are empty. The
// answer is the filter's, a result.Explanation in JSON.
func Explain(ctx context.Context, o Options, r *Request) ([]byte, error) {
	f, err := fleet.ReadPolicy(o.Policy, o.Text)
	if err != nil {
		return nil, err
	}
	now := time.Now().UnixNano()
	if r.When != nil {
		now = *r.When
	}
	quiet := o.fleet()
	quiet.Quiet, quiet.Seed = true, 1
	p, err := fleet.New(ctx, quiet, f, now)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	return p.Explain(r.Header())
}
