package usage

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Each answer reads the same whole, in chunks of every size, and cut in two at every byte.
func TestAnswers(t *testing.T) {
	for _, a := range answers(t) {
		t.Run(a.name, func(t *testing.T) {
			for size := range len(a.body) {
				require.Equal(t, a.want, scan(a.contentType, a.body, size), "in chunks of %d", size)
				require.Equal(t, a.want, scanParts(a.contentType, a.body, size), "divided at %d", size)
			}
		})
	}
}

// An answer that ends anywhere never has more than it has as a whole, nor less than its
// counts so far.
func TestCutAnswers(t *testing.T) {
	for _, a := range answers(t) {
		var last Usage
		for n := range len(a.body) {
			u := scan(a.contentType, a.body[:n], 0)
			require.LessOrEqual(t, u.TextEvents, a.want.TextEvents, a.name)
			require.GreaterOrEqual(t, u.TextBytes, last.TextBytes, a.name)
			require.GreaterOrEqual(t, u.Output, last.Output, "%s: %q", a.name, a.body[:n])
			require.LessOrEqual(t, u.Output, a.want.Output, a.name)
			if a.contentType == jsonType && a.body[0] == '{' {
				require.False(t, u.InputKnown || u.OutputKnown, "%s: %q", a.name, a.body[:n])
			}
			require.NotEqual(t, Malformed, u.Failure, "%s: %q", a.name, a.body[:n])
			last = u
		}
	}
}

func TestCounts(t *testing.T) {
	const text = `"choices":[{"text":"x"}]` // so that it is no answer of a foreign API
	input := func(n int64) Usage { return Usage{Input: n, InputKnown: true, TextEvents: 1, TextBytes: 1} }
	for usage, want := range map[string]Usage{
		`{"prompt_tokens":7}`:                                     input(7),
		`{"prompt_tokens":0}`:                                     input(0),
		`{"prompt_tokens":9007199254740992}`:                      input(1 << 53),
		"{ \"prompt_tokens\"\t:\r\n7 }":                           input(7),
		`{"prompt_tokens":7,"prompt_tokens":8}`:                   input(8), // the last one holds
		`{"prompt_tokens":7},"usage":{"prompt_tokens":8}`:         input(8),
		`{"prompt_tokens":7},"usage":null`:                        input(7),
		`{"prompt_tokens":7,"prompt_tokens":null}`:                input(7),
		`{"prompt_tokens":-1,"prompt_tokens":7}`:                  input(7),
		`{"prompt\u005ftok\u0065ns":7}`:                           input(7),
		`{"prompt_tokens":7,"input_tokens":9}`:                    input(7), // the table's first API
		`{"prompt_tokens":7,"cache_read_input_tokens":9}`:         input(7), // it is a part there
		`{"input_tokens":7,"cache_read_input_tokens":9}`:          input(16),
		`{"prompt_tokens":7,"a":{"prompt_tokens":8}}`:             input(7), // what stands elsewhere
		`{"prompt_tokens":7},"a":[{"usage":{"prompt_tokens":8}}]`: input(7),
		`{"prompt_tokens":7},"a":{"usage":{"prompt_tokens":8}}`:   input(7),
		`{"prompt_tokens":7},"usage.prompt_tokens":8`:             input(7),
		`{"prompt_tokens":7},"prompt_tokens":8`:                   input(7),
		`{"prompt_tokens":7,"prompt_token":8,"prompt_tokens_":8,"\u0000prompt_tokens":8,"Prompt_tokens":8,"prompt_tökens":8}`: input(7),

		// What is no count leaves unknown what was said last.
		`{"prompt_tokens":7,"prompt_tokens":-1}`:                              unsaid(7, 0, 1),
		`{"prompt_tokens":7,"prompt_tokens":8.5}`:                             unsaid(7, 0, 1),
		`{"prompt_tokens":8.0}`:                                               unsaid(0, 0, 1),
		`{"prompt_tokens":1.07766279631452241920}`:                            unsaid(0, 0, 1), // 0, in 64 bits
		`{"prompt_tokens":1e3}`:                                               unsaid(0, 0, 1),
		`{"prompt_tokens":-0}`:                                                unsaid(0, 0, 1),
		`{"prompt_tokens":9007199254740993}`:                                  unsaid(0, 0, 1),
		`{"prompt_tokens":18446744073709551617}`:                              unsaid(0, 0, 1),
		`{"prompt_tokens":1` + strings.Repeat("0", 300) + `}`:                 unsaid(0, 0, 1),
		`{"prompt_tokens":"7"}`:                                               unsaid(0, 0, 1),
		`{"prompt_tokens":true}`:                                              unsaid(0, 0, 1),
		`{"prompt_tokens":[7]}`:                                               unsaid(0, 0, 1),
		`{"prompt_tokens":{"prompt_tokens":7}}`:                               unsaid(0, 0, 1),
		`[{"prompt_tokens":7}]`:                                               unsaid(0, 0, 1),
		`{"input_tokens":7,"cache_read_input_tokens":-9}`:                     unsaid(7, 0, 1),
		`{"prompt_tokens":-7,"input_tokens":9}`:                               input(9),
		`null`:                                                                unsaid(0, 0, 1),
		`{"a":` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + `}`: {TextEvents: 1, TextBytes: 1, Failure: Malformed},
	} {
		body := `{` + text + `,"usage":` + usage + `}`
		want.Bytes = int64(len(body))
		require.Equal(t, want, scan(jsonType, body, 0), usage)
		require.Equal(t, want, scan(jsonType, body, 1), usage)
	}
}

func TestContentTypes(t *testing.T) {
	const body = `{"usage":{"prompt_tokens":1,"completion_tokens":2}}`
	for contentType, want := range map[string]Failure{
		"application/json": None, "Application/JSON ;charset=utf-8": None, "application/x-ndjson": None, "application/jsonl": None,
		"": UnknownType, "text/html": UnknownType, "application/jsonx": UnknownType, "json": UnknownType, "application/grpc": UnknownType,
		"text/event-stream": Foreign, "application/vnd.amazon.eventstream": Malformed,
	} {
		u := scan(contentType, body, 0)
		require.Equal(t, want, u.Failure, contentType)
		require.Equal(t, want == None, u.InputKnown && u.OutputKnown, contentType)
		require.EqualValues(t, len(body), u.Bytes)
	}
	for encoding, want := range map[string]Failure{"": None, " Identity": None, "gzip": Encoded, "identity, br": Encoded} {
		var s Scanner
		s.Reset(jsonType, encoding)
		s.Write([]byte(body))
		u := s.End()
		require.Equal(t, want, u.Failure, encoding)
	}
}

// A scanner has no memory beside itself.
func TestMemory(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(Scanner{}), uintptr(4<<10))
	var s Scanner
	for _, a := range answers(t) {
		body := []byte(a.body)
		require.Zero(t, testing.AllocsPerRun(10, func() {
			s.Reset(a.contentType, "identity")
			for n := range len(body) {
				s.Write(body[n : n+1])
			}
			s.End()
			s.Reset(a.contentType, "")
			s.Write(body)
			s.End()
		}), a.name)
	}
}
