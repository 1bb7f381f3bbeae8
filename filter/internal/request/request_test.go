package request

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
)

const absent = "(absent)"

func TestCookieIn(t *testing.T) {
	for header, want := range map[string]string{
		"a=1": "1", "b=2; a=1": "1", "b=2;a=1;a=3": "1", ` a = "x y" `: "x y", `a=""`: "", "a=": "",
		"a=b=c": "b=c", "a=1,2": "1,2", ";;a=1": "1", "xa=2; a=1": "1", "$Version=1; a=1; $Path=/": "1",
		"": absent, "a": absent, "b=a=1": absent, "=1": absent, "b=2, a=1": absent, "$a=1": absent,

		// Node's cookie decodes escapes, and its older releases cut two bytes off a value
		// that begins with a quote. Encoded or not, + stays what it is.
		"a=%41b%63": "Abc", "a=%zz%4": "%zz%4", "a=x%2By": "x+y", "a=x+y": "x+y", `a="%41"`: "A", `a="1x`: "1", `a="`: "",
		// Django strips more than blanks, as JavaScript does, and Python reads escapes in quotes.
		"\xa0a\xa0=\x851\xa0": "1", `a="\101b\c\"\\"`: `Abc"\`, `a=\101`: `\101`, `a="\39\400\"`: `39400\`,
		// For http.cookies of Python a blank ends a value.
		"a=1 b=2": "1", "a=1\tb": "1", "b=2 a=1": absent,
		// ASP.NET knows no case of names.
		"A=1": "1", "A=1; a=2": "2",
		// Go passes over a value that it takes for broken.
		`a=\1; a=2`: "2", `a="1; a=2`: "2", "a=\xc3\xa9; a=2": "2", `a=\1; a=\2`: `\1`, `a=\1; A=2`: `\1`,
		"a=\t1; a=2": "2", "a=\xa01; a=2": "2", "\xa0a=1; a=2": "2", "a =1\t; a=2": "1", "a= 1; a=2": "1",

		// For Flask and http.cookies of Python quotes go on over ";": these are of one key, whatever is in the quotes.
		`b="; a=1; "; a=2`: "", `b="; a=3; "; a=2`: "", `b = "; a=1; " ; a=2`: "",
		`b="; a=1; c="; a=2`: "", `b="; a=1; "`: "",
		`b="\"; a=1; "; a=2`: "", `a="1; b="; a=2`: "", `a="1; 2"`: "", `a="1; 2";a=2`: "", "b=\"; a=1; \"\xa0; a=2": "",
		// There is no doubt where the quotes end before a ";", do not end, or hide nothing that is read.
		`b="x"; a=1`: "1", `b="; a=1`: "1", `b="; a=1; "x; a=2`: "1", `b="; a=1 \"; a=2`: "2", `b=c"; a=1; "; a=2`: "1",
		`";a=1;";a=2`: "1", `b="; "; a=1`: "1", `b="; a=2; "; a=2`: "2", `b="; c=1; "; a="2"`: "2", `b="; c=1; "`: absent,
	} {
		value, present := cookieOf(header, "a")
		if !present {
			value = absent
		}
		require.Equal(t, want, value, header)
	}
}

// A client that sends one quote must not make every pair cost a look through the rest of the header.
func TestAQuoteMakesPairsCostLittleMore(t *testing.T) {
	header := strings.Repeat("c;", 100_000) + `b="`
	shortest := func(quoted bool) time.Duration {
		took := time.Hour
		for range 5 {
			began := time.Now()
			cookieIn(header, "a", quoted)
			took = min(took, time.Since(began))
		}
		return took
	}
	require.Less(t, shortest(true), 20*shortest(false))
}

// Whatever Go reads as one value is one key, blanks aside, which end a value for Python.
func FuzzCookieIn(f *testing.F) {
	f.Add(`a=\1; a="2"`)
	f.Add(` b; a="1; a = 3 4`)
	f.Fuzz(func(t *testing.T, header string) {
		if strings.ContainsAny(header, "\r\n") {
			return // no header has them
		}
		r := http.Request{Header: http.Header{"Cookie": {header}}}
		read, err := r.Cookie("a")
		if err != nil || read.Value == "" || strings.Contains(read.Value, " ") {
			return
		}
		value, present := cookieIn(header, "a", false)
		require.True(t, present)
		alone, _ := cookieIn("a="+read.Value, "a", false)
		require.Equal(t, alone, value)
		one, _ := cookieOf(header, "a")
		require.Contains(t, []string{value, ""}, one)
	})
}

