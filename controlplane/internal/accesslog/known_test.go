package accesslog_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
)

const (
	combinedStart = `192.0.2.7 - ann [31/Jan/2026:12:00:02 +0000] "GET /v1/a?b=c HTTP/1.1" 200 12 "-" "agent \x22x\x22 y"`
	albStart      = `https 2026-01-31T12:00:01.500000Z app/lb/1 192.0.2.7:2817 10.0.0.1:80 0.000 0.500 0.000 200 200 34 366 ` +
		`"GET https://api.example.com:443/v1/a?b=c HTTP/1.1" "agent \x22x\x22 y" TLS_AES_128 TLSv1.3 arn:aws:tg/7 "Root=1-2" "-" "-" 0 ` +
		`2026-01-31T12:00:01.000000Z "waf,forward" "-" "-" "10.0.0.1:80" "200" "-" "-"`
	envoyLine = `[2026-01-31T12:00:00.125Z] "GET /v1/a?b=c HTTP/1.1" 200 - 0 154 3 2 "203.0.113.9, 192.0.2.7" "agent" "id-1" "api.example.com" "10.0.0.1:80"`
	istioLine = `[2026-01-31T12:00:00.125Z] "GET /v1/a?b=c HTTP/1.1" 200 - via_upstream - "-" 0 154 3 2 "-" "agent" "id-1" "api.example.com" ` +
		`"10.0.0.1:80" outbound|80||api - 10.0.0.2:80 192.0.2.7:4711 - default`
	apisixLine = `192.0.2.7 - - [31/Jan/2026:12:00:02 +0000] api.example.com "GET /v1/a?b=c HTTP/1.1" 200 12 1.000 "-" "agent" ` +
		`10.1.2.3:80 200 0.9 "http://api"`
	haproxyLine = `Jan 31 12:00:02 lb haproxy[14389]: 192.0.2.7:33317 [31/Jan/2026:12:00:01.500] web app/one 10/0/30/69/109 200 2750 - - ---- ` +
		`1/1/1/1/0 0/0 "GET /v1/a?b=c HTTP/1.1"`
	caddyLine = `{"level":"info","ts":1769860801.5,"msg":"handled request","request":{"remote_ip":"10.0.0.9","client_ip":"192.0.2.7",` +
		`"proto":"HTTP/2.0","method":"GET","host":"api.example.com","uri":"/v1/a?b=c","headers":{"User-Agent":["agent"],` +
		`"X-User-Id":["ann"],"X-Tag":["a","b"]}},"user_id":"","duration":0.5,"size":12,"status":200}`
	cloudflareLine = `{"ClientIP":"192.0.2.7","ClientRequestHost":"api.example.com","ClientRequestMethod":"GET",` +
		`"ClientRequestURI":"/v1/a?b=c","EdgeEndTimestamp":"2026-01-31T12:00:05Z","EdgeResponseStatus":200,"EdgeStartTimestamp":%s}`
	traefikLine = `{"ClientHost":"192.0.2.7","DownstreamStatus":200,"Duration":500000000,"RequestHost":"api.example.com",` +
		`"RequestMethod":"GET","RequestPath":"/v1/a?b=c","StartUTC":"2026-01-31T12:00:01Z","request_X-User-Id":"ann","time":"2026-01-31T12:00:09Z"}`
)

