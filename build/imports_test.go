package build

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/sluice-ratelimit/sluice"

// graph is who imports whom: package to its direct imports.
type graph map[string][]string

// list asks the compiler of packages and of all that they import, for this machine or for
// the filter's: a line of fields each, by a format whose fields are parted by tabs.
func list(t *testing.T, forFilter bool, dir, format string, arguments ...string) (lines [][]string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps", "-f", format}, arguments...)...)
	cmd.Dir, cmd.Env = dir, os.Environ()
	if forFilter {
		cmd.Env = append(cmd.Env, "GOOS=wasip1", "GOARCH=wasm")
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	for line := range strings.Lines(string(out)) {
		lines = append(lines, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
	}
	return lines
}

func loadGraph(t *testing.T, forFilter bool, dir, pattern string) graph {
	t.Helper()
	g := graph{}
	for _, names := range list(t, forFilter, dir, `{{.ImportPath}}{{range .Imports}}	{{.}}{{end}}`, pattern) {
		g[names[0]] = names[1:]
	}
	return g
}

// under lists the packages of the graph in a folder of the module.
func (g graph) under(folder string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(g)), func(name string) bool { return !within(name, folder) })
}

// within reports whether a package is in a folder of the module.
func within(name, folder string) bool {
	root := path.Join(module, folder)
	return name == root || strings.HasPrefix(name, root+"/")
}

// chain returns the imports that lead from a package to the first one, itself
// aside, that forbidden holds for; nil if none does.
func (g graph) chain(from string, forbidden func(string) bool) []string {
	seen := map[string]bool{from: true}
	for queue := [][]string{{from}}; len(queue) > 0; queue = queue[1:] {
		way := queue[0]
		for _, next := range g[way[len(way)-1]] {
			if seen[next] {
				continue
			}
			seen[next] = true
			longer := append(slices.Clone(way), next)
			if forbidden(next) {
				return longer
			}
			queue = append(queue, longer)
		}
	}
	return nil
}

// importLaw is a rule about who may import whom, and why.
type importLaw struct {
	who       string // the folder it binds
	except    string // a folder in it that it does not bind
	what      string
	reason    string
	direct    bool // binds imports written in the folder only, not what those import
	forbidden func(name string) bool
}

func inFolders(folders ...string) func(string) bool {
	return func(name string) bool {
		return slices.ContainsFunc(folders, func(folder string) bool { return within(name, folder) })
	}
}

// inside holds for what is in a folder, but for what is in these folders of it.
func inside(folder string, except ...string) func(string) bool {
	excepted := inFolders(except...)
	return func(name string) bool { return within(name, folder) && !excepted(name) }
}

func anyOf(names ...string) func(string) bool {
	return func(name string) bool {
		return slices.ContainsFunc(names, func(root string) bool { return name == root || strings.HasPrefix(name, root+"/") })
	}
}

const (
	sdk       = "github.com/proxy-wasm/proxy-wasm-go-sdk"
	importers = "controlplane/internal/importer"
)

