package request

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
