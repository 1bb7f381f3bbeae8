package envoy

import (
	_ "embed"
	"strings"
	"text/template"
)

//go:embed filterentry.yaml.tmpl
var filterEntryText string

var filterEntryTemplate = template.Must(template.Must(bootstrapTemplate.Clone()).New("filter entry").Funcs(template.FuncMap{
	"cut": cut,
}).Parse(filterEntryText))

// FilterEntry writes what an existing Envoy configuration lacks, as three documents of
// YAML: the entry of http_filters, what goes beside it, and what goes to the top level.
// Clients' listener, upstream and admin interface are the configuration's own; o's are not
// read.
func FilterEntry(o BootstrapOptions) ([]byte, error) {
	view, err := newBootstrapView(o, true)
	return render("filter", filterEntryTemplate, view, err)
}

// cut writes a part of the bootstrap with so many spaces less before each line.
func cut(spaces int, part string, view bootstrapView) (string, error) {
	var out strings.Builder
	if err := bootstrapTemplate.ExecuteTemplate(&out, part, view); err != nil {
		return "", err
	}
	return strings.ReplaceAll(out.String(), "\n"+strings.Repeat(" ", spaces), "\n"), nil
}
