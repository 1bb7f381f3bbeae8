package importer_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer"
)

var update = flag.Bool("update", false, "write what comes of the examples into their files")

// shown is a policy with its notes.
func shown(made *importer.Imported) string {
	seen := string(made.Policy) + "--- notes\n"
	for i := range made.Notes {
		seen += made.Notes[i].String() + "\n"
	}
	return seen
}

// example is what is to be imported, and how.
type example struct {
	importer.Options
	Import string // of the command
	files  []importer.File
}

var imports = map[string]func([]importer.File, importer.Options) (importer.Imported, error){
	"envoy-ratelimit": importer.EnvoyRatelimit, "local-ratelimit": importer.LocalRatelimit,
}

func (e *example) run() (importer.Imported, error) { return imports[e.Import](e.files, e.Options) }

// examples reads the archives of what is to be imported: the files of a marker that says how,
// beside the routes if there are any, and before what comes of it.
func examples(t testing.TB, each func(e *example, comesTo *txtar.File)) {
	t.Helper()
	buildtest.Archives(t, "testdata/imports/*.txtar", *update, func(files []txtar.File) {
		var e example
		for i := range files {
			switch f := &files[i]; f.Name {
			case "and":
				e.files = append(e.files, importer.File{Name: "more.yaml", Text: f.Data})
			case "routes":
				e.Routes = &importer.File{Name: "routes.yaml", Text: f.Data}
			case "comes to":
				each(&e, f)
			default:
				e = example{files: []importer.File{{Name: "it.yaml", Text: f.Data}}}
				require.NoError(t, json.Unmarshal([]byte(f.Name), &e), f.Name)
			}
		}
	})
}

// service imports a configuration of envoyproxy/ratelimit.
func service(text string) (importer.Imported, error) {
	return importer.EnvoyRatelimit([]importer.File{{Name: "c.yaml", Text: []byte(text)}}, importer.Options{})
}

func TestImports(t *testing.T) {
	examples(t, func(e *example, comesTo *txtar.File) {
		made, err := e.run()
		got := shown(&made)
		if err != nil {
			got = "error: " + err.Error() + "\n"
			var usage *importer.UsageError
			if errors.As(err, &usage) {
				got += "hint: " + usage.Hint + "\n"
			}
		}
		comesTo.Data = []byte(got)
	})
}

// What every example becomes with scope cluster is valid, and no note says that Envoys count
// for themselves. A connection's id means something in its own Envoy only.
func TestScopeCluster(t *testing.T) {
	examples(t, func(e *example, comesTo *txtar.File) {
		e.Cluster = true
		made, err := e.run()
		require.Equal(t, strings.HasPrefix(string(comesTo.Data), "error: "), err != nil, "%v\n%s", err, made.Policy)
		text := string(made.Policy)
		all := strings.Count(text, "  - name: ") - strings.Count(text, "[{property: [connection, id]}")
		require.Equal(t, all, strings.Count(text, "\n    scope: cluster\n"), text)
		require.NotContains(t, strings.ReplaceAll(text, "\n#   ", " "), "counts for itself")
	})
}

// Whatever is read, the result is a valid policy, or an error about the file.
func FuzzImport(f *testing.F) {
	examples(f, func(e *example, _ *txtar.File) {
		routes := ""
		if e.Routes != nil {
			routes = string(e.Routes.Text)
		}
		f.Add(string(e.files[0].Text), routes)
	})
	f.Fuzz(func(t *testing.T, text, routes string) {
		e := example{Options: importer.Options{Listener: "inside"}, files: []importer.File{{Name: "f.yaml", Text: []byte(text)}}}
		if routes != "" {
			e.Routes = &importer.File{Name: "r.yaml", Text: []byte(routes)}
		}
		for e.Import = range imports {
			if _, err := e.run(); err != nil {
				require.NotContains(t, err.Error(), "a fault of this import")
			}
		}
	})
}

// Values with signs of any notation, and names that no rule may have, make
// policies that are valid.
func TestUnusualValues(t *testing.T) {
	for _, value := range []string{"=a", "~a", "!", "!a", "*a*b", "~*", "!*", "=*", "(", "(*", "a\"b", "#a", "a: b", "é*", "\u2028", "null", "off", "1", "~", " ", strings.Repeat("long ", 100)} {
		for _, key := range []string{"user", "remote_address", "path", "method", "host", "generic_key", "a b", "*", "=k"} {
			text := fmt.Sprintf("domain: d\ndescriptors:\n  - {key: %q, value: %q, rate_limit: {unit: day, requests_per_unit: 1}}\n", key, value)
			made, err := service(text + fmt.Sprintf("  - {key: %q, rate_limit: {unit: day, requests_per_unit: 2}}\n", key))
			require.NoError(t, err, "%s %q\n%s", key, value, made.Policy)
			made, err = service(text)
			if !errors.Is(err, importer.ErrNothing) { // no path begins so
				require.NoError(t, err, "%s %q\n%s", key, value, made.Policy)
			}
		}
	}
}
