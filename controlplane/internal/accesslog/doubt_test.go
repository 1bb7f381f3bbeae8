package accesslog_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
)

// What becomes of lines that are cut, lack something, or are no requests. No client can
// write another field into a line, or hide what the log is.
func TestLinesInDoubt(t *testing.T) {
	const (
		twoMeanings = `%START_TIME% "%REQ(USER-AGENT)%" "%REQ(X-USER-ID)%" %REQ(:METHOD)% %REQ(:PATH)% %RESPONSE_CODE%`
		afterwards  = `%START_TIME% %REQ(:METHOD)% %REQ(:PATH)% %RESPONSE_CODE% "%REQ(X-USER-ID)%" %DURATION% %REQ(USER-AGENT)%`
		request     = `{"start_time":"2026-01-31T12:00:00Z","method":"GET","path":"/","response_code":200}` + "\n"
		nested      = `{"path":"/x","method":"GET","time":"2026-01-31T12:00:00Z","authority":"a","headers":{"authority":"b"}}` + "\n"
	)
	user := []string{"header:x-user-id"}
	for _, c := range []struct {
		format, log     string // where a line begins with " ", the time is in front of it
		fields          []string
		want            string // of each request that is read
		unknown, noHTTP int64
		why             string
	}{
		{`%START_TIME% %REQ(X-USER-ID):12% %RESPONSE_CODE:3%`, " alice 200\n mallory-of-a 200\n - 200\n", user, "200 alice; 200", 1, 0, `2: REQ(X-USER-ID):12 is "mallory-of-a", and the format cuts it off at 12 bytes`},
		{`{"t":"%START_TIME%","u":"%REQ(X-USER-ID):7%"}`, `{"t":"2026-01-31T12:00:00Z","u":"alice"}` + "\n" + `{"t":"2026-01-31T12:00:00Z","u":"mallory"}` + "\n", user, "alice", 1, 0, "2: "},
		{twoMeanings, " \"curl\" \"mallory\" GET / 200\n \"curl\" \"alice\" \"x\" \"mallory\" GET / 200\n", user, "GET / 200 mallory", 1, 0, "2: it can be read in two ways"},
		{afterwards, ` GET /a 200 "alice" 12 Mozilla/5.0 (X11; Linux)` + "\n", append(user, everyField...), "GET /a 200 alice", 0, 0, ""}, // how long it took is not asked for

		{"", request + `{"time":"2026-01-31T12:00:01Z","level":"info","msg":"started"}` + "\n", nil, "GET / 200", 0, 1, ""},
		{"", request + strings.NewReplacer("200", "0", `"GET"`, "null", `"/"`, "null").Replace(request), nil, "GET / 200", 0, 1, ""},
		{"", envoyLine + "\n" + `[2026-01-31T12:00:00.000Z] "- - -" 0 - 0 154 3 - "-" "-" "-" "-" "-"` + "\n", nil, "GET /v1/a?b=c 200", 0, 1, ""},

		{"", request + strings.Replace(request, `"method":"GET",`, "", 1), []string{"query", "path"}, "GET / 200; / 200", 0, 0, ""},
		{"", request + strings.Replace(request, `"method":"GET",`, "", 1), []string{"query", "method"}, "GET / 200", 1, 0, "2: "},
		{"", strings.Replace(combinedLine, "200", "-", 1), everyField, "GET /", 0, 0, ""},

		{"", nested, []string{"method", "path", "header:authority"}, "GET /x b", 0, 0, ""},
		{"", nested + "\n\n\n\n", []string{"method", "path", "header:authority"}, "GET /x b", 0, 0, ""},
		{"", "\n\n" + nested, []string{"method", "path", "header:authority"}, "GET /x b", 0, 0, ""},
		{"", "starting\n" + nested, []string{"method", "path", "header:authority"}, "GET /x b", 1, 0, "1: "},
	} {
		log := regexp.MustCompile(`(?m)^ `).ReplaceAllString(c.log, "2026-01-31T12:00:00Z ")
		all, stats, err := readAll(t, accesslog.Options{Names: []string{file(t, log)}, Format: c.format, Fields: c.fields})
		require.NoError(t, err, log)
		var got []string
		for _, r := range all {
			words := []string{r.Method, r.Path, strings.TrimPrefix(strconv.Itoa(r.Status), "0")}
			for _, h := range r.Headers {
				words = append(words, h[1])
			}
			got = append(got, strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " "))
		}
		require.Equal(t, c.want, strings.Join(got, "; "), log)
		require.Equal(t, []int64{c.unknown, c.noHTTP}, []int64{stats.Unknown, stats.NoHTTP}, log)
		if c.why != "" {
			require.Contains(t, fmt.Sprintf("%d: %s", stats.Example.Number, stats.Example.Why), c.why)
		}
	}
}