// TestAnswers: how long an answer took and how many bytes there were, where it is wanted.
func TestAnswers(t *testing.T) {
	for line, want := range map[string][3]int64{ // ms, bytes received and sent; 0 = unknown
		envoyLine: {3, 0, 154}, istioLine: {3, 0, 154}, apisixLine: {1000, 0, 12}, combinedStart: {0, 0, 12}, albStart: {},
		caddyLine: {500, 0, 0}, traefikLine: {500, 0, 0}, combinedStart + ` 94 1.000 [web-80] [] 10.1.2.3:8080 12 0.9 200 6f1a`: {1000, 0, 12},
		`192.0.2.7 - - [31/Jan/2026:12:00:02 +0000] "GET / HTTP/1.1" 304 -`:                                                                  {},
		`{"start_time":"2026-01-31T12:00:00Z","method":"GET","path":"/","response_code":200,"duration":7,"bytes_received":5,"bytes_sent":6}`: {7, 5, 6},
		`{"time_iso8601":"2026-01-31T12:00:00Z","request":"GET / HTTP/1.1","status":200,"request_time":0.007,"bytes_sent":6}`:                {7, 0, 0},
	} {
		o := accesslog.Options{Names: []string{file(t, line+"\n")}, Wanted: []string{accesslog.FieldTook, accesslog.FieldReceived, accesslog.FieldSent}}
		all, _, err := readAll(t, o)
		require.NoError(t, err, line)
		require.Len(t, all, 1, line)
		require.Equal(t, want, [3]int64{all[0].TookNs / 1e6, all[0].Received, all[0].Sent}, line)
	}
	all, _, err := readAll(t, accesslog.Options{
		Names: []string{file(t, caddyLine+"\n")}, Wanted: []string{accesslog.FieldSent}, Map: map[string]string{accesslog.FieldSent: "size"},
	})
	require.NoError(t, err)
	require.EqualValues(t, 12, all[0].Sent)
}

