package console

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/store"
)

// failure is why a page cannot be shown.
type failure struct {
	Text       string
	Problems   []policyfile.Problem // of a policy
	code       int
	retryAfter string // seconds; empty: none
}

func (f *failure) Error() string { return f.Text }

func isCode(err error, code int) bool {
	var f *failure
	return errors.As(err, &f) && f.code == code
}

// errUnknown says that there is no such page.
var errUnknown = &failure{code: http.StatusNotFound, Text: "there is no such page in the console"}

// body is the body of a request to the API. The zero body is empty.
type body struct{ kind, text string }

// call asks the API on behalf of the visitor of r. To the API go the host, address and certificate of r, and
// its context, in which sessions.resume has put the token; none of its headers, so no cookie. Back comes JSON
// for into, or a status and a text: a failure, which becomes the page of an error. That no page of another
// origin sent r was checked before.
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

// policyOf is the policy that a page is about.
func policyOf(r *http.Request) string {
	return cmp.Or(r.URL.Query().Get("policy"), store.DefaultPolicy)
}

// policyQuery is the query of a page, and of the API, about a policy.
func policyQuery(policy string) string { return "?policy=" + url.QueryEscape(policy) }

// policies are the policies that a page offers, and the one that it is about.
type policies struct {
	Path     string
	Policy   string   // that it is about
	Policies []string // all
}

// policies reads what a page at the path offers. It is an error if there is no such policy.
func (c *console) policies(r *http.Request, path string) (policies, error) {
	var h api.History
	if err := c.get(r, "/v1/policies"+policyQuery(policyOf(r))+"&limit=1", &h); err != nil {
		return policies{}, err
	}
	p := policies{Path: path, Policy: policyOf(r), Policies: h.Policies}
	if p.Policy != store.DefaultPolicy && !slices.Contains(p.Policies, p.Policy) {
		return policies{}, errUnknown
	}
	return p, nil
}

// Several says whether there are policies with a name.
func (p *policies) Several() bool {
	return slices.ContainsFunc(p.Policies, func(name string) bool { return name != store.DefaultPolicy })
}

// recorder keeps the API's answer. The API bounds its size.
type recorder struct {
	bytes.Buffer
	header http.Header
	code   int
}

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(code int) { w.code = code }
