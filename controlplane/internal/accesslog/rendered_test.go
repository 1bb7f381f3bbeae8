package accesslog_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/envoy"
)

// renderedLines writes lines as an Envoy does that sluice render has set up.
func renderedLines(t *testing.T, clientIP bool, headers []string, requests ...map[string]string) string {
	t.Helper()
	config, err := envoy.Bootstrap(envoy.BootstrapOptions{
		Plugin: envoy.Plugin{Wasm: "/sluice.wasm"}, Listen: "127.0.0.1:1", Upstream: "127.0.0.1:2", Admin: "127.0.0.1:3",
		AccessLog: "/dev/stdout", Headers: headers, ClientIP: clientIP,
	})
	require.NoError(t, err)
	found := regexp.MustCompile(`inline_string: (".*")`).FindSubmatch(config)
	require.NotNil(t, found)
	format, err := strconv.Unquote(string(found[1]))
	require.NoError(t, err)
	var lines strings.Builder
	for _, r := range requests {
		lines.WriteString(regexp.MustCompile(`%[^%]+%`).ReplaceAllStringFunc(format, func(operator string) string {
			if value := r[operator]; value != "" {
				return value
			}
			return map[string]string{
				"%START_TIME%": "2026-01-31T12:00:00.000Z", "%REQ(:METHOD)%": "GET", "%PATH(NQ)%": "/v1", "%RESPONSE_CODE%": "200",
				"%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%": "192.0.2.7", "%RESPONSE_CODE_DETAILS%": "via_upstream",
			}[operator] + strings.Repeat("-", min(1, strings.Count(operator, "(x-")+strings.Count(operator, "FILTER_STATE")))
		}))
	}
	return lines.String()
}

// The access log that render writes needs no --format, whatever headers it shows.
func TestTheRenderedLogIsFoundOut(t *testing.T) {
	user, tier := "%REQ(x-user-id)%", "%REQ(x-tier)%"
	both := []string{"x-user-id", "x-tier"}
	denied := map[string]string{
		"%RESPONSE_CODE%": "429", "%FILTER_STATE(wasm.sluice.verdict:PLAIN)%": "a=denied:limit,b=allowed", user: "alice",
	}
	for name, c := range map[string]struct {
		log     string
		fields  []string
		want    [][2]string
		ip      string
		unknown int64
	}{
		"nothing more": {log: renderedLines(t, false, nil, nil, denied)},
		"address":      {log: renderedLines(t, true, nil, nil, denied), fields: []string{"client_ip"}, ip: "192.0.2.7"},
		"a header": {
			log: renderedLines(t, true, both, nil, denied), fields: []string{"header:x-user-id"},
			want: [][2]string{{"x-user-id", "alice"}},
		},
		"two words in a header": {
			log:    renderedLines(t, false, both, map[string]string{user: "bob"}, map[string]string{user: "alice b", tier: "go=ld"}),
			fields: []string{"header:x-user-id", "header:x-tier"}, want: [][2]string{{"x-user-id", "alice b"}, {"x-tier", "go=ld"}},
		},
		"a header of the client's making": {
			log:    renderedLines(t, false, both, map[string]string{user: "a y=z x-tier=gold"}, nil, map[string]string{user: "alice"}),
			fields: []string{"header:x-user-id"}, want: [][2]string{{"x-user-id", "alice"}}, unknown: 1,
		},
		"parameters in a header": {
			log:    renderedLines(t, false, []string{"x-forwarded"}, map[string]string{"%REQ(x-forwarded)%": "proto=https; for=192.0.2.9"}),
			fields: []string{"header:x-forwarded"}, want: [][2]string{{"x-forwarded", "proto=https; for=192.0.2.9"}},
		},
		"a header more than before": {
			log: renderedLines(t, false, both[:1], map[string]string{user: "alice"}, map[string]string{user: "alice"}) +
				renderedLines(t, false, both, map[string]string{user: "alice", tier: "gold"}) + renderedLines(t, false, both[:1], map[string]string{user: "bob"}),
			fields: []string{"header:x-user-id"}, want: [][2]string{{"x-user-id", "bob"}}, unknown: 1,
		},
		"names in another order first": {
			log:    renderedLines(t, false, both, map[string]string{user: "1 x-tier=9", tier: "2 x-user-id=8"}, map[string]string{user: "bob"}, map[string]string{user: "alice"}),
			fields: []string{"header:x-user-id", "header:x-tier"}, want: [][2]string{{"x-user-id", "alice"}}, unknown: 1,
		},
		"beside other lines": {
			log: "[2026-01-31 12:00:00.000][1][info][main] [source/server/server.cc:1] starting main dispatch loop\n" +
				renderedLines(t, false, both, nil, denied),
			fields: []string{"header:x-user-id"}, want: [][2]string{{"x-user-id", "alice"}}, unknown: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			all, stats, err := readAll(t, accesslog.Options{Names: []string{file(t, c.log)}, Fields: append(c.fields, everyField...)})
			require.NoError(t, err)
			require.Equal(t, c.unknown, stats.Unknown, "%+v", stats.Example)
			last := all[len(all)-1]
			require.Equal(t, time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC).UnixNano(), last.Ns)
			require.Equal(t, "GET /v1", last.Method+" "+last.Path)
			require.Equal(t, c.want, last.Headers)
			require.Equal(t, c.ip, last.ClientIP)
		})
	}
	_, _, err := readAll(t, accesslog.Options{Names: []string{file(t, renderedLines(t, true, both, denied))}, Fields: []string{"path", "query"}})
	require.ErrorContains(t, err, "does not have the field query")
	_, _, err = readAll(t, accesslog.Options{Names: []string{file(t, renderedLines(t, true, both, denied))}, Fields: []string{"header:x-api-key"}})
	require.ErrorContains(t, err, "does not have the field header:x-api-key")
}