// What may be one header or another is neither, but for what Envoy keeps of a pseudo
// header that it has changed.
func TestOneHeaderOrAnother(t *testing.T) {
	for operator, field := range map[string]string{
		"%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%": "path", "%REQ(X-ENVOY-ORIGINAL-HOST?:AUTHORITY)%": "host",
		"%REQ(:AUTHORITY?HOST)%": "host", "%REQ(X-USER-ID)%": "header:x-user-id",
		"%REQ(X-USER-ID?USER-AGENT)%": "", "%REQ(X-USER-ID?:AUTHORITY)%": "",
	} {
		o := accesslog.Options{Names: []string{file(t, "2026-01-31T12:00:00Z /x\n")}, Format: "%START_TIME% " + operator}
		for _, asked := range []string{"path", "host", "header:x-user-id", "header:user-agent"} {
			o.Fields = []string{asked}
			_, _, err := readAll(t, o)
			if asked == field {
				require.NoError(t, err, operator)
			} else {
				require.ErrorContains(t, err, "does not have the field "+asked, operator)
			}
		}
	}
}

// A path without its query is a path, and lacks the query of a policy that reads it.
func TestPathWithoutQuery(t *testing.T) {
	both := []string{"path", "query"}
	for _, c := range []struct {
		line, format string
		fields       []string
		want         string
	}{
		{"2026-01-31T12:00:00Z /x", "%START_TIME% %PATH(NQ)%", both[:1], "/x"},
		{"2026-01-31T12:00:00Z /x", "%START_TIME% %PATH(NQ)%", both, ""},
		{"2026-01-31T12:00:00Z /x?a=1", "%START_TIME% %PATH%", both, "/x?a=1"},
		{"2026-01-31T12:00:00Z /x?a=1 /x", "%START_TIME% %REQ(:PATH)% %PATH(NQ)%", both, "/x?a=1"},
		{"2026-01-31T12:00:00Z /x /x?a=1", "%START_TIME% %PATH(NQ)% %REQ(:PATH)%", both, "/x?a=1"},
		{`{"a":"/x","b":"/x?a=1","t":"2026-01-31T12:00:00Z"}`, `{"a":"%PATH(NQ)%","b":"%PATH%","t":"%START_TIME%"}`, both, "/x?a=1"},
		{`{"path":"/x","t":"2026-01-31T12:00:00Z"}`, `{"path":"%PATH(NQ)%","t":"%START_TIME%"}`, both[:1], "/x"},
		{`{"path":"/x","t":"2026-01-31T12:00:00Z"}`, `{"path":"%PATH(NQ)%","t":"%START_TIME%"}`, both, ""},
		{`{"path":"/x?a=1","time":"2026-01-31T12:00:00Z"}`, "", both, "/x?a=1"},
		{`{"path_without_query":"/x","start_time":"2026-01-31T12:00:00Z"}`, "", both[:1], "/x"},
		{`{"path_without_query":"/x","start_time":"2026-01-31T12:00:00Z"}`, "", both, ""},
	} {
		all, _, err := readAll(t, accesslog.Options{Names: []string{file(t, c.line+"\n")}, Format: c.format, Fields: c.fields})
		if c.want == "" {
			var lacking *accesslog.Error
			require.ErrorAs(t, err, &lacking, c.format)
			require.ErrorContains(t, err, "does not have the field query,")
			require.Contains(t, lacking.Hint, "by Envoy as %REQ(:PATH)%, by nginx as $request_uri; if the log has it under another name, say --map path=NAME")
			continue
		}
		require.NoError(t, err, c.format)
		require.Equal(t, c.want, all[0].Path, c.format)
	}
}