// What these write is known at sight or by the format that is said, with the time at which
// each request began.
func TestFormats(t *testing.T) {
	for _, c := range []struct {
		format, line string
		at           float64 // seconds past noon
		host, user   string  // where the log has them
	}{
		{"common", `192.0.2.7 - - [31/Jan/2026:13:00:00 +0100] "GET /v1/a?b=c HTTP/1.1" 200 12`, 0, "", ""},
		{"combined", combinedStart, 2, "", ""},
		{"main", combinedStart + ` "-"`, 2, "", ""},
		{"main", combinedStart + ` "198.51.100.7"`, 2, "", ""},
		{"ingress-nginx", combinedStart + ` 94 1.000 [web-80] [] 10.1.2.3:8080 12 0.9 200 6f1a`, 1, "", ""},
		{"ingress-nginx", combinedStart + ` 94 1.000 [web-80] [] 10.1.2.3:80, 10.1.2.4:80 0, 12 0.1, 0.9 502, 200 6f1a`, 1, "", ""},
		{"kong", combinedStart + ` kong_request_id: "9a1b"`, 2, "", ""},
		{"traefik", combinedStart + ` 1 "web@docker" "http://172.17.0.2:80" 3ms`, 2, "", ""},
		{"apisix", apisixLine, 1, "api.example.com", ""},
		{"haproxy", haproxyLine, 1.5, "", ""},
		{"alb", albStart, 1, "api.example.com:443", ""},
		{"alb", albStart + ` TID_1`, 1, "api.example.com:443", ""},
		{"alb", albStart + ` TID_1 "-" "-" "-"`, 1, "api.example.com:443", ""},
		{"envoy", envoyLine, 0.125, "api.example.com", ""},
		{"istio", istioLine, 0.125, "api.example.com", ""},
		{"json", caddyLine, 1, "api.example.com", "ann"},
		{"json", strings.Replace(caddyLine, `"duration":0.5`, `"duration":"500ms"`, 1), 1, "api.example.com", "ann"},
		{"json", fmt.Sprintf(cloudflareLine, `"2026-01-31T12:00:01Z"`), 1, "api.example.com", ""},
		{"json", fmt.Sprintf(cloudflareLine, `1769860801`), 1, "api.example.com", ""},
		{"json", fmt.Sprintf(cloudflareLine, `1769860801500000000`), 1.5, "api.example.com", ""},
		{"json", traefikLine, 1, "api.example.com", "ann"},
		{"json", `{"start_time":"2026-01-31T12:00:00.125Z","method":"GET","path":"/v1/a?b=c","response_code":200,"downstream_remote_address":"192.0.2.7:443","authority":"api","x_user_id":"ann"}`, 0.125, "api", "ann"},

		{`%START_TIME(%d.%m.%Y %H:%M:%S.%6f)% | %DOWNSTREAM_REMOTE_ADDRESS% | %REQ(X-USER-ID)% | %REQ(:METHOD)% | %REQ(:PATH)% | %RESPONSE_CODE%`,
			`31.01.2026 12:00:00.125000 | 192.0.2.7:80 | ann | GET | /v1/a?b=c | 200`, 0.125, "", "ann"},
		{`%START_TIME(%s.%3f)% %DOWNSTREAM_REMOTE_ADDRESS% %REQ(:METHOD)% %REQ(:PATH)% %RESPONSE_CODE%`, `1769860800.125 192.0.2.7:80 GET /v1/a?b=c 200`, 0.125, "", ""},
		{`{"t":"%START_TIME(%s%3f)%","q":{"m":"%REQ(:METHOD)%","p":"%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%"},"s":"%RESPONSE_CODE%","a":"%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"}`,
			`{"t":1769860800125,"q":{"m":"GET","p":"/v1/a?b=c"},"s":"200","a":"192.0.2.7"}`, 0.125, "", ""},
		{`$msec $request_time $remote_addr "$request" $status ${http_x_user_id}`, `1769860801.500 1.500 192.0.2.7 "GET /v1/a?b=c HTTP/2.0" 200 ann`, 0, "", "ann"},
		{`%EMIT_TIME% %DURATION% %DOWNSTREAM_REMOTE_ADDRESS% %REQ(:METHOD)% %REQ(:PATH)% %RESPONSE_CODE%`, `2026-01-31T12:00:01.500Z 1500 192.0.2.7:80 GET /v1/a?b=c 200`, 0, "", ""},
		{`%START_TIME% %EMIT_TIME% %DURATION% %DOWNSTREAM_REMOTE_ADDRESS% %REQ(:METHOD)% %REQ(:PATH)% %RESPONSE_CODE%`,
			`2026-01-31T12:00:00Z 2026-01-31T12:00:09Z 1500 192.0.2.7:80 GET /v1/a?b=c 200`, 0, "", ""},
		{`{"a":"%EMIT_TIME%","b":"%START_TIME%","d":"%DURATION%","m":"%REQ(:METHOD)%","p":"%REQ(:PATH)%","s":"%RESPONSE_CODE%","c":"%DOWNSTREAM_REMOTE_ADDRESS%"}`,
			`{"a":"2026-01-31T12:00:09Z","b":"2026-01-31T12:00:00Z","d":1500,"m":"GET","p":"/v1/a?b=c","s":200,"c":"192.0.2.7:80"}`, 0, "", ""},
		{`{"d":"%DURATION%","e":"%EMIT_TIME(%s.%1f)%","m":"%REQ(:METHOD)%","p":"%REQ(:PATH)%","s":"%RESPONSE_CODE%","c":"%DOWNSTREAM_REMOTE_ADDRESS%"}`,
			`{"d":1500,"e":"1769860801.5","m":"GET","p":"/v1/a?b=c","s":200,"c":"192.0.2.7:80"}`, 0, "", ""},
	} {
		o := accesslog.Options{Names: []string{file(t, c.line+"\n")}, Fields: []string{"client_ip", "method", "query"}}
		if strings.ContainsAny(c.format, "%$") {
			o.Format = c.format
		}
		want := accesslog.Request{
			Ns: noon + int64(c.at*1e9), Status: 200, Method: "GET", Path: "/v1/a?b=c", ClientIP: "192.0.2.7", Host: c.host,
		}
		if c.host != "" {
			o.Fields = append(o.Fields, "host")
		}
		if c.user != "" {
			o.Fields = append(o.Fields, "header:x-user-id")
			want.Headers = [][2]string{{"x-user-id", c.user}}
		}
		all, stats, err := readAll(t, o)
		require.NoError(t, err, c.line)
		require.Len(t, all, 1, c.line)
		want.TookNs = all[0].TookNs // see TestAnswers
		require.Equal(t, want, *all[0], c.line)
		require.True(t, o.Format != "" || stats.Readings[0].Format == c.format, c.line)
	}
}

