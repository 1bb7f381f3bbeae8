package importer_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/importer"
	"github.com/sluice-ratelimit/sluice/shared/policy"
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
	importer.EnvoyOptions
	Import   string // of the command
	Cluster  bool
	files    []importer.File
	included map[string][]byte
}

// newExample reads a marker such as {"import":"nginx"}, and takes the file behind it.
func newExample(t testing.TB, f *txtar.File) example {
	e := example{included: map[string][]byte{}}
	require.NoError(t, json.Unmarshal([]byte(f.Name), &e), f.Name)
	name := "it.yaml"
	if e.Import == "nginx" {
		name = "nginx.conf"
	}
	e.files = []importer.File{{Name: name, Text: f.Data}}
	return e
}

// include finds the files that were given for an include of nginx.
func (e *example) include(_, pattern string) (found []importer.File, err error) {
	for name, text := range e.included {
		if ok, err := path.Match(pattern, name); ok && err == nil {
			found = append(found, importer.File{Name: name, Text: text})
		}
	}
	slices.SortFunc(found, func(a, b importer.File) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}

// imports are the commands.
var imports = []string{"envoy-ratelimit", "local-ratelimit", "nginx", "ingress-nginx"}

func (e *example) run() (importer.Imported, error) {
	scope := policy.ScopeProxy
	if e.Cluster {
		scope = policy.ScopeCluster
	}
	switch e.Import {
	case "envoy-ratelimit":
		return importer.EnvoyRatelimit(e.files, scope, e.EnvoyOptions)
	case "local-ratelimit":
		return importer.LocalRatelimit(e.files[0], scope, e.EnvoyOptions)
	case "nginx":
		return importer.Nginx(e.files, scope, e.include)
	case "ingress-nginx":
		return importer.IngressNginx(e.files, scope)
	}
	panic("there is no import " + e.Import)
}

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
				if name, ok := strings.CutPrefix(f.Name, "include "); ok {
					e.included[name] = f.Data
					break
				}
				e = newExample(t, f)
			}
		}
	})
}

// service imports a configuration of envoyproxy/ratelimit.
func service(text string) (importer.Imported, error) {
	files := []importer.File{{Name: "c.yaml", Text: []byte(text)}}
	return importer.EnvoyRatelimit(files, policy.ScopeProxy, importer.EnvoyOptions{})
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
			if made.Notes != nil {
				got += shown(&made)
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
		e := example{files: []importer.File{{Name: "f.yaml", Text: []byte(text)}}}
		e.Listener = "inside"
		if routes != "" {
			e.Routes = &importer.File{Name: "r.yaml", Text: []byte(routes)}
		}
		for _, e.Import = range imports {
			if _, err := e.run(); err != nil {
				require.NotContains(t, err.Error(), "a fault of this import")
			}
		}
	})
}

// Values with signs of any notation, and names that no rule may have, make
// policies that are valid.
func TestUnusualValues(t *testing.T) {
	values := []string{"=a", "~a", "!", "!a", "*a*b", "~*", "!*", "=*", "(", "(*", "a\"b", "#a", "a: b", "é*", "\u2028"}
	values = append(values, "null", "off", "1", "~", " ", strings.Repeat("long ", 100))
	const limit = "rate_limit: {unit: day, requests_per_unit: 1}"
	for _, value := range values {
		for _, key := range []string{"user", "remote_address", "path", "method", "host", "generic_key", "a b", "*", "=k"} {
			text := fmt.Sprintf("domain: d\ndescriptors:\n  - {key: %q, value: %q, %s}\n", key, value, limit)
			made, err := service(text + fmt.Sprintf("  - {key: %q, %s}\n", key, limit))
			require.NoError(t, err, "%s %q\n%s", key, value, made.Policy)
			made, err = service(text)
			if !errors.Is(err, importer.ErrNothing) { // no path begins so
				require.NoError(t, err, "%s %q\n%s", key, value, made.Policy)
			}
		}
	}
}

// laughs is text of which each line is ten times the one before it.
func laughs() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 9; i++ {
		ten := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", ")
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, ten)
	}
	return b.String()
}

