package usage

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestServerSentEventsAreReadAsTheStandardSays(t *testing.T) {
	const first, second = `data: {"response":"a"}`, `data: {"prompt_eval_count":3,"eval_count":5}`
	whole := said(3, 5, 1, 1)
	for stream, want := range map[string]Usage{
		first + "\n\n" + second + "\n\n":                                                       whole,
		byteOrderMark + first + "\n\n" + second + "\n\n":                                       whole,
		": hello\nid: 1\n" + first + "\n\n:\n\n\n\n" + second + "\n\n":                         whole,
		"event: data\nretry: 10\ndatum: {}\n" + first + "\nid\n\n" + second + "\nevent: x\n\n": whole,
		`data:{"response":"a"}` + "\n\n" + "data:\t" + second[6:] + "\n\n":                     whole,
		"data: {\ndata: \"response\"\ndata:: \"a\"\ndata: }\n\n" + second + "\n\n":             whole,
		"data\ndata: {\ndata\ndata:\ndata: \"response\": \"a\"}\ndata\n\n" + second + "\n\n":   whole,
		// Without its empty line.
		first + "\n\n" + second + "\n":                            whole,
		first + "\n\n" + second:                                   whole,
		first + "\n\n" + second + "\n\ndata: [DONE]\n\n":          whole,
		first + "\n\n" + second + "\n\ndata: \"prompt_eval_count": whole,
		// It begins like a byte order mark.
		`data: {"response":"！"}` + "\n\n" + second + "\n\n":       said(3, 5, 1, 3),
		first + "\n\ndata: ping\n\ndata: 1\n\n" + second + "\n\n": whole,
		// A byte order mark behind the beginning is part of a name.
		first + "\n\n" + second + "\n\n" + byteOrderMark + "data: {\"eval_count\":9}\n\n": whole,

		// Counts of an event that is no JSON are less than known, until a later one has them.
		first + "\n\n" + second + "\n\ndata: {\"eval_count\":9,\n\n": {
			Input:      3,
			InputKnown: true,
			Output:     9,
			TextEvents: 1,
			TextBytes:  1,
		},
		first + "\n\n" + second + "}\n\n":                                                 unsaid(3, 5, 1),
		first + "\n\n" + second + "\n" + second + "\n\n":                                  unsaid(3, 5, 1),
		first + "\n\ndata: {\"eval_count\":9,\n\n" + second + "\n\n":                      whole,
		"data: {\"response\":\"a\ndata: b\"}\n\n" + second + "\n\n":                       whole, // a line ends in a string
		"data: {\"response\":\"a\"}\n\ndata: {\"prompt_eval_count\":1\ndata: 3}\n\n":      unsaid(1, 0, 1),
		"Data: {}\n\n data: {}\n\ndata : {}\n\n" + "dat\xef\xbb\xbfa: {\"response\":1}\n": {Failure: Foreign},
		"": {Failure: Foreign},
	} {
		for _, lineEnd := range []string{"\n", "\r\n", "\r"} {
			body := strings.ReplaceAll(stream, "\n", lineEnd)
			want.Bytes = int64(len(body))
			for size := range len(body) + 1 {
				require.Equal(t, want, scan(eventsType, body, size), "%q in chunks of %d", body, size)
				require.Equal(t, want, scanParts(eventsType, body, size), "%q divided at %d", body, size)
			}
		}
	}
}

func TestEachLineIsAnEvent(t *testing.T) {
	const line = `{"response":"a","prompt_eval_count":3,"eval_count":5}`
	for body, want := range map[string]Usage{
		line:                      said(3, 5, 1, 1),
		"\n" + line + "\r\n \n":   said(3, 5, 1, 1),
		line + "\n" + line + "\n": said(3, 5, 2, 2),
		line + "\n{\"eval_count\":\n6}\n": {
			Input:       3,
			InputKnown:  true,
			Output:      5,
			OutputKnown: true,
			TextEvents:  1,
			TextBytes:   1,
		},
		line + "\n{\"eval_count\":6\n}\n": {
			Input:       3,
			InputKnown:  true,
			Output:      5,
			OutputKnown: true,
			TextEvents:  1,
			TextBytes:   1,
		},
		line + "\n{\"eval_count\":6,\n}\n": {Input: 3, InputKnown: true, Output: 6, TextEvents: 1, TextBytes: 1},
		line + line + "\n":                 unsaid(3, 5, 1),
		"[" + line + "]\n":                 said(3, 5, 1, 1),
		"<html>\n":                         {Failure: Foreign},
	} {
		want.Bytes = int64(len(body))
		require.Equal(t, want, scan(linesType, body, 0), body)
		require.Equal(t, want, scan(linesType, body, 1), body)
	}
}