// Fields have the spelling of the log, or that of nobody but --map.
func TestFields(t *testing.T) {
	for _, c := range []struct{ field, said, format, line, want string }{
		{"client_ip", "", "", `{"time":"2026-01-31T12:00:00Z","client_ip":"[2001:db8::1]:443"}`, "2001:db8::1"},
		{"client_ip", "", "", `{"time":"2026-01-31T12:00:00Z","client_ip":"192.0.2.7, 10.0.0.1"}`, "192.0.2.7"},
		{"route", "", "", istioLine, "default"},
		{"header:user-agent", "", "", combinedStart, `agent "x" y`},
		{"header:user-agent", "", "", `{"time":"2026-01-31T12:00:00Z","user_agent":null}`, ""},
		{"jwt:p:sub", "", `%START_TIME% sub=%DYNAMIC_METADATA(envoy.filters.http.jwt_authn:p:sub)%`, `2026-01-31T12:00:00Z sub=u-1`, "u-1"},
		{"header:x-user-id", "who.is", "", `{"time":"2026-01-31T12:00:00Z","who":{"is":"ann"}}`, "ann"},
	} {
		o := accesslog.Options{Names: []string{file(t, c.line+"\n")}, Format: c.format, Fields: []string{c.field}}
		if c.said != "" {
			o.Map = map[string]string{c.field: c.said}
		}
		all, _, err := readAll(t, o)
		require.NoError(t, err, c.line)
		got := all[0].ClientIP + all[0].Route
		for _, v := range append(all[0].Headers, all[0].Values...) {
			got += v[1]
		}
		require.Equal(t, c.want, got, c.line)
	}
}

// A log that names its fields is read by them, its comments aside.
func TestALogThatNamesItsFields(t *testing.T) {
	for _, separator := range []string{" ", "\t"} {
		log := "#Version: 1.0\n#Fields: date time x-edge c-ip cs-method x-host-header cs-uri-stem sc-status cs(User-Agent) cs-uri-query\n" +
			strings.Repeat(strings.ReplaceAll("2026-01-31 12:00:01 FRA 192.0.2.7 GET api.example.com //v1/a 200 curl%20 b=c\n", " ", separator), 3)
		o := accesslog.Options{Names: []string{file(t, log)}, Fields: []string{"client_ip", "path", "host", "header:user-agent"}}
		all, stats, err := readAll(t, o)
		require.NoError(t, err)
		require.EqualValues(t, 3, stats.Lines)
		require.Equal(t, "w3c", stats.Readings[0].Format)
		require.Equal(t, accesslog.Request{
			Ns: noon + 1e9, Status: 200, Method: "GET", Host: "api.example.com", Path: "/v1/a", ClientIP: "192.0.2.7",
			Headers: [][2]string{{"user-agent", "curl%20"}},
		}, *all[2])
		o.Fields = []string{"query"}
		_, _, err = readAll(t, o)
		require.ErrorContains(t, err, "does not have the field query")
	}
}

// A header of two values is a header twice; what is no text is an error that says so,
// not a header that the request lacks.
func TestValuesThatAreNoText(t *testing.T) {
	all, _, err := readAll(t, accesslog.Options{Names: []string{file(t, caddyLine+"\n")}, Fields: []string{"header:x-tag", "header:x-user-id"}})
	require.NoError(t, err)
	require.Equal(t, [][2]string{{"x-user-id", "ann"}, {"x-tag", "a"}, {"x-tag", "b"}}, all[0].Headers)

	for _, c := range []struct{ field, value, want string }{
		{"header:x-user-id", `["ann"]`, ""}, {"header:x-user-id", `7`, ""}, {"host", `["a"]`, ""}, {"header:x-user-id", `["ann",null]`, ""},
		{"header:x-user-id", `{"id":"ann"}`, "who is an object: say --map with the name inside it, as who.NAME"},
		{"header:x-user-id", `[{"id":1}]`, "who is an object"},
		{"host", `["a","b"]`, "who is a list of 2"},
		{"header:x-user-id", `[]`, `--map header:x-user-id=who: no line has a value of "who"`},
		{"header:x-user-id", `null`, `--map header:x-user-id=who: no line has a value of "who"`},
		{"client_ip", `"unix:"`, `who is "unix:", which is no address`},
	} {
		name := file(t, `{"time":"2026-01-31T12:00:00Z","who":`+c.value+"}\n")
		all, _, err := readAll(t, accesslog.Options{Names: []string{name}, Fields: []string{c.field}, Map: map[string]string{c.field: "who"}})
		if c.want != "" {
			require.ErrorContains(t, err, c.want, c.value)
			continue
		}
		require.NoError(t, err, c.value)
		require.Len(t, all, 1)
	}
}