// What grows when it is read is refused in a moment, and nothing is made of it. If one policy has
// no room for a configuration, the error names the configuration.
func TestInputsThatGrowAreRefused(t *testing.T) {
	var values strings.Builder
	for i := range 10_001 {
		fmt.Fprintf(&values, "- {key: tenant, value: v%d, rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
	}
	overrides := "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n"
	for i := range 1001 {
		overrides += "- {key: a, value: v" + strings.Repeat("x", i) + "}\n"
	}
	var keys strings.Builder
	for i := range 13_000 {
		fmt.Fprintf(&keys, "- {key: k%d, rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
	}
	digits, depth := strings.Repeat("0", 100_000), 5000
	deep := strings.Repeat("[{key: a, descriptors: ", depth) + strings.Repeat("}]", depth)
	most := "domain: d\ndescriptors:\n" + values.String()[:strings.LastIndex(values.String(), "- ")]
	_, err := service(most)
	require.NoError(t, err)
	const domain = "domain: d\ndescriptors: "
	below := domain + "\n- {key: path, value: /a}\n- key: path\n  value: /b\n  descriptors:\n" +
		strings.ReplaceAll(values.String(), "- {", "  - {")
	for name, tc := range map[string]struct{ text, want string }{
		"aliases": {laughs() + "domain: d\n", "an alias counts each time it is used"},
		"depth":   {domain + deep, "deep"},
		"integer": {domain + "[{key: a, rate_limit: {requests_per_unit: 1" + digits + "}}]", "whole number from 0"},
		"parts":   {strings.Repeat("a: 1\n---\n", 100_000), "more than 100 documents"},
		"rules":   {overrides, "a is beyond what a policy may have: overrides: has 1001 items, the most is 1000"},
		"values":  {"domain: d\ndescriptors:\n" + values.String(), "tenant has more than 10000 values with a limit"},
		"below":   {below, "c.yaml: descriptors[1].descriptors[0]: path.tenant has more than 10000 values"},
		"policy":  {"domain: d\ndescriptors:\n" + keys.String(), "bytes, and the maximum is 1048576 (1 MiB): split the file"},
		"size":    {"domain: d\n" + strings.Repeat("#\n", 1<<20), "the most is 1048576"},
	} {
		made, err := service(tc.text)
		require.ErrorContains(t, err, tc.want, name)
		require.NotContains(t, err.Error(), "fault of this import", name)
		require.Empty(t, made.Policy, name)
	}
}

// So are the servers, locations and maps of nginx that are compared with each other.
func TestManyBlocksOfNginxAreRefused(t *testing.T) {
	const zone = "limit_req_zone $k zone=z:1m rate=1r/s; limit_req zone=z;\n"
	var entries strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&entries, "k%d v%d;\n", i, i)
	}
	for text, want := range map[string]string{
		strings.Repeat("server { }\n", 20_000):                           "1001: server: there are more than 1000",
		"server {\n" + strings.Repeat("location /a { }\n", 20_000) + "}": "1002: location: there are more than 1000",
	} {
		_, err := importer.Nginx([]importer.File{{Name: "n", Text: []byte(text)}}, policy.ScopeProxy, nil)
		require.ErrorContains(t, err, want)
	}
	text := zone + "map $http_a $k {\n" + entries.String() + "}"
	made, err := importer.Nginx([]importer.File{{Name: "n", Text: []byte(text)}}, policy.ScopeProxy, nil)
	require.NoError(t, err)
	require.Contains(t, string(made.Policy), "# Off: The key has more than 100 forms.")
}

// The path of each route is compared with each before it, and has more bytes as JSON than as YAML.
// Each header that may be absent doubles what is sent.
func TestManyRoutesAreRefused(t *testing.T) {
	for _, tc := range []struct {
		hosts, routes, dots, headers int
		want                         string
	}{
		{1, 4, 200_000, 0, "the policy would have 1600"},
		{840, 1, 500, 0, "the policy would have 1"},
		{1, 250, 0, 9, "virtual_hosts[0].routes[196].route.rate_limits[0]: the rate_limits before these make more than"},
	} {
		var routes strings.Builder
		routes.WriteString("virtual_hosts:\n")
		actions := "{remote_address: {}}"
		for i := range tc.headers {
			actions += fmt.Sprintf(", {request_headers: {header_name: x%d, descriptor_key: k%d, skip_if_absent: true}}", i, i)
		}
		for host := range tc.hosts {
			fmt.Fprintf(&routes, "- domains: [h%d]\n  routes:\n", host)
			for i := range tc.routes {
				fmt.Fprintf(&routes, "  - match: {path_separated_prefix: /%d%s}\n    route: {rate_limits: [{actions: [%s]}]}\n",
					i, strings.Repeat(".", tc.dots), actions)
			}
		}
		text := "domain: d\ndescriptors: [{key: remote_address, rate_limit: {unit: day, requests_per_unit: 1}}]\n"
		made, err := importer.EnvoyRatelimit([]importer.File{{Name: "c.yaml", Text: []byte(text)}}, policy.ScopeProxy,
			importer.EnvoyOptions{Routes: &importer.File{Name: "r.yaml", Text: []byte(routes.String())}})
		require.ErrorContains(t, err, tc.want)
		require.NotContains(t, err.Error(), "fault of this import")
		require.NotContains(t, err.Error(), "\n")
		require.Empty(t, made.Policy)
	}
}
