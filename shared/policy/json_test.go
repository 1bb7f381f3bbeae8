package policy_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func TestParseJSON(t *testing.T) {
	n := parse(t, " {\"a\\u0062\": [1.50, true, null, \"\\ud83d\\ude00\\/\\\"\"], \"x\": {}, \"x\": []}\r\n")
	require.Equal(t, &policy.Node{Kind: policy.Object, Fields: []policy.Field{
		{Name: "ab", Value: &policy.Node{Kind: policy.List, Items: []*policy.Node{
			{Kind: policy.Number, Text: "1.50"},
			{Kind: policy.Bool, Text: "true"},
			{Kind: policy.Null},
			{Kind: policy.String, Text: "😀/\""},
		}}},
		{Name: "x", Value: &policy.Node{Kind: policy.Object}},
		{Name: "x", Value: &policy.Node{Kind: policy.List}},
	}}, n)
}

func TestParseJSONErrors(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"empty", "", "the policy is empty"},
		{"spaces", " \n", "the policy is empty"},
		{"too large", strings.Repeat(" ", 2<<20), "the policy is 2097152 bytes, the most is 1048576"},
		{"byte order mark", "\uFEFF{}", "1:1: invalid JSON: a byte order mark is no part of JSON"},
		{"two values", "{} {}", `1:4: invalid JSON: unexpected "{" after the document`},
		{"NaN", "nan", `1:1: invalid JSON: unexpected "nan" where a value belongs`},
		{"infinity", "-inf", "1:2: invalid JSON: a number lacks its digits"},
		{"plus", "+1", `1:1: invalid JSON: unexpected "+1" where a value belongs`},
		{"leading zero", "[01]", "1:2: invalid JSON: a number does not begin with 0"},
		{"negative leading zero", "-00", "1:2: invalid JSON: a number does not begin with 0"},
		{"no fraction", "1.", `1:3: invalid JSON: a number lacks the digits behind its "."`},
		{"no exponent", "[1e+]", "1:5: invalid JSON: a number lacks the digits of its exponent"},
		{"two signs", "1e+-1", "1:4: invalid JSON: a number lacks the digits of its exponent"},
		{"trailing comma", "[1,]", `1:4: invalid JSON: unexpected "]" where a value belongs`},
		{"trailing comma in an object", `{"a":1,}`, `1:8: invalid JSON: unexpected "}" where a field's name in double quotes belongs`},
		{"no comma", "[1\n 2]", `2:2: invalid JSON: unexpected "2" in a list: "," or "]" belongs here`},
		{"no colon", `{"a" 1}`, `1:6: invalid JSON: unexpected "1" behind a field's name: ":" belongs here`},
		{"no quotes", `{version: 1}`, `1:2: invalid JSON: unexpected "version" where a field's name in double quotes belongs`},
		{"comment", "{} // x", `1:4: invalid JSON: unexpected "//" after the document`},
		{"a word that goes on", "truer", `1:5: invalid JSON: unexpected "r" after the document`},
		{"unknown escape", `"\x"`, `1:2: invalid JSON: unknown escape "\\x" in a string: a backslash is written "\\"`},
		{"short escape", `"\u12"`, `1:2: invalid JSON: a \u escape needs four hexadecimal digits`},
		{"escape at the end", `"\`, `1:2: invalid JSON: unknown escape "\\" in a string: a backslash is written "\\"`},
		{"lone surrogate", "\n \"a\\ud800\"", `2:4: invalid JSON: a \u escape that is half of a surrogate pair`},
		{"low surrogate", `"\udc00\ud800"`, `1:2: invalid JSON: a \u escape that is half of a surrogate pair`},
		{"control character", "\"é\x01\\n\"", "1:3: invalid JSON: a control character in a string must be escaped"},
		{"no UTF-8", "[\"\xff\"]", "1:3: invalid JSON: text that is not UTF-8"},
		{"no quote", "[\n\"ab", "2:4: invalid JSON: a string without closing quote"},
		{"deep", strings.Repeat("[", 1<<20), "1:33: invalid JSON: lists and objects nest more than 32 deep"},
		{"unclosed", `{"a":1`, `1:7: invalid JSON: unexpected end in an object: "," or "}" belongs here`},
		{"long text in the message", "t" + strings.Repeat("x", 500), "1:1: invalid JSON: unexpected \"t" + strings.Repeat("x", 59) + "…\" where a value belongs"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n, err := policy.ParseJSON([]byte(tt.text))
			require.Nil(t, n)
			require.EqualError(t, err, tt.want)
		})
	}
}

func TestAppendJSON(t *testing.T) {
	n := parse(t, `{ "b" : [ 1e3, "é\u2028\"\\\u0001/" ], "a" : { }, "c": [null, false] }`)
	require.Equal(t, `>{"b":[1e3,"é\u2028\"\\\u0001/"],"a":{},"c":[null,false]}`, string(policy.AppendJSON([]byte(">"), n)))
}

// ParseJSON takes what encoding/json takes, apart from what its doc says it
// does not; what it takes means the same, and survives writing and reading.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,-0,1.5e-3,true,false,null,"\u00e9\ud83d\ude00\\\"\/\b\f\n\r\t"],"a":{}}`,
		`{"a\"b\\":{"":[[]]}}`, `nan`, `-inf`, `01`, `1.`, `"\ud800"`, `"\ud800\u0041"`, "\"\x01\"", "\"\xff\"", `"\x"`, `[1,]`, `{} {}`,
		"\uFEFF{}", strings.Repeat("[", 33) + strings.Repeat("]", 33), `"\\\\\"`, `"a\`, "\x0b1", `{"a" 1}`, `"\u12G4"`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := policy.ParseJSON(data)
		if err != nil {
			require.True(t, !json.Valid(data) || isStricter(data), "refuses valid JSON: %v", err)
			return
		}
		require.True(t, json.Valid(data), "accepts invalid JSON")
		text := policy.AppendJSON(nil, n)
		again, err := policy.ParseJSON(text)
		require.NoError(t, err)
		require.Equal(t, n, again)
		require.Equal(t, text, policy.AppendJSON(nil, again))
		require.Equal(t, tokens(data), tokens(text))
	})
}

// isStricter reports whether valid JSON is among what ParseJSON says it refuses.
func isStricter(data []byte) bool {
	text := string(data)
	if len(data) > policy.MaxBytes || !utf8.ValidString(text) {
		return true
	}
	var depth int
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber() // or one that no float64 holds is an error
	for {
		token, err := decoder.Token()
		if err != nil {
			break
		}
		switch token {
		case json.Delim('['), json.Delim('{'):
			if depth++; depth > policy.MaxDepth {
				return true
			}
		case json.Delim(']'), json.Delim('}'):
			depth--
		}
		// A lone surrogate becomes U+FFFD.
		if s, ok := token.(string); ok && strings.Contains(s, "\uFFFD") && strings.Contains(strings.ToLower(text), `\ud`) {
			return true
		}
	}
	return false
}

func tokens(data []byte) []json.Token {
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.UseNumber()
	var list []json.Token
	for decoder.More() || len(list) > 0 {
		token, err := decoder.Token()
		if err != nil {
			break
		}
		list = append(list, token)
	}
	return list
}
