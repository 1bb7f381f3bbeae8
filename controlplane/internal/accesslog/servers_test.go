package accesslog_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/build/servertest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
)

// sent is a request to a real server, and what its log must say of it.
type sent struct{ method, path, user, agent string }

var requests = []sent{
	{"GET", "/v1/a?b=c&d=%20", "alice", "curl/8"},
	{"POST", "/v1/b", "", "Mozilla/5.0 (X11; Linux) like \\Gecko"},
	{"DELETE", "/" + strings.Repeat("long/", 300), "user-é✓", "-app-"},
	{"GET", "/q", `a"b\c`, `x"y`},
}

// hostile is a request whose header has the separators of text formats in it.
var hostile = sent{"GET", "/hostile", "mallory", `a" "mallory" "b`}

func (s *sent) send(t *testing.T, address string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), s.method, "http://"+address+s.path, http.NoBody)
	require.NoError(t, err)
	r.Host = "api.example.com"
	r.Header.Set("User-Agent", s.agent)
	r.Header.Set("X-Forwarded-For", "198.51.100.7, "+trusted)
	if s.user != "" {
		r.Header.Set("X-User-Id", s.user)
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
}

// logOf is a log that a server writes, and how it is read.
type logOf struct {
	written  string // the server's own configuration of the format
	options  accesslog.Options
	isWhole  bool // values are escaped or quoted, so that each line is read
	grain    time.Duration
	fields   []string // that it has, beside method, path and status
	clientIP string
	noQuery  bool // its paths lack the query
}

// formats are those that servers are told to write, by name.
func formats(t *testing.T) map[string]string {
	t.Helper()
	archive, err := txtar.ParseFile("testdata/formats.txtar")
	require.NoError(t, err)
	formats := map[string]string{}
	for _, f := range archive.Files {
		formats[f.Name] = strings.TrimSuffix(string(f.Data), "\n")
	}
	return formats
}

// check reads the log, and compares it with what was sent.
func (l *logOf) check(t *testing.T, file string, began time.Time) {
	t.Helper()
	o := l.options
	o.Names, o.Fields = []string{file}, slices.Concat(everyField, l.fields)
	all, stats, err := readAll(t, o)
	require.NoError(t, err)
	want := requests
	if l.isWhole {
		want = append(slices.Clone(want), hostile)
		require.Zero(t, stats.Unknown, "%+v", stats.Example)
	} else {
		require.EqualValues(t, 1, stats.Unknown)
		require.Contains(t, stats.Example.Why, "with the format's separator")
	}
	require.Len(t, all, len(want))
	require.LessOrEqual(t, stats.GrainNs, int64(l.grain))
	byPath := map[string]*accesslog.Request{}
	for _, r := range all {
		byPath[r.Path] = r
		require.WithinRange(t, time.Unix(0, r.Ns), began.Add(-2*time.Second), time.Now().Add(2*time.Second))
	}
	for i := range want {
		expected := l.expected(&want[i])
		r := byPath[expected.Path]
		require.NotNil(t, r, expected.Path)
		expected.Ns, expected.TookNs = r.Ns, r.TookNs
		require.Equal(t, *expected, *r)
	}
}

// expected is what the log says of a request.
func (l *logOf) expected(s *sent) *accesslog.Request {
	r := &accesslog.Request{Status: 200, Method: s.method, Path: s.path, ClientIP: l.clientIP}
	if l.noQuery {
		r.Path, _, _ = strings.Cut(s.path, "?")
	}
	if slices.Contains(l.fields, "host") {
		r.Host = "api.example.com"
	}
	for _, header := range [...]struct{ name, value string }{{"user-agent", s.agent}, {"x-user-id", s.user}} {
		if slices.Contains(l.fields, "header:"+header.name) && header.value != "" {
			r.Headers = append(r.Headers, [2]string{header.name, header.value})
		}
	}
	return r
}

func as(format string) accesslog.Options { return accesslog.Options{Format: format} }

// renderedJSON is the format that sluice render has Envoy write.
func renderedJSON(t *testing.T) string {
	t.Helper()
	config, err := envoy.Bootstrap(envoy.BootstrapOptions{
		Plugin: envoy.Plugin{Wasm: "/sluice.wasm"}, Listen: "127.0.0.1:1", Upstream: "127.0.0.1:2", Admin: "127.0.0.1:3",
		AccessLog: "/dev/stdout", Headers: []string{"x-user-id", "user-agent"},
	})
	require.NoError(t, err)
	var document any
	require.NoError(t, yaml.Unmarshal(config, &document))
	format, err := json.Marshal(find(document, "json_format"))
	require.NoError(t, err)
	return string(format)
}

// find returns the value under a name, wherever the document has it.
func find(document any, name string) any {
	switch document := document.(type) {
	case map[string]any:
		if value, ok := document[name]; ok {
			return value
		}
		for _, value := range document {
			if found := find(value, name); found != nil {
				return found
			}
		}
	case []any:
		for _, value := range document {
			if found := find(value, name); found != nil {
				return found
			}
		}
	}
	return nil
}