func TestParameterIn(t *testing.T) {
	for query, want := range map[string]struct {
		value    string
		doubtful bool
	}{
		"p_q=1":       {"1", false},
		"x=2&p_q=1&y": {"1", false},
		"%70%5Fq=%31": {"1", false},
		"p_q":         {"", false},
		"p_q=1&p_q=1": {"1", false},
		"p_q=+a%2b":   {" a+", false}, "p_q=%3B1": {";1", false},
		"": {absent, false}, "p_q2=1": {absent, false}, "xp_q=1": {absent, false}, "x=p_q=1": {absent, false},

		"p_q=1&p_q=2": {"1", true},
		// Some split a query at ";" too.
		"p_q=1;x=2":       {"1", true},
		"p_q=1;":          {"1", true},
		"x=2;p_q=1":       {"1", true},
		"x=2;p_q=1&p_q=3": {"3", true},
		"p_q=1;p_q=2":     {"1", true},
		// Names without regard to case, lists, and what PHP makes of a name.
		"P_Q=1":        {"1", true},
		"P_Q=1&p_q=2":  {"2", true},
		"p_q[]=1":      {"1", true},
		"p_q%5B0%5D=1": {"1", true},
		"p.q=1":        {"1", true},
		"p+q=1":        {"1", true},
		"+p_q=1":       {"1", true}, "p[q=1": {"1", true}, "p_q%00x=1": {"1", true},
		// Rack 2 and qs drop brackets around a name; IIS knows escapes of its own.
		"[p_q]=1":      {"1", true},
		"%5B[p_q=1":    {"1", true},
		"p_q]=1":       {"1", true},
		"%u0070_q=1":   {"1", true},
		"%u0050.q[]=1": {"1", true},
		"%u0170_q=1":   {absent, false}, "%u00p_q=1": {absent, false},
	} {
		value, present, doubtful := parameterIn(query, "p_q")
		if !present {
			value = absent
		}
		require.Equal(t, want.value, value, query)
		require.Equal(t, want.doubtful, doubtful, query)
	}
}

func TestMetadataValue(t *testing.T) {
	m := hosttest.Metadata(t,
		`{"other":{"k":"no"},"ns":{"k":"text","":"empty name","n":42,"x":-0.5,"big":1e21,"small":1e-7,"zero":0,
			"id":123456789012,
		"yes":true,"no":false,"none":null,"blank":"","s":{"a.b":{"c":"deep"}},"l":["a",["b",7],{"k":"v"}],"el":[]},
			"empty":{}}`)
	for path, want := range map[string]string{
		"ns/k":          "text",
		"ns/":           "empty name",
		"ns/n":          "42",
		"ns/x":          "-0.5",
		"ns/big":        "1e+21",
		"ns/small":      "1e-07",
		"ns/zero":       "0",
		"ns/id":         "123456789012",
		"ns/yes":        "true",
		"ns/no":         "false",
		"ns/blank":      "",
		"ns/s/a.b/c":    "deep",
		"ns/l/0":        "a",
		"ns/l/1/1":      "7",
		"ns/l/2/k":      "v",
		"other/k":       "no",
		"ns/none":       "-",
		"ns/s":          "-",
		"ns/s/a.b":      "-",
		"ns/l":          "-",
		"ns/l/3":        "-",
		"ns/l/x":        "-",
		"ns/l/-1":       "-",
		"ns/l/99999999": "-",
		"ns/el/0":       "-",
		"ns/k/x":        "-", "ns/missing": "-", "missing/k": "-", "empty/k": "-", "ns": "-",
	} {
		value, present := metadataValue(m, strings.Split(path, "/"))
		if want == "-" {
			require.False(t, present, path)
			continue
		}
		require.True(t, present, path)
		require.Equal(t, want, value, path)
	}
	require.Equal(t, "0", numberText(math.Copysign(0, -1)))
}

// Whatever the bytes, reading ends; of a sound message it says what the
// library does.
func FuzzMetadata(f *testing.F) {
	f.Add([]byte(hosttest.Metadata(f, `{"ns":{"k":"text","n":4,"l":["a",["b"]],"s":{"k":{"k":true}}}}`)))
	f.Add([]byte(hosttest.Metadata(f, `{"ns":{"k":7,"s":{"k":{"k":null}}},"":{"k":false}}`)))
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, b []byte) {
		metadataValue(string(b), []string{"ns", "l", "1", "0"})
		metadataValue(string(b), []string{"ns", "s", "k", "k"})
		var m corev3.Metadata
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		sound, err := proto.Marshal(&m)
		require.NoError(t, err)
		for namespace, fields := range m.GetFilterMetadata() {
			for name, value := range fields.GetFields() {
				got, present := metadataValue(string(sound), []string{namespace, name})
				switch kind := value.GetKind().(type) {
				case *structpb.Value_StringValue:
					require.Equal(t, kind.StringValue, got)
				case *structpb.Value_BoolValue:
					require.Equal(t, strconv.FormatBool(kind.BoolValue), got)
				case *structpb.Value_NumberValue:
					require.Equal(t, numberText(kind.NumberValue), got)
				default:
					require.False(t, present)
					continue
				}
				require.True(t, present)
			}
		}
	})
}
