package e2e

import (
	"cmp"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// Three Envoys of four workers know together which keys they have denied.
func topCommand(t *testing.T, control *controlPlane, envoys []*proxy) {
	for _, mode := range []string{"plain", "hash"} {
		control.apply(t, "report_keys: "+mode+"\n"+
			oneRule("algorithm: fixed_window_per_key, limits: [5/1h], counter: denied-"+mode))
		alice, bob := "alice-"+mode, "bob-"+mode
		for _, p := range envoys {
			require.Equal(t, 5, count(p.load(16).send(t, 40, user(alice)), allowed))
			require.Equal(t, 5, count(p.load(16).send(t, 20, user(bob)), allowed))
		}
		var keys []result.DeniedKey
		eventually(t, 10*time.Second, "every worker's denials", func() bool {
			r := control.counters(t, "top", "--rule", "per-user")
			require.Zero(t, r.Failed)
			keys = r.Denials[0].Keys
			return len(keys) == 2 && keys[0].Denied == 105 && keys[1].Denied == 45
		})
		for i, name := range []string{alice, bob} {
			require.Zero(t, keys[i].Error)
			if mode == "plain" {
				require.Equal(t, []*string{&name}, keys[i].Key)
			} else {
				require.Regexp(t, "^[0-9a-f]{16}$", keys[i].Hash)
				require.Nil(t, keys[i].Key)
			}
		}
	}
}

// operation is the answer to a management request.
type operation struct {
	Value   int64
	Held    *uint32
	Windows []result.Window
	Rules   []result.Stats

	BlockedNs int64 `json:"blocked_ns"`
	BlockedMs int64 `json:"blocked_ms"` // what sluice counters prints
}

// operate runs an operation on a connection that ends then, so that any worker may answer.
func (p *proxy) operate(t *testing.T, op, query string) operation {
	res, body := p.get(t, "/.sluice/counters/"+op+"?"+query, ":method", http.MethodPost, "authorization", bearer,
		"connection", "close")
	require.Equal(t, http.StatusOK, res.StatusCode, "%s %s: %s", op, query, body)
	return decoded[operation](t, body)
}

// counters is the JSON that `sluice counters` prints.
type counters struct {
	Proxies []struct {
		operation

		Error string
	}
	Quota   *operation // of a rule of scope cluster
	Failed  int
	Sum     *int64
	AtLeast *int64 `json:"at_least"`
	Denials []result.Denials
}

// counters runs `sluice counters` on all proxies of the control plane.
func (c *controlPlane) counters(t *testing.T, args ...string) (result counters) {
	text, errs, exit := sluice(t,
		append(append([]string{"counters"}, args...), "--server", c.url(), "--output", "json")...)
	result = decoded[counters](t, cmp.Or(text, errs))
	require.Equal(t, result.Failed > 0, exit != 0, errs)
	return result
}

// TestWasmPluginsSideBySide: Istio sets no vm_id, so all plugins of a proxy share their
// shared data and, with the same code, one VM. Our plugins share a counter if they
// define it and its windows alike, and have separate ones otherwise.
func TestWasmPluginsSideBySide(t *testing.T) {
	t.Parallel()
	policy := func(domain, path, limit string) string {
		return "version: 1\n" + domain + "rules: [{name: per-user, match: {paths: [" + path +
			"]}, key: [{header: x-user-id}], limits: [" + limit + "]}]\n"
	}
	eachEnvoy(t, func(t *testing.T, d driver) {
		first := policy("", "/a", "4/"+far)
		p := d.start(t, proxyOptions{policy: first, edit: func(bootstrap []byte) []byte {
			chain := []any{asPlugin(t, "first", first), asPlugin(t, "window", policy("", "/b", "2/300d")),
				asPlugin(t, "alike", policy("", "/c", "6/"+far)),
				asPlugin(t, "separate", policy("domain: other\n", "/d", "3/"+far))}
			return edited(t, bootstrap, func(static object) {
				manager := managerOf(listenersOf(static)[0])
				manager["http_filters"] = append(chain, manager["http_filters"].([]any)[1:]...)
			})
		}})
		for _, step := range []struct {
			path string
			want int
		}{{"/a", 4}, {"/b", 2}, {"/c", 6 - 4}, {"/d", 3}, {"/a", 0}, {"/e", 40}} {
			statuses := p.load(4).send(t, 40, func(int) request { return request{step.path, "x-user-id", "alice"} })
			require.Equal(t, step.want, count(statuses, allowed), step.path)
		}
	})
}

// asPlugin returns the filter with a policy as Istio configures a WasmPlugin of that name.
func asPlugin(t *testing.T, name, policy string) (filter any) {
	edited(t, bootstrapOf(t, policy), func(static object) {
		plugin := managerOf(listenersOf(static)[0])["http_filters"].([]any)[0].(map[string]any)
		config := plugin["typed_config"].(map[string]any)["config"].(map[string]any)
		delete(config, "capability_restriction_config")
		config["name"], config["root_id"] = "shop."+name, filterName
		delete(config["vm_config"].(map[string]any), "vm_id")
		plugin["name"], filter = name, plugin
	})
	return filter
}

// pageLog finds the access log in docs/envoy.md: a format, and two lines in it.
var pageLog = regexp.MustCompile(`(?s)\n    log_format:\n(.*?)\n\n    (429 [^\n]*)\n    (200 [^\n]*)\n`)

// An Envoy with the page's format for an access log writes the page's lines.
func TestAccessLogOfThePage(t *testing.T) {
	t.Parallel()
	page := pageLog.FindStringSubmatch(read(t, buildtest.Root(), "docs", "envoy.md"))
	require.NotNil(t, page, "docs/envoy.md has no access log in this form")
	everyEnvoy(t, func(t *testing.T, d driver) {
		log := filepath.Join(t.TempDir(), "access.log")
		p := d.listen(t, proxyOptions{policy: `
version: 1
rules:
  - {name: per-user, match: {paths: ["/a*"]}, key: [{header: x-user-id}], limits: [1/366d]}
  - {name: per-address, match: {paths: [/a]}, key: [client_ip], limits: [9/366d]}
  - {name: trial, match: {paths: [/a/b]}, mode: shadow, limits: [0/366d]}
`, edit: replacing("          stat_prefix: ingress\n", `          stat_prefix: ingress
          access_log:
          - name: envoy.access_loggers.file
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: `+log+`
              log_format:
`+strings.ReplaceAll("\n"+page[1], "\n    ", "\n              ")[1:]+"\n")})
		for _, r := range [][2]string{{"/a", "alice"}, {"/a", "alice"}, {"/a/b", "bob"}} {
			p.get(t, r[0], ":host", "h", "x-user-id", r[1])
		}
		var lines []string
		eventually(t, 20*time.Second, "the access log", func() bool {
			lines = strings.Split(strings.TrimSpace(read(t, log)), "\n")
			return strings.Contains(read(t, log), "trial")
		})
		require.Subset(t, lines, page[2:])
	})
}