// trusted is the address that Envoy takes for the client's, behind a proxy.
const trusted = "203.0.113.9"

// Logs that real Envoys write are read as what was sent.
func TestLogsOfEnvoy(t *testing.T) {
	formats := formats(t)
	users := []string{"host", "header:x-user-id", "header:user-agent", "client_ip"}
	agents := []string{"host", "header:user-agent", "client_ip"}
	logs := map[string]*logOf{
		"default":    {grain: time.Millisecond, fields: agents, clientIP: trusted},
		"istio text": {grain: time.Millisecond, fields: agents, clientIP: trusted},
		"istio json": {grain: time.Millisecond, fields: agents, clientIP: trusted, isWhole: true},
		"rendered": {
			written: renderedJSON(t), isWhole: true, grain: time.Millisecond, fields: users, clientIP: trusted, noQuery: true,
		},
		"headers": {options: as(formats["headers"]), grain: time.Microsecond, fields: users, clientIP: trusted},
		"nested json": {
			options: as(formats["nested json"]), isWhole: true, grain: time.Microsecond, fields: users, clientIP: trusted,
		},
		"end in json": {
			options: as(formats["end in json"]), isWhole: true, grain: time.Millisecond, fields: []string{"header:x-user-id"},
		},
	}
	for name, format := range formats {
		if l := logs[name]; l != nil {
			l.written = format
		}
	}
	binaries, err := proc.All()
	require.NoError(t, err)
	for _, binary := range binaries {
		t.Run(filepath.Base(filepath.Dir(binary)), func(t *testing.T) {
			dir, began := t.TempDir(), time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			p, err := proc.Start(ctx, proc.Options{Binary: binary, Bootstrap: bootstrap(t, dir, logs)})
			require.NoError(t, err)
			defer func() { require.NoError(t, p.Kill()) }()
			require.NoError(t, p.WaitReady(ctx))
			address, err := p.Listener(ctx, "logs")
			require.NoError(t, err)
			for _, r := range append(slices.Clone(requests), hostile) {
				r.send(t, address)
			}
			for name, l := range logs {
				t.Run(name, func(t *testing.T) { l.check(t, written(t, filepath.Join(dir, name)), began) })
			}
		})
	}
}

// written waits until a log has a line of each request.
func written(t *testing.T, file string) string {
	t.Helper()
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(file)
		return err == nil && strings.Count(string(text), "\n") > len(requests)
	}, time.Minute, 20*time.Millisecond, file)
	return file
}

func bootstrap(t *testing.T, dir string, logs map[string]*logOf) []byte {
	t.Helper()
	var list []string
	for name, l := range logs {
		config := map[string]any{
			"@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
			"path":  filepath.Join(dir, name),
		}
		switch {
		case strings.HasPrefix(l.written, "{"):
			config["log_format"] = map[string]any{"json_format": json.RawMessage(l.written)}
		case l.written != "":
			config["log_format"] = map[string]any{"text_format_source": map[string]any{"inline_string": l.written + "\n"}}
		}
		text, err := json.Marshal(map[string]any{"name": "file", "typed_config": config})
		require.NoError(t, err)
		list = append(list, string(text))
	}
	return fmt.Appendf(nil, `
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners:
  - name: logs
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: logs
          access_log: [%s]
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{match: {prefix: /}, direct_response: {status: 200}}]
          http_filters:
          - name: router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
`, strings.Join(list, ", "))
}

// Logs that a real nginx writes are read as what was sent.
func TestLogsOfNginx(t *testing.T) {
	formats := formats(t)
	users := []string{"host", "header:x-user-id", "header:user-agent", "client_ip"}
	logs := map[string]*logOf{
		"combined": {fields: []string{"header:user-agent", "client_ip"}},
		"json":     {fields: users},
		"headers":  {fields: users, options: as(formats["nginx headers"])},
	}
	for _, l := range logs {
		l.isWhole = true
		l.clientIP = "127.0.0.1"
		l.grain = time.Second // of $msec too: all may come in the first millisecond of a second
	}
	began := time.Now()
	free, err := ports.Free(1)
	require.NoError(t, err)
	address := fmt.Sprint("127.0.0.1:", free[0])
	dir := servertest.Nginx(t, address, fmt.Sprintf(`
  large_client_header_buffers 4 16k;
  log_format headers '%s';
  log_format json '%s';
  access_log json json;
  access_log combined;
  access_log headers headers;
  server { listen %s; location / { return 200; } }`, formats["nginx headers"], formats["nginx json"], address))
	for _, r := range append(slices.Clone(requests), hostile) {
		r.send(t, address)
	}
	for name, l := range logs {
		t.Run(name, func(t *testing.T) { l.check(t, written(t, filepath.Join(dir, name)), began) })
	}
}
