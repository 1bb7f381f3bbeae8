package console

import (
	"bytes"
	"cmp"
	"embed"
	"errors"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/chart"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

//go:embed pages
var pageFiles embed.FS

// templates are the pages, each with the layout around it.
var templates = parsePages()

func parsePages() map[string]*template.Template {
	words := template.FuncMap{
		"moment":    func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
		"machine":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"rate":      chart.Number,
		"printable": printable.Text,
		"keyText":   func(k result.DeniedKey) string { return manage.KeyText(&k) },
		"window":    func(w result.Window) string { return manage.WindowsText([]result.Window{w}, false) },
		"held":      manage.HeldText,
		"blocked":   manage.BlockedText,
		"isTrue":    func(b *bool) bool { return *b },
		"deref":     func(n *int64) int64 { return *n },
		"fields": func(csrf string, of url.Values) map[string]any {
			return map[string]any{"CSRF": csrf, "Fields": of}
		},
	}
	layout := template.New("layout.html").Funcs(words)
	template.Must(layout.ParseFS(pageFiles, "pages/layout.html", "pages/parts.html"))
	pages := map[string]*template.Template{}
	files, _ := fs.Glob(pageFiles, "pages/*.html") // the pattern is right
	for _, file := range files {
		page := template.Must(layout.Clone())
		name := strings.TrimSuffix(path.Base(file), ".html")
		pages[name] = template.Must(page.ParseFS(pageFiles, file))
	}
	return pages
}

// view is what a template gets.
type view struct {
	Title string
	Here  string // the entry of the navigation
	Visit *visit // nil where nobody is known
	Body  any
}

func (c *console) render(w http.ResponseWriter, code int, name string, v view) error {
	var text bytes.Buffer
	if err := templates[name].Execute(&text, v); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(text.Bytes()) // the visitor has gone if this fails
	return nil
}

func (c *console) fail(w http.ResponseWriter, r *http.Request, v *visit, err error) {
	if r.Context().Err() != nil {
		return // the visitor has gone, so the API may not have answered
	}
	var f *failure
	if !errors.As(err, &f) {
		c.log.Error("console", "path", r.URL.Path, "error", err)
		f = &failure{code: http.StatusInternalServerError, Text: err.Error()}
	}
	if f.retryAfter != "" {
		w.Header().Set("Retry-After", f.retryAfter)
	}
	if !wantsHTML(r) {
		http.Error(w, f.Text, f.code)
		return
	}
	title := cmp.Or(http.StatusText(f.code), "Error")
	if err := c.render(w, f.code, "failure", view{Title: title, Visit: v, Body: f}); err != nil {
		c.log.Error("render", "error", err)
	}
}

func wantsHTML(r *http.Request) bool { return strings.Contains(r.Header.Get("Accept"), "text/html") }
