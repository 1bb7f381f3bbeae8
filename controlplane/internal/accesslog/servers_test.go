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
	written string // the server's own configuration of the format
	options accesslog.Options
	whole   bool // values are escaped or quoted, so that no request is ambiguous
	grain   time.Duration
	host    bool // the fields that it has, beside method, path and status
	user    bool
	agent   bool
	address string
	bare    bool // of paths it has no query
}

func (l *logOf) fields() []string {
	fields := append([]string{}, everyField...)
	for field, has := range map[string]bool{"host": l.host, "header:x-user-id": l.user, "header:user-agent": l.agent, "client_ip": l.address != ""} {
		if has {
			fields = append(fields, field)
		}
	}
	return fields
}

// check reads the log, and compares it with what was sent.
func (l *logOf) check(t *testing.T, file string, began time.Time) {
	t.Helper()
	o := l.options
	o.Names, o.Fields = []string{file}, l.fields()
	all, stats, err := readAll(t, o)
	require.NoError(t, err)
	want := requests
	if l.whole {
		want = append(append([]sent{}, want...), hostile)
		require.Zero(t, stats.Unknown, "%+v", stats.Example)
	} else {
		require.EqualValues(t, 1, stats.Unknown)
		require.Contains(t, stats.Example.Why, "in two ways")
	}
	require.Len(t, all, len(want))
	byPath := map[string]*accesslog.Request{}
	for _, r := range all {
		byPath[r.Path] = r
		require.WithinRange(t, time.Unix(0, r.Ns), began.Add(-2*time.Second), time.Now().Add(2*time.Second))
	}
	require.LessOrEqual(t, stats.GrainNs, int64(l.grain))
	for _, s := range want {
		expected := accesslog.Request{Status: 200, Method: s.method, Path: s.path, ClientIP: l.address}
		if l.bare {
			expected.Path, _, _ = strings.Cut(s.path, "?")
		}
		if l.host {
			expected.Host = "api.example.com"
		}
		if l.agent {
			expected.Headers = append(expected.Headers, [2]string{"user-agent", s.agent})
		}
		if l.user && s.user != "" {
			expected.Headers = append(expected.Headers, [2]string{"x-user-id", s.user})
		}
		r := byPath[expected.Path]
		require.NotNil(t, r, expected.Path)
		expected.Ns, expected.TookNs = r.Ns, r.TookNs
		slices.SortFunc(r.Headers, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
		require.Equal(t, expected, *r)
	}
}

const (
	headerText = `%START_TIME(%Y-%m-%dT%H:%M:%S.%6f%z)% %DOWNSTREAM_REMOTE_ADDRESS% %REQ(:AUTHORITY)% %REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %RESPONSE_CODE% "%REQ(X-USER-ID)%" "%REQ(USER-AGENT)%"`
	nestedJSON = `{"at":"%START_TIME(%s.%9f)%","http":{"verb":"%REQ(:METHOD)%","path":"%REQ(:PATH)%","code":"%RESPONSE_CODE%","host":"%REQ(:AUTHORITY)%"},"who":{"user":"%REQ(X-USER-ID)%","agent":"%REQ(USER-AGENT)%","at":"%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"}}`
	endJSON    = `{"end":"%EMIT_TIME%","took":"%DURATION%","verb":"%REQ(:METHOD)%","path":"%REQ(:PATH)%","code":"%RESPONSE_CODE%","user":"%REQ(X-USER-ID)%"}`
	istioJSON  = `{"authority":"%REQ(:AUTHORITY)%","bytes_received":"%BYTES_RECEIVED%","bytes_sent":"%BYTES_SENT%","connection_termination_details":"%CONNECTION_TERMINATION_DETAILS%","downstream_local_address":"%DOWNSTREAM_LOCAL_ADDRESS%","downstream_remote_address":"%DOWNSTREAM_REMOTE_ADDRESS%","duration":"%DURATION%","method":"%REQ(:METHOD)%","path":"%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%","protocol":"%PROTOCOL%","request_id":"%REQ(X-REQUEST-ID)%","requested_server_name":"%REQUESTED_SERVER_NAME%","response_code":"%RESPONSE_CODE%","response_code_details":"%RESPONSE_CODE_DETAILS%","response_flags":"%RESPONSE_FLAGS%","route_name":"%ROUTE_NAME%","start_time":"%START_TIME%","upstream_cluster":"%UPSTREAM_CLUSTER_RAW%","upstream_host":"%UPSTREAM_HOST%","upstream_local_address":"%UPSTREAM_LOCAL_ADDRESS%","upstream_service_time":"%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%","upstream_transport_failure_reason":"%UPSTREAM_TRANSPORT_FAILURE_REASON%","user_agent":"%REQ(USER-AGENT)%","x_forwarded_for":"%REQ(X-FORWARDED-FOR)%"}`
	istioText  = `[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% "%UPSTREAM_TRANSPORT_FAILURE_REASON%" %BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%" %UPSTREAM_CLUSTER_RAW% %UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%`
)

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
	logs := map[string]*logOf{
		"default":    {grain: time.Millisecond, host: true, agent: true, address: trusted},
		"istio text": {written: istioText, grain: time.Millisecond, host: true, agent: true, address: trusted},
		"headers": {
			written: headerText, options: accesslog.Options{Format: headerText}, grain: time.Microsecond,
			host: true, user: true, agent: true, address: trusted,
		},
		"rendered": {
			written: renderedJSON(t), whole: true, grain: time.Millisecond, host: true, user: true, agent: true, address: trusted, bare: true,
		},
		"istio json": {written: istioJSON, whole: true, grain: time.Millisecond, host: true, agent: true, address: trusted},
		"nested json": {
			written: nestedJSON, options: accesslog.Options{Format: nestedJSON}, whole: true, grain: time.Microsecond,
			host: true, user: true, agent: true, address: trusted,
		},
		"end in json": {written: endJSON, options: accesslog.Options{Format: endJSON}, whole: true, grain: time.Millisecond, user: true},
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
			for _, r := range append(append([]sent{}, requests...), hostile) {
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
			"@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog", "path": filepath.Join(dir, name),
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

// nginxJSON is a log_format without escape=json, as many have it: there is no upstream, and so no number.
const nginxJSON = `{"time_iso8601":"$time_iso8601","took":$upstream_response_time,"remote_addr":"$remote_addr",` +
	`"request":"$request","status":$status,"http_host":"$http_host","http_x_user_id":"$http_x_user_id",` +
	`"http_user_agent":"$http_user_agent","ip":$remote_addr}`

const nginxFormat = `$msec $request_time $remote_addr "$request" $status "$http_host" "$http_x_user_id" "$http_user_agent"`

// Logs that a real nginx writes are read as what was sent.
func TestLogsOfNginx(t *testing.T) {
	logs := map[string]*logOf{
		"combined": {grain: time.Second, whole: true, agent: true, address: "127.0.0.1"},
		"json":     {grain: time.Second, whole: true, host: true, user: true, agent: true, address: "127.0.0.1"},
		"headers": {
			options: accesslog.Options{Format: nginxFormat}, grain: time.Second, // where all came in one whole second's first millisecond
			whole: true, host: true, user: true, agent: true, address: "127.0.0.1",
		},
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
  server { listen %s; location / { return 200; } }`, nginxFormat, nginxJSON, address))
	for _, r := range append(append([]sent{}, requests...), hostile) {
		r.send(t, address)
	}
	for name, l := range logs {
		t.Run(name, func(t *testing.T) { l.check(t, written(t, filepath.Join(dir, name)), began) })
	}
}