// A path has the spelling that Envoy routes by; what Envoy refuses is left out.
func TestPathsAreThoseThatEnvoyRoutes(t *testing.T) {
	for _, format := range []string{
		`192.0.2.7 - - [31/Jan/2026:12:00:00 +0000] "GET %s HTTP/1.1" 200 12` + "\n",
		`{"time":"2026-01-31T12:00:00Z","method":"GET","path":"%s"}` + "\n",
		`[2026-01-31T12:00:00.000Z] "GET %s HTTP/1.1" 200 - 0 154 3 2 "-" "agent" "id-1" "api" "10.0.0.1:80"` + "\n",
	} {
		var lines strings.Builder
		for _, path := range []string{
			"/v1/login", "//v1/login", "/x/../v1/login", "/v1/%6cogin", "/v1%2Flogin", "http://api.example.com//v1/login", "/v1/%zz", "*",
		} {
			fmt.Fprintf(&lines, format, path)
		}
		all, stats, err := readAll(t, accesslog.Options{Names: []string{file(t, lines.String())}, Fields: []string{"path"}})
		require.NoError(t, err)
		require.Len(t, all, 6)
		for _, r := range all {
			require.Equal(t, "/v1/login", r.Path)
		}
		require.EqualValues(t, 2, stats.Refused)
		require.Equal(t, "/v1/%zz", stats.BadPath)
		require.NoError(t, stats.CheckUnknown(0))
	}
	_, stats, err := readAll(t, accesslog.Options{
		Names: []string{file(t, `{"time":"2026-01-31T12:00:00Z","method":"GET","path":"v1"}`+"\n")}, Fields: []string{"path"},
	})
	require.NoError(t, err)
	require.ErrorContains(t, stats.CheckUnknown(1), `1 of 1 lines have a path that Envoy answers 400, such as "v1"`)
	require.True(t, stats.NoStatus)
}

// A time is read, or is what the error is about.
func TestTimes(t *testing.T) {
	for text, want := range map[string]int64{
		`1.769860801E9`: 1e9, `1.769860800123e+12`: 123e6, `"1769860800.5"`: 5e8, `1769860800123`: 123e6, `1769860800123456`: 123456e3,
		`"[31/Jan/2026:12:00:01 +0000]"`: 1e9, `"31/Jan/2026:13:00:01 +0100"`: 1e9, `"2026-01-31T12:00:01+0000"`: 1e9,
		`"2026-01-31 12:00:01"`: 0, `"2026-01-31T12:00:01"`: 0, `"31/Jan/2026:12:00:01"`: 0, `"noon"`: 0, `1e99`: 0, `-1E9`: 0, `"1E9E"`: 0,
		`4102444800`: 0, `true`: 0,
	} {
		name := file(t, `{"time":`+text+`,"client_ip":"192.0.2.7"}`+"\n")
		all, _, err := readAll(t, accesslog.Options{Names: []string{name}, Fields: []string{"client_ip"}})
		if want == 0 {
			require.ErrorContains(t, err, "time is "+strconv.Quote(strings.Trim(text, `"`)), text)
			continue
		}
		require.NoError(t, err, text)
		require.Equal(t, noon+want, all[0].Ns, text)
	}
	// In text a time may have spaces, which are the format's separators too.
	for format, line := range map[string]string{
		`%DOWNSTREAM_REMOTE_ADDRESS% %START_TIME(%Y-%m-%d %H:%M:%S)% %REQ(:METHOD)% %REQ(:PATH)%`: "192.0.2.7 2026-01-31 12:00:01 GET /a",
		`$remote_addr $time_local $request_method $request_uri`:                                   "192.0.2.7 31/Jan/2026:12:00:01 +0000 GET /a",
	} {
		o := accesslog.Options{Names: []string{file(t, line+"\n")}, Format: format, Fields: []string{"client_ip", "path"}}
		all, _, err := readAll(t, o)
		require.NoError(t, err)
		require.Equal(t, accesslog.Request{Ns: noon + 1e9, Method: "GET", Path: "/a", ClientIP: "192.0.2.7"}, *all[0])
		o.Names = []string{file(t, strings.NewReplacer("Jan", "Jam", "-01-", "-13-").Replace(line)+"\n")}
		_, _, err = readAll(t, o)
		require.ErrorContains(t, err, "which is no time with a zone")
	}
}