var importLaws = []importLaw{
	{who: ".", what: "imports no helper of tests",
		forbidden: inFolders("build/buildtest", "build/certtest", "build/charttest", "build/proctest", "build/servertest",
			"controlplane/quotatest", "build/hosttest"),
		reason: "a program that needs it needs a package whose name says what it does"},
	{who: "filter", what: "must not reach controlplane, envoy, e2e or build",
		forbidden: inFolders("controlplane", "envoy", "e2e", "build"),
		reason:    "the halves meet in shared/ alone, so that either can change without the other"},
	{who: "controlplane", what: "must not reach filter", forbidden: inFolders("filter"),
		reason: "the control plane runs the compiled filter, the one users run, never its source"},
	{who: "build/measure", what: "must not reach the filter's or the control plane's source",
		forbidden: inFolders("filter", "controlplane"),
		reason:    "what is measured is what users run, from outside"},
	{who: "envoy", what: "must not reach filter or controlplane", forbidden: inFolders("filter", "controlplane"),
		reason: "both use it; the simulator and the reverse proxy run the compiled filter, never its source"},
	{who: "envoy/proc", what: "must not reach another package of the module", forbidden: inside("", "envoy/proc"),
		reason: "it runs any Envoy; what is in the bootstrap is the caller's business"},
	{who: "shared", what: "must not reach anything of the module outside shared", forbidden: inside("", "shared"),
		reason: "both halves stand on it"},
	{who: "shared/limit", what: "imports nothing but math/bits",
		forbidden: func(name string) bool { return name != "math/bits" }, direct: true,
		reason: "a decision is a pure function of integers: no clock, no allocation, no format"},
	{who: "filter/internal", except: "filter/internal/host", what: "must not reach the proxy-wasm SDK",
		forbidden: anyOf(sdk),
		reason:    "the engine is tested and reasoned about without a host; host calls go through its own Host interface"},
	{who: "filter/internal/decide", what: "must not reach a source of units",
		forbidden: inFolders("filter/internal/local", "filter/internal/lease", "filter/internal/rules",
			"filter/internal/host"),
		reason: "it decides alike whatever the source is: what decides by one belongs into its package"},
	{who: "filter/internal/lease", what: "calls nobody up",
		forbidden: inFolders("filter/internal/engine", "filter/internal/rules", "filter/internal/host"),
		reason:    "a request that waits is gone on with by the host, which asks Client.Next: no callback re-enters"},
	{who: "controlplane/internal/cli/serving", what: "must not reach flags", forbidden: anyOf("github.com/spf13"),
		reason: "a command reads its flags, and hands over what they say"},
	{who: importers + "/draft", what: "must not reach a reader",
		forbidden: inside(importers, importers+"/draft", importers+"/request", importers+"/source"),
		reason:    "it writes what any reader makes: another limiter is another reader, not a case in the draft"},
	{who: importers + "/nginx", what: "must not reach another reader",
		forbidden: inside(importers, importers+"/nginx", importers+"/nginxkey", importers+"/draft", importers+"/request",
			importers+"/source"),
		reason: "readers share what is made alone, so that each can change without the others"},
	{who: "filter/internal", except: "filter/internal/host", what: "imports neither unsafe nor time",
		forbidden: anyOf("unsafe", "time"), direct: true,
		reason: "time comes from the host, once a request; memory tricks belong to filter/internal/host"},
}

// wasmLaws bind what is linked into the filter.
var wasmLaws = []importLaw{
	{who: "filter", what: "must not link net", forbidden: anyOf("net/http", "net"),
		reason: "it imports WASI functions that the oldest supported Envoy lacks (net/netip and net/url do not)"},
	{who: "filter", what: "must not link a decoder that works by reflection",
		reason: "encoding/json alone costs 1 MB, half a second of Envoy's main thread at load, and 30 MB",
		forbidden: anyOf("encoding/json", "encoding/gob", "encoding/xml", "encoding/asn1", "google.golang.org/protobuf",
			"go.yaml.in/yaml")},
	{who: "filter", what: "must not link regexp", forbidden: func(name string) bool { return name == "regexp" },
		reason: "its time and memory on a client's text are bounded by nothing that a policy says; shared/automaton's are"},
}

// harmless are packages beside or under forbidden ones that add no WASI import.
var harmless = map[string]bool{"net/netip": true, "net/url": true}

// broken returns one line for each package that breaks the law.
func (l importLaw) broken(g graph) []string {
	var lines []string
	for _, name := range g.under(l.who) {
		if l.except != "" && within(name, l.except) {
			continue
		}
		forbidden := func(imported string) bool { return l.forbidden(imported) && !harmless[imported] }
		seen := g
		if l.direct {
			seen = graph{name: g[name]}
		}
		if chain := seen.chain(name, forbidden); chain != nil {
			lines = append(lines, fmt.Sprintf("%s %s: %s (%s)", l.who, l.what, l.reason, strings.Join(chain, " → ")))
		}
	}
	return lines
}

func TestImportLaws(t *testing.T) {
	native := loadGraph(t, false, "..", "./...")
	maps.Copy(native, loadGraph(t, false, "measure", "./..."))
	maps.Copy(native, loadGraph(t, false, "release", "./..."))
	linked := loadGraph(t, true, "..", "./filter")
	for _, law := range importLaws {
		require.NotEmpty(t, native.under(law.who), "a law about nobody: %s", law.who)
		require.Empty(t, law.broken(native))
		require.Empty(t, law.broken(linked))
	}
	for _, law := range wasmLaws {
		require.Empty(t, law.broken(linked))
	}
}