// Text is counted as the bytes that it has in UTF-8.
func TestTextCountsInUTF8(t *testing.T) {
	for text, want := range map[string]int64{
		`a`:                    1,
		`a b`:                  3,
		`\n\t\"\\\/`:           5,
		`é`:                    2,
		`\u00e9`:               2,
		`\u00E9`:               2,
		`中`:                    3,
		`\u4e2d`:               3,
		`🙂`:                    4,
		`\ud83d\ude42`:         4,
		`\u001f`:               1,
		`{\"response\":\"x\"}`: 16, `01234567\n01234567890123456789`: 29,
	} {
		body := `{"response":"` + text + `"}`
		for size := range len(body) {
			u := scan(jsonType, body, size)
			require.Equal(t, Usage{TextEvents: 1, TextBytes: want, Bytes: int64(len(body))}, u, text)
		}
	}
}

func TestMalformedAnswersHaveFailures(t *testing.T) {
	for _, body := range []string{
		`1`,
		`"a"`,
		`null`,
		`<html>`,
		`{]`,
		`[}`,
		`{}}`,
		`{}{}`,
		`[]]`,
		`{"a"}`,
		`{"a",1}`,
		`{"a":}`,
		`{"a":1,}`,
		`{,}`,
		`{a:1}`,
		`{"a":1 "b":2}`,
		`[1,]`,
		`[,]`, `[1:2]`, `{"a":1:2}`, `{"a"::1}`, `{"a":"\x"}`, `{"a":"\u12g4"}`,
		"{\"a\":\"\n\"}", `{"a":"b"` + "\x00}", `{1:2}`, `{"a":'b'}`,
		"\x1f\x8b\x08gzip", `[[1],2]}`, `{"a":+}`,
	} {
		u := scan(jsonType, body, 1)
		require.Equal(t, Malformed, u.Failure, body)
	}
	u := scan(jsonType, `{"prompt_eval_count":1,"eval_count":2}{}`, 0)
	require.Equal(t, Usage{Input: 1, Output: 2, Failure: Malformed, Bytes: 40}, u, "what was said is no less than a floor")
}

func TestFramesAreReadIfTheirChecksumsAreRight(t *testing.T) {
	text := frame("contentBlockDelta", `{"delta":{"text":"Hello"}}`)
	metadata := frame("metadata", `{"usage":{"inputTokens":2,"outputTokens":3}}`)
	whole := said(2, 3, 1, 5)
	broken := unsaid(2, 3, 5)
	broken.Failure = Malformed
	// Of a frame with a byte more or less anywhere nothing is known.
	for at := range metadata {
		changed := []byte(metadata)
		changed[at] ^= 1
		u := scan(framesType, text+string(changed), 0)
		require.False(t, u.InputKnown || u.OutputKnown, "byte %d", at)
		require.Equal(t, u, scan(framesType, text+string(changed), 1))
	}
	for name, step := range map[string]struct {
		stream string
		want   Usage
	}{
		"both":                      {text + metadata, whole},
		"a document without counts": {text + metadata + sealed(16, 0, ""), whole},
		"no JSON":                   {text + metadata + sealed(18, 0, "hi"), whole},
		"headers alone":             {text + metadata + sealed(18, 2, "hi"), whole},
		"cut within a prelude":      {text + metadata + metadata[:11], whole},
		"cut after the prelude":     {text + metadata + metadata[:12], whole},
		"cut before the checksum":   {text + metadata[:len(metadata)-1], unsaid(2, 3, 5)},
		"after a broken one":        {text + metadata + "Hello, frame" + metadata, broken},
		"shorter than its parts":    {text + metadata + sealed(15, 0, ""), broken},
		"shorter than its headers":  {text + metadata + sealed(17, 2, "hi"), broken},
		"no length":                 {text + metadata + sealed(0, 0, ""), broken},
		"headers too long":          {text + metadata + sealed(1<<20, 1<<17+1, ""), broken},
		"lengths that overflow":     {text + metadata + sealed(10, 1<<32-6, ""), broken},
		"too long":                  {text + metadata + sealed(1<<24+17, 0, ""), broken},
		"as long as it may be":      {text + metadata + sealed(1<<24+16, 0, "")[:12], whole},
	} {
		step.want.Bytes = int64(len(step.stream))
		step.want.IsBedrock = true
		for size := range len(step.stream) {
			require.Equal(t, step.want, scan(framesType, step.stream, size), name)
		}
	}
}

