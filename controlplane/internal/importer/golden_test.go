package importer_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer"
)

var update = flag.Bool("update", false, "write what is seen into the golden files")

// importFile imports a file of testdata: that of a filter by the name local-*,
// else that of the service; its routes are beside it.
func importFile(t *testing.T, path string, cluster bool) (importer.Imported, error) {
	t.Helper()
	read := func(path string) importer.File {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return importer.File{Name: filepath.Base(path), Text: text}
	}
	o := importer.Options{Cluster: cluster}
	if routes := strings.TrimSuffix(path, ".yaml") + ".routes.yaml"; exists(routes) {
		f := read(routes)
		o.Routes = &f
	}
	if strings.HasPrefix(filepath.Base(path), "local-") {
		return importer.LocalRatelimit(read(path), o)
	}
	return importer.EnvoyRatelimit([]importer.File{read(path)}, o)
}

// What every file becomes with scope cluster is valid, and no note says that Envoys count
// for themselves. A connection's id means something in its own Envoy only.
func TestScopeCluster(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, ".routes.yaml") {
			continue
		}
		made, err := importFile(t, file, true)
		require.NoError(t, err, "%s\n%s", file, made.Policy)
		text := string(made.Policy)
		all := strings.Count(text, "  - name: ") - strings.Count(text, "[{property: [connection, id]}")
		require.Equal(t, all, strings.Count(text, "\n    scope: cluster\n"), text)
		require.NotContains(t, strings.ReplaceAll(text, "\n#   ", " "), "counts for itself", file)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Each configuration of envoyproxy/ratelimit, of Envoy Gateway, and of Envoy's local rate
// limit filter (local-*) becomes a policy and notes (*.golden, written by -update).
// *.routes.yaml is the Envoy beside a service.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		if strings.HasSuffix(file, ".routes.yaml") {
			continue
		}
		t.Run(file, func(t *testing.T) {
			made, err := importFile(t, file, false)
			require.NoError(t, err)
			seen := shown(&made)
			golden := strings.TrimSuffix(file, ".yaml") + ".golden"
			if *update {
				require.NoError(t, os.WriteFile(golden, []byte(seen), 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), seen)
		})
	}
}

// shown is a policy with its notes.
func shown(made *importer.Imported) string {
	seen := string(made.Policy) + "--- notes\n"
	for i := range made.Notes {
		seen += made.Notes[i].String() + "\n"
	}
	return seen
}

// imports reads what is to be imported: the files of a marker that says how, beside the routes
// if there are any, and before what comes of it.
func imports(t testing.TB, each func(in []importer.File, o importer.Options, filter bool, comesTo *txtar.File)) {
	t.Helper()
	files, err := filepath.Glob("testdata/imports/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		all, err := txtar.ParseFile(name)
		require.NoError(t, err)
		var in []importer.File
		var how struct {
			importer.Options
			Filter bool
		}
		for i := range all.Files {
			switch f := &all.Files[i]; f.Name {
			case "and":
				in = append(in, importer.File{Name: "more.yaml", Text: f.Data})
			case "routes":
				how.Routes = &importer.File{Name: "routes.yaml", Text: f.Data}
			case "comes to":
				each(in, how.Options, how.Filter, f)
			default:
				how.Options, how.Filter, in = importer.Options{}, false, []importer.File{{Name: "it.yaml", Text: f.Data}}
				require.NoError(t, json.Unmarshal([]byte(f.Name), &how), f.Name)
			}
		}
		if *update {
			require.NoError(t, os.WriteFile(name, txtar.Format(all), 0o644))
		}
	}
}

// service imports a configuration of envoyproxy/ratelimit.
func service(text string) (importer.Imported, error) {
	return importer.EnvoyRatelimit([]importer.File{{Name: "c.yaml", Text: []byte(text)}}, importer.Options{})
}

func imported(in []importer.File, o importer.Options, filter bool) (importer.Imported, error) {
	if filter {
		return importer.LocalRatelimit(in[0], o)
	}
	return importer.EnvoyRatelimit(in, o)
}

func TestImports(t *testing.T) {
	imports(t, func(in []importer.File, o importer.Options, filter bool, comesTo *txtar.File) {
		made, err := imported(in, o, filter)
		got := shown(&made)
		if err != nil {
			got = "error: " + err.Error() + "\n"
			var choices *importer.Choices
			if errors.As(err, &choices) {
				got += "choices: " + strings.Join(choices.Names, ", ") + "\n"
			}
		}
		if *update {
			comesTo.Data = []byte(got)
		}
		require.Equal(t, string(comesTo.Data), got, "%s", in[0].Text)
	})
}

// Whatever is read, the result is a valid policy, or an error about the file.
func FuzzImport(f *testing.F) {
	imports(f, func(in []importer.File, o importer.Options, _ bool, _ *txtar.File) {
		routes := ""
		if o.Routes != nil {
			routes = string(o.Routes.Text)
		}
		f.Add(string(in[0].Text), routes)
	})
	f.Fuzz(func(t *testing.T, text, routes string) {
		o := importer.Options{Listener: "inside"}
		if routes != "" {
			o.Routes = &importer.File{Name: "r.yaml", Text: []byte(routes)}
		}
		for _, filter := range []bool{false, true} {
			if _, err := imported([]importer.File{{Name: "f.yaml", Text: []byte(text)}}, o, filter); err != nil {
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