// --map takes a field away from the name that had it.
func TestMapOfAJSONFormat(t *testing.T) {
	o := accesslog.Options{
		Names:  []string{file(t, `{"t":"2026-01-31T12:00:00Z","peer":"10.0.0.1:80","xff":"192.0.2.1, 192.0.2.7"}`+"\n")},
		Format: `{"t":"%START_TIME%","peer":"%DOWNSTREAM_REMOTE_ADDRESS%","xff":"%REQ(X-FORWARDED-FOR)%"}`,
		Map:    map[string]string{"client_ip": "xff"}, Fields: []string{"client_ip", "header:x-forwarded-for"},
	}
	all, _, err := readAll(t, o)
	require.NoError(t, err)
	require.Equal(t, "192.0.2.7", all[0].ClientIP)
	require.Equal(t, [][2]string{{"x-forwarded-for", "192.0.2.1, 192.0.2.7"}}, all[0].Headers)
	o.Map = map[string]string{"client_ip": "x-forwarded-for"}
	_, _, err = readAll(t, o)
	require.ErrorContains(t, err, "--map client_ip=x-forwarded-for: the format has no x-forwarded-for")
}

// A line that is too long is unknown, also when it is among the first of a log that
// cannot be read twice.
func TestALongLineIsUnknown(t *testing.T) {
	content := "2026-01-31T12:00:00Z 200 app\n2026-01-31T12:00:00Z 200 " + strings.Repeat("x", 10<<20) + "\n"
	for _, o := range []accesslog.Options{{Names: []string{file(t, content)}}, {Names: []string{"-"}, In: strings.NewReader(content)}} {
		o.Format, o.Fields = `%START_TIME% %RESPONSE_CODE% %REQ(USER-AGENT)%`, []string{"header:user-agent"}
		all, stats, err := readAll(t, o)
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.EqualValues(t, 1, stats.Unknown)
		require.Equal(t, "it is too long", stats.Example.Why)
	}
}

// A byte order mark is none of the first line, packed or not.
func TestAByteOrderMark(t *testing.T) {
	const mark = "\uFEFF"
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, err := z.Write([]byte(mark + combinedLine))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	object := `{"time":"2026-01-31T12:00:00Z","method":"GET","path":"/","status":200,"remote_addr":"192.0.2.7"}` + "\n"
	for _, content := range []string{mark + combinedLine, mark + object, zipped.String()} {
		all, stats, err := readAll(t, accesslog.Options{Names: []string{file(t, content)}, Fields: append([]string{"client_ip"}, everyField...)})
		require.NoError(t, err)
		require.Zero(t, stats.Unknown)
		require.Len(t, all, 1)
		require.Equal(t, "192.0.2.7", all[0].ClientIP)
	}
	_, _, err = readAll(t, accesslog.Options{Names: []string{file(t, mark)}, Fields: everyField})
	require.ErrorContains(t, err, "has no lines")
}

// nginx' escape=json has the request line under a name of its own; what else has it is surer.
func TestTheRequestLineOfAJSONLog(t *testing.T) {
	const start = `{"time_iso8601":"2026-01-31T12:00:00+00:00","remote_addr":"192.0.2.7","status":"200","request":`
	for _, c := range []struct{ line, method, path string }{
		{start + `"POST /a?b=\u0022c HTTP/2.0"}`, "POST", `/a?b="c`},
		{start + `"GET /a HTTP/1.1","request_method":"PUT","uri":"/x"}`, "PUT", "/a"},
		{start + `"GET /a HTTP/1.1","request_uri":"/b"}`, "GET", "/b"},
		{start + `"id-1","request_method":"GET","request_uri":"/b"}`, "GET", "/b"},
		{start + `{"method":"GET"},"request_method":"GET","request_uri":"/b"}`, "GET", "/b"},
	} {
		all, stats, err := readAll(t, accesslog.Options{Names: []string{file(t, c.line+"\n")}, Fields: append([]string{"query"}, everyField...)})
		require.NoError(t, err, c.line)
		require.Nil(t, stats.Example, c.line)
		require.Equal(t, c.method+" "+c.path, all[0].Method+" "+all[0].Path, c.line)
	}
	all, stats, err := readAll(t, accesslog.Options{ // a port scan
		Names:  []string{file(t, start+`"GET / HTTP/1.1"}`+"\n"+start+`"\u0016\u0003\u0001"}`+"\n"+start+`""}`+"\n")},
		Fields: everyField,
	})
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.EqualValues(t, 2, stats.NoHTTP)
	_, _, err = readAll(t, accesslog.Options{Names: []string{file(t, start+`"id-1"}`+"\n")}, Fields: everyField})
	require.ErrorContains(t, err, "does not have the field method")
	all, _, err = readAll(t, accesslog.Options{
		Names: []string{file(t, start+`"GET /a HTTP/1.1","uri":"/x"}`+"\n")}, Fields: everyField, Map: map[string]string{"path": "uri"},
	})
	require.NoError(t, err)
	require.Equal(t, "/x", all[0].Path)
	_, _, err = readAll(t, accesslog.Options{
		Names: []string{file(t, start+`"GET /a HTTP/1.1","uri":"/x"}`+"\n")}, Fields: everyField, Map: map[string]string{"path": "none"},
	})
	require.Error(t, err, "the name that the caller says is none of the log's")
}