// Events that InvokeModelWithResponseStream wraps read like others, and are as doubtful as their frames.
func TestWrappedEvents(t *testing.T) {
	text := invoked(`{"delta":{"text":"Hi???"}}`)
	usage := invoked(`{"usage":{"inputTokens":2,"outputTokens":3}}`)
	event := base64.StdEncoding.EncodeToString([]byte(`{"usage":{"inputTokens":9}}`))
	wrapped := func(event string) string { return frame("chunk", `{"bytes":"`+event+`"}`) }
	cached := invoked(`{"type":"message_start","message":{"usage":{"input_tokens":2,"cache_read_input_tokens":7}}}`)
	notSeen := Usage{Input: 9, CacheRead: 7, Failure: Malformed}
	whole, doubtful := said(2, 3, 1, 5), Usage{Input: 9, Output: 3, OutputKnown: true, TextEvents: 1, TextBytes: 5}
	for name, step := range map[string]struct {
		stream string
		want   Usage
	}{
		"both":                      {text + usage, whole},
		"a frame without one":       {text + usage + frame("e", `{"message":"no"}`), whole},
		"cut within a prelude":      {text + usage + usage[:11], whole},
		"cut after a prelude":       {text + usage + usage[:12], whole},
		"a prelude that is broken":  {cached + "Hello, frame", notSeen},
		"cut before a checksum":     {text + usage[:len(usage)-1], unsaid(2, 3, 5)},
		"slashes that are escaped":  {text + slashed(`{"delta":"???"}`) + usage, said(2, 3, 2, 8)},
		"without padding":           {text + usage + wrapped(strings.TrimRight(event, "=")), said(9, 3, 1, 5)},
		"a letter that is no digit": {text + usage + wrapped(event[:35]+"*"+event[35:]), doubtful},
		"an event without its end":  {text + usage + invoked(`{"usage":{"inputTokens":9}`), doubtful},
		"around it no quote":        {text + usage + frame("chunk", `{"bytes":"`+event), doubtful},
		"around it no brace":        {text + usage + frame("chunk", `{"bytes":"`+event+`"`), doubtful},
		"around it no JSON":         {text + usage + wrapped(event+`\x`), doubtful},
		"what is no string":         {text + usage + frame("chunk", `{"bytes":{"usage":{"inputTokens":9}}}`), whole},
		"nothing":                   {text + usage + wrapped(""), whole},
		"an event of nothing":       {text + usage + wrapped("e30="), whole},
	} {
		step.want.Bytes = int64(len(step.stream))
		step.want.IsBedrock = true
		for size := range len(step.stream) {
			require.Equal(t, step.want, scan(framesType, step.stream, size), name)
		}
	}
	body := `{"bytes":"` + event + `"}`
	require.Equal(t, Usage{TextEvents: 1, TextBytes: int64(len(event)), Bytes: int64(len(body))}, scan(jsonType, body, 0))
}

// slashed wraps an event, with escapes for slashes.
func slashed(event string) string {
	digits := base64.StdEncoding.EncodeToString([]byte(event))
	return frame("chunk", `{"bytes":"`+strings.ReplaceAll(digits, "/", `\/`)+`"}`)
}
