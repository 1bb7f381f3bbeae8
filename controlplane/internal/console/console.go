// Package console is the web pages of serve: what proxies run, revisions, live rules, and the
// counters of a client.
//
// Its invariant: a page has no rights of its own. It asks the API, in this process, for the
// caller that the browser's session or certificate stands for, so checks, roles and audit are
// the API's. The package must never import the command line, or use more of the store and the
// xDS server than the types of the API's answers.
//
// A request goes through known or public (visit.go) to its page. Known finds the visitor by the
// session (session.go), and public has none. The pages are proxies.go, rules.go, clients.go and
// revisions.go. Each asks the API (call.go) and fills a template (render.go).
package console

import (
	"crypto/rand"
	"embed"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/chart"
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

// page answers a visitor, or returns why it cannot.
type page func(w http.ResponseWriter, r *http.Request, v *visit) error

// pages are the pages of the console, by their patterns.
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

// secured sets the headers by which browsers protect every page.
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

func (c *console) unknown(http.ResponseWriter, *http.Request, *visit) error {
	return errUnknown
}
