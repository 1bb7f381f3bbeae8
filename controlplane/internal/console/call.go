package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
)

// failure is why a page cannot be had.
type failure struct {
	Text       string
	Problems   []policyfile.Problem // of a policy
	code       int
	retryAfter string // seconds, "" for none
}

func (f *failure) Error() string { return f.Text }

func isCode(err error, code int) bool {
	var f *failure
	return errors.As(err, &f) && f.code == code
}

// errUnknown says that there is no such page.
var errUnknown = &failure{code: http.StatusNotFound, Text: "there is no such page in the console"}

// body is what a request to the API has in it, the zero one nothing.
type body struct{ kind, text string }

// call asks the API what the visitor of r may ask: its connection and its session speak
// for it. Whether a page of another origin sent r has been seen to.
func (c *console) call(r *http.Request, method, target string, sent body, into any) error {
	asked, err := http.NewRequestWithContext(r.Context(), method, target, strings.NewReader(sent.text))
	if err != nil {
		return fmt.Errorf("ask the API: %w", err)
	}
	asked.Host = r.Host
	asked.RemoteAddr = r.RemoteAddr
	asked.TLS = r.TLS
	if sent.kind != "" {
		asked.Header.Set("Content-Type", sent.kind)
	}
	got := &recorder{header: http.Header{}, code: http.StatusOK}
	c.api.ServeHTTP(got, asked)
	if got.code >= http.StatusBadRequest {
		var e api.Error
		if json.Unmarshal(got.Bytes(), &e) != nil {
			e.Error = strings.TrimSpace(got.String())
		}
		return &failure{code: got.code, Text: e.Error, Problems: e.Problems, retryAfter: got.header.Get("Retry-After")}
	}
	if err := json.Unmarshal(got.Bytes(), into); err != nil {
		return fmt.Errorf("read the API's answer: %w", err)
	}
	return nil
}

func (c *console) get(r *http.Request, target string, into any) error {
	return c.call(r, http.MethodGet, target, body{}, into)
}

// recorder keeps what the API answers, which the API bounds.
type recorder struct {
	bytes.Buffer
	header http.Header
	code   int
}

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(code int) { w.code = code }

// identify returns the request as the visitor's session makes it, and the visitor.
func (c *console) identify(r *http.Request) (*http.Request, *visit, error) {
	v := &visit{}
	if id := sessionID(r); id != "" {
		if ctx, ok := c.sessions.resume(r.Context(), id); ok {
			r, v.Session = r.WithContext(ctx), id
		}
	}
	if c.access && v.Session == "" && (r.TLS == nil || len(r.TLS.PeerCertificates) == 0) {
		// The API counts and logs refusals: to come without a session is none.
		return r, nil, &failure{code: http.StatusUnauthorized, Text: "sign in first"}
	}
	if err := c.get(r, "/v1/caller", &v.caller); err != nil {
		return r, nil, err
	}
	v.CSRF = c.csrf(v)
	return v.aboutOwn(r), v, nil
}

// aboutOwn makes a request that names no policy one about the visitor's first, where they
// may not see all.
func (v *visit) aboutOwn(r *http.Request) *http.Request {
	query := r.URL.Query()
	if v.caller.Role > 0 || len(v.caller.Policies) == 0 || query.Has("policy") {
		return r
	}
	query.Set("policy", slices.Min(slices.Collect(maps.Keys(v.caller.Policies))))
	r = r.Clone(r.Context())
	r.URL.RawQuery = query.Encode()
	return r
}