// The addresses of a load balancer are not taken for its clients' without a word.
func TestALogBehindALoadBalancer(t *testing.T) {
	const forwarded = "203.0.113.9, 198.51.100.7, 10.0.0.8"
	for name, line := range map[string]string{
		"remote_addr":               `10.0.0.3 - - [31/Jan/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 12 "-" "curl" "` + forwarded + `"`,
		"downstream_remote_address": `{"start_time":"2026-01-31T12:00:00Z","downstream_remote_address":"10.0.0.3:80","x_forwarded_for":"` + forwarded + `"}`,
	} {
		o := accesslog.Options{Names: []string{file(t, line+"\n")}, Fields: []string{"client_ip"}}
		_, _, err := readAll(t, o)
		var behind *accesslog.Error
		require.ErrorAs(t, err, &behind)
		require.ErrorContains(t, err, "client_ip, which is read from "+name+", is the private address 10.0.0.3")
		for said, want := range map[string]string{name: "10.0.0.3", "x-forwarded-for": "198.51.100.7"} {
			require.Contains(t, behind.Hint, "--map client_ip="+said)
			if strings.HasPrefix(line, "{") {
				said = strings.ReplaceAll(said, "-", "_")
			}
			o.Map = map[string]string{"client_ip": said}
			all, _, err := readAll(t, o)
			require.NoError(t, err)
			require.Equal(t, want, all[0].ClientIP)
		}
	}
}

// What was recognized is told, and which fields no line has.
func TestWhatIsTold(t *testing.T) {
	line := `{"Time":"2026-01-31T12:00:00Z","ClientIP":"192.0.2.7","X-User-Id":"-"}` + "\n"
	o := accesslog.Options{Names: []string{file(t, line)}, Fields: []string{"client_ip", "header:x-user-id"}}
	_, stats, err := readAll(t, o)
	require.NoError(t, err)
	require.Equal(t, []accesslog.Reading{{
		Log: o.Names[0], Format: "json", Fields: map[string]string{"time": "Time", "client_ip": "ClientIP", "header:x-user-id": "X-User-Id"},
	}}, stats.Readings)
	require.Equal(t, []string{"header:x-user-id"}, stats.Empty)
	o.Format = "json"
	_, stats, err = readAll(t, o)
	require.NoError(t, err)
	require.Empty(t, stats.Readings, "the caller has said it")
	o = accesslog.Options{Names: []string{file(t, caddyLine+"\n")}}
	_, stats, err = readAll(t, o)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"time": "ts - duration"}, stats.Readings[0].Fields)
	o = accesslog.Options{Names: []string{file(t, line)}, Fields: []string{"host"}}
	_, _, err = readAll(t, o)
	var lacking *accesslog.Error
	require.ErrorAs(t, err, &lacking)
	require.Contains(t, lacking.Hint, "with one of Time, ClientIP, X-User-Id")
}

// A format that does not fit says where.
func TestAFormatThatDoesNotFit(t *testing.T) {
	for format, want := range map[string]string{
		`$remote_addr - $remote_user [$time_local] "$request" $status $rest`: `it can be read in two ways: status is "200" from the left and`,
		`$remote_addr - $remote_user {$time_local} $rest`:                    "it does not have the format's form before time_local",
		`$remote_addr [$time_local] "$request" $a$request_time`:              "nothing separates a from request_time",
		`$remote_addr - $x [$time_local] "$request" $status $a$b "-" "$c"`:   "",
	} {
		_, _, err := readAll(t, accesslog.Options{Names: []string{file(t, combinedLine)}, Format: format, Fields: []string{"client_ip"}})
		if want == "" {
			require.NoError(t, err, format)
			continue
		}
		require.ErrorContains(t, err, want)
	}
}
