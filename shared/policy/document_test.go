package policy_test

import (
	"encoding/json"
	"fmt"
	"strconv"
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
		{"empty", "", "empty_document"},
		{"spaces", " \n", "empty_document"},
		{"too large", strings.Repeat(" ", 2<<20), "too_large"},
		{"byte order mark", "\uFEFF{}", "1:1: invalid_json"},
		{"two values", "{} {}", "1:4: invalid_json"},
		{"NaN", "nan", "1:1: invalid_json"},
		{"infinity", "-inf", "1:1: invalid_json"},
		{"plus", "+1", "1:1: invalid_json"},
		{"leading zero", "[01]", "1:3: invalid_json"},
		{"negative leading zero", "-00", "1:3: invalid_json"},
		{"no fraction", "1.", "1:1: invalid_json"},
		{"no exponent", "[1e+]", "1:2: invalid_json"},
		{"two signs", "1e+-1", "1:1: invalid_json"},
		{"trailing comma", "[1,]", "1:4: invalid_json"},
		{"trailing comma in an object", `{"a":1,}`, "1:8: invalid_json"},
		{"no comma", "[1\n 2]", "2:2: invalid_json"},
		{"no colon", `{"a" 1}`, "1:6: invalid_json"},
		{"no quotes", `{version: 1}`, "1:2: invalid_json"},
		{"comment", "{} // x", "1:4: invalid_json"},
		{"a word that goes on", "truer", "1:5: invalid_json"},
		{"unknown escape", `"\x"`, "1:2: invalid_json"},
		{"short escape", `"\u12"`, "1:2: invalid_json"},
		{"escape at the end", `"\`, "1:2: invalid_json"},
		{"lone surrogate", "\n \"a\\ud800\"", "2:4: invalid_json"},
		{"low surrogate", `"\udc00\ud800"`, "1:2: invalid_json"},
		{"control character", "\"é\x01\\n\"", "1:3: invalid_json"},
		{"no UTF-8", "[\"\xff\"]", "1:3: invalid_json"},
		{"no quote", "[\n\"ab", "2:4: invalid_json"},
		{"deep", strings.Repeat("[", 1<<20), "1:33: too_deep"},
		{"unclosed", `{"a":1`, "1:7: invalid_json"},
		{"long text in the message", "t" + strings.Repeat("x", 500), "1:1: invalid_json"},
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
	require.Equal(t, `>{"b":[1e3,"é\u2028\"\\\u0001/"],"a":{},"c":[null,false]}`,
		string(policy.AppendJSON([]byte(">"), n)))
}

// ParseJSON takes what encoding/json takes, apart from what its doc says it
// does not; what it takes means the same, and survives writing and reading.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,-0,1.5e-3,true,false,null,"\u00e9\ud83d\ude00\\\"\/\b\f\n\r\t"],"a":{}}`,
		`{"a\"b\\":{"":[[]]}}`, `nan`, `-inf`, `01`, `1.`, `"\ud800"`, `"\ud800\u0041"`, "\"\x01\"", "\"\xff\"", `"\x"`,
		`[1,]`, `{} {}`,
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

// TestNumbersOfAStruct: a number that went through floating point, as in Istio,
// is the one that was written, in whatever notation it comes out.
func TestNumbersOfAStruct(t *testing.T) {
	for text, want := range map[string]uint32{
		"1000000": 1000000, "1e+06": 1000000, "1E6": 1000000, "1.0e+06": 1000000, "1000000.0": 1000000,
		"4.294967295e+09": 4294967295,
		"4294967295":      4294967295, "10.00": 10, "1.2e1": 12, "0.5e1": 5, "500e-2": 5,
	} {
		doc := parse(t, fmt.Sprintf(`{"version":1.0,"rules":[{"name":"a","limits":[{"requests":%s,"per":"1m"}]}]}`, text))
		p, problems := policy.ReadPushed(doc)
		require.Empty(t, problems, text)
		require.Equal(t, want, p.Rules[0].Limits[0].Limit, text)
	}
	// The largest number there may be is far below 2^53, where doubles stop
	// being exact: one that was rounded is refused.
	for _, text := range []string{"4294967296", "4.294967296e+09", "9007199254740993", "9007199254740992", "1e19",
		"1.5", "1e-1", "12345.6e0", "1.5e-99999999999999999999", "1e99999999999999999999"} {
		doc := parse(t, fmt.Sprintf(`{"version":1,"rules":[{"name":"a","limits":[{"requests":%s,"per":"1m"}]}]}`, text))
		_, problems := policy.ReadPushed(doc)
		require.Len(t, problems, 1, text)
		require.Equal(t, policy.WrongValue, problems[0].Code)
	}
}

// A policy near the largest: what reading it costs in a worker's configuration.
func BenchmarkRead(b *testing.B) {
	var rules []string
	for i := range 5_000 {
		n := strconv.Itoa(i)
		rules = append(rules, `{"name":"rule-`+n+`","match":{"paths":["/v`+n+`/*"],"hosts":["a.example.com"]},`+
			`"key":[{"header":"x-user-id"},"client_ip"],"limits":["10/1s",{"requests":1000,"per":"1d"}]}`)
	}
	data := []byte(`{"version":1,"rules":[` + strings.Join(rules, ",") + `]}`)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		n, err := policy.ParseJSON(data)
		require.NoError(b, err)
		_, errs := policy.Read(n)
		require.Empty(b, errs)
	}
}
