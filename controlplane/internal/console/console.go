// Package console is the web pages of serve: what proxies run, revisions, live rules, and the
// counters of a client.
//
// Its invariant: a page has no rights of its own. It asks the API, in this process, for
// the caller that the browser's session or certificate stands for, so checks, roles and
// audit are the API's. The package must never import the command line, the store or
// the xDS server's insides beyond what the API answers with.
package console

import (
	"crypto/hmac"
	"crypto/rand"
	"embed"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/chart"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
)

// Path is where the console is.
const Path = "/console/"

// Options of the console.
type Options struct {
	// Access says that callers need a token or a certificate.
	Access bool
	Log    *slog.Logger // default: nothing
}

type console struct {
	api      http.Handler
	access   bool
	log      *slog.Logger
	sessions *sessions
	secret   []byte // of the tokens in forms

	comparing sync.Mutex // held while policies are read: they take memory
}

//go:embed assets
var assetFiles embed.FS

// Add adds the pages under Path to the API's mux, and has browsers find them at /.
func Add(mux *http.ServeMux, o Options) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	c := &console{api: mux, access: o.Access, log: o.Log, sessions: newSessions(time.Now), secret: secret}
	for pattern, page := range c.pages() {
		mux.Handle(pattern, page)
	}
	others, _ := mux.Handler(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/"}})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		if wantsHTML(r) {
			http.Redirect(w, r, Path, http.StatusSeeOther)
			return
		}
		others.ServeHTTP(w, r)
	})
}

// page answers for a visitor, or returns why it cannot.
type page func(w http.ResponseWriter, r *http.Request, v *visit) error

// visit is a request of a visitor whom the API knows.
type visit struct {
	caller  api.Caller
	Session string // "" without one: anyone may call, or a certificate does
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

// pages are the console's by their patterns.
func (c *console) pages() map[string]http.Handler {
	// As in the API: a page of another origin may send nothing.
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.fail(w, r, nil, &failure{code: http.StatusForbidden, Text: "cross-origin request refused"})
	}))
	assets, _ := fs.Sub(assetFiles, "assets") // it is embedded
	pages := map[string]http.Handler{
		"GET /console/login":   c.public(c.loginPage),
		"POST /console/login":  c.public(c.login),
		"GET /console/assets/": http.StripPrefix("/console/assets/", http.FileServerFS(assets)),
		"GET /console/assets/chart.css": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/css; charset=utf-8")
			_, _ = io.WriteString(w, chart.CSS) // the visitor has gone if this fails
		}),
	}
	for pattern, p := range map[string]page{
		"GET /console/{$}":                            c.proxies,
		"GET /console/revisions":                      c.revisions,
		"GET /console/revisions/{revision}":           c.revision,
		"GET /console/revisions/{revision}/rollback":  c.reviewRollback,
		"POST /console/revisions/{revision}/rollback": c.rollback,
		"GET /console/rules":                          c.rules,
		"GET /console/clients":                        c.clientsPage,
		"POST /console/clients":                       c.findClient,
		"POST /console/clients/free":                  c.freeClient,
		"POST /console/logout":                        c.logout,
		"/console/":                                   c.unknown,
	} {
		pages[pattern] = c.known(p)
	}
	for pattern, page := range pages {
		pages[pattern] = secured(origin.Handler(page))
	}
	return pages
}

// secured sets what browsers keep to on every page.
func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "+
			"connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// public are pages for anyone. Their forms are short.
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

// known lets visitors through whom the API knows, and forms that the console made for
// them.
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

func (c *console) visited(w http.ResponseWriter, r *http.Request, v *visit, p page) error {
	if err := parseForm(w, r, maxForm); err != nil {
		return err
	}
	if r.Method == http.MethodPost && !hmac.Equal([]byte(r.PostForm.Get("csrf")), []byte(v.CSRF)) {
		return &failure{code: http.StatusForbidden, Text: "this form is not of your session: load the page again"}
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

func (c *console) unknown(http.ResponseWriter, *http.Request, *visit) error {
	return errUnknown
}