// A file counts once, however it is named.
func TestALogTwice(t *testing.T) {
	one, other := file(t, combinedLine), file(t, combinedLine)
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(one, link))
	for _, c := range []struct {
		names []string
		want  string
	}{
		{[]string{one, other, one}, one + " is given twice: its requests would count twice"},
		{[]string{one, other, link}, one + " and " + link + " are the same file: its requests would count twice"},
		{[]string{"-", one, "-"}, "- is given twice: its requests would count twice"},
	} {
		_, _, err := readAll(t, accesslog.Options{Names: c.names, In: strings.NewReader(combinedLine), Fields: everyField})
		require.EqualError(t, err, c.want)
	}
	all, _, err := readAll(t, accesslog.Options{Names: []string{"-", one, other}, In: strings.NewReader(combinedLine), Fields: everyField})
	require.NoError(t, err)
	require.Len(t, all, 3)
}

// A log against the order of time has no figures.
func TestALogOutOfOrder(t *testing.T) {
	var lines strings.Builder
	for i := range 1000 {
		at := time.Unix(0, noon).Add(-time.Duration(i) * time.Second).UTC()
		fmt.Fprintf(&lines, `{"start_time":%q,"method":"GET","path":"/"}`+"\n", at.Format(time.RFC3339))
	}
	name := file(t, lines.String())
	_, stats, err := readAll(t, accesslog.Options{Names: []string{name}, Sort: 10 * time.Second})
	require.NoError(t, err)
	require.EqualError(t, stats.CheckOrder(0.1),
		"989 of the first 1000 requests stand further from their place in time than lines are sorted")
	require.NoError(t, stats.CheckOrder(1))
	_, stats, err = readAll(t, accesslog.Options{Names: []string{name}, Sort: time.Hour})
	require.NoError(t, err)
	require.NoError(t, stats.CheckOrder(0))
}

// The grain is that of the coarsest log.
func TestTheGrainOfSeveralLogs(t *testing.T) {
	fine := `{"start_time":"2026-01-31T12:00:00.123Z","method":"GET","path":"/"}` + "\n"
	for _, names := range [][]string{{file(t, fine), file(t, combinedLine)}, {file(t, combinedLine), file(t, fine)}} {
		_, stats, err := readAll(t, accesslog.Options{Names: names})
		require.NoError(t, err)
		require.EqualValues(t, time.Second, stats.GrainNs)
	}
}

// A packed log that ends anywhere before its end is an error; several in one file are
// read to the end of the last.
func TestCutPackedLogs(t *testing.T) {
	var lines strings.Builder
	for i := range 40 {
		lines.WriteString(strings.Replace(combinedLine, "curl", fmt.Sprint("curl ", i*7919), 1))
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, err := z.Write([]byte(lines.String()))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	encoder, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	for _, packed := range []string{zipped.String(), string(encoder.EncodeAll([]byte(lines.String()), nil))} {
		for n := range len(packed) {
			_, _, err := readAll(t, accesslog.Options{Names: []string{"-"}, In: strings.NewReader(packed[:n]), Fields: everyField})
			require.Error(t, err, n)
			_, _, err = readAll(t, accesslog.Options{Names: []string{"-"}, In: strings.NewReader(packed + packed[:n]), Fields: everyField})
			require.True(t, n == 0 || err != nil, n)
		}
		all, _, err := readAll(t, accesslog.Options{Names: []string{file(t, packed+packed)}, Fields: everyField})
		require.NoError(t, err)
		require.Len(t, all, 80)
	}
}
