package console

import (
	"crypto/hmac"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
)

// visit is a request of a visitor that the API knows.
type visit struct {
	caller  api.Caller
	Session string // empty: anyone may call, or the visitor has a certificate
	CSRF    string // what forms of this visitor carry
}

// May says whether the visitor has a role with a policy.
func (v *visit) May(role access.Role, policy string) bool {
	return max(v.caller.Role, v.caller.Policies[policy]) >= role
}

// MayApply says whether the visitor may change a policy.
func (v *visit) MayApply(policy string) bool { return v.May(access.Apply, policy) }

// Who is the visitor as people read it.
func (v *visit) Who() string { return access.Who(v.caller.Name) }

// Role is the visitor's role.
func (v *visit) Role() string {
	text := v.caller.Role.String()
	for _, policy := range slices.Sorted(maps.Keys(v.caller.Policies)) {
		text += ", of policy " + policy + " " + v.caller.Policies[policy].String()
	}
	return text
}

// identify returns the request as the visitor's session makes it, and the visitor.
func (c *console) identify(r *http.Request) (*http.Request, *visit, error) {
	v := &visit{}
	if id := sessionID(r); id != "" {
		if ctx, ok := c.sessions.resume(r.Context(), id); ok {
			r, v.Session = r.WithContext(ctx), id
		}
	}
	if c.access && v.Session == "" && (r.TLS == nil || len(r.TLS.PeerCertificates) == 0) {
		// Without asking the API, which would count and log this as a refusal.
		return r, nil, &failure{code: http.StatusUnauthorized, Text: "sign in first"}
	}
	if err := c.get(r, "/v1/caller", &v.caller); err != nil {
		return r, nil, err
	}
	v.CSRF = c.csrf(v)
	return v.aboutOwn(r), v, nil
}

// aboutOwn makes a request without a policy one about the visitor's first policy, if the visitor
// may not see all policies.
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

// public makes a page for anyone. Its forms are short.
func (c *console) public(p page) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := parseForm(w, r, maxPublicForm)
		if err == nil {
			err = p(w, r, nil)
		}
		if err != nil {
			c.fail(w, r, nil, err)
		}
	})
}

// known makes a page for visitors that the API knows. It accepts only forms that the console made
// for them.
func (c *console) known(p page) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r, v, err := c.identify(r)
		unknown := isCode(err, http.StatusUnauthorized) || isCode(err, http.StatusTooManyRequests)
		if unknown && r.Method == http.MethodGet && wantsHTML(r) {
			http.Redirect(w, r, "/console/login", http.StatusSeeOther)
			return
		}
		if err == nil {
			err = c.visited(w, r, v, p)
		}
		if err != nil {
			c.fail(w, r, v, err)
		}
	})
}

// visited checks a visitor's form and has the page answer.
func (c *console) visited(w http.ResponseWriter, r *http.Request, v *visit, p page) error {
	if err := parseForm(w, r, maxForm); err != nil {
		return err
	}
	if r.Method == http.MethodPost && !hmac.Equal([]byte(r.PostForm.Get("csrf")), []byte(v.CSRF)) {
		return &failure{code: http.StatusForbidden, Text: "this form is not from your session: load the page again"}
	}
	return p(w, r, v)
}

const (
	// maxPublicForm is room for a token, escaped.
	maxPublicForm = 4 * access.MaxToken
	// maxForm is room for the description of a client, escaped. Other forms are shorter.
	maxForm = 4 * manage.MaxDescribed
)

func parseForm(w http.ResponseWriter, r *http.Request, most int) error {
	if r.Method != http.MethodPost {
		return nil
	}
	r.Body = http.MaxBytesReader(w, r.Body, int64(most))
	err := r.ParseForm()
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		text := "the form is larger than " + strconv.Itoa(most) + " bytes"
		return &failure{code: http.StatusRequestEntityTooLarge, Text: text}
	case err != nil:
		return &failure{code: http.StatusBadRequest, Text: "the form is malformed"}
	}
	return nil
}
