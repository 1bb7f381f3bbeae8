package usage

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Each answer reads the same whole, in chunks of every size, and cut in two at every byte.
func TestAnswersReadTheSameInAnyChunks(t *testing.T) {
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

func TestCountsAreReadWhereTheTablesSay(t *testing.T) {
	const text = `"choices":[{"text":"x"}]` // so that it is no answer of a foreign API
	input := func(n int64) Usage { return Usage{Input: n, InputKnown: true, TextEvents: 1, TextBytes: 1} }
	for usage, want := range map[string]Usage{
		`{"prompt_tokens":7}`:                                     input(7),
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
		`{"input_tokens":7,"cache_read_input_tokens":9}`:          cachedIn(input(16), 9),
		`{"prompt_tokens":7,"a":{"prompt_tokens":8}}`:             input(7), // what stands elsewhere
		`{"prompt_tokens":7},"a":[{"usage":{"prompt_tokens":8}}]`: input(7),
		`{"prompt_tokens":7},"a":{"usage":{"prompt_tokens":8}}`:   input(7),
		`{"prompt_tokens":7},"usage.prompt_tokens":8`:             input(7),
		`{"prompt_tokens":7},"prompt_tokens":8`:                   input(7),
		`{"prompt_tokens":7,"prompt_token":8,"prompt_tokens_":8,"\u0000prompt_tokens":8,"Prompt_tokens":8,` +
			`"prompt_tökens":8}`: input(7),
		`{"prompt_tokens":7,"completiXn_tokens":8}`: input(7),
		// A tool's arguments may be as deep as a client wants them.
		`{"a":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `,"prompt_tokens":7}`: input(7),

		// What is no count leaves unknown what was said last.
		`{"prompt_tokens":7,"prompt_tokens":-1}`:              unsaid(7, 0, 1),
		`{"prompt_tokens":7,"prompt_tokens":8.5}`:             unsaid(7, 0, 1),
		`{"prompt_tokens":8.0}`:                               unsaid(0, 0, 1),
		`{"prompt_tokens":1.07766279631452241920}`:            unsaid(0, 0, 1), // 0, in 64 bits
		`{"prompt_tokens":1e3}`:                               unsaid(0, 0, 1),
		`{"prompt_tokens":-0}`:                                unsaid(0, 0, 1),
		`{"prompt_tokens":07}`:                                unsaid(0, 0, 1), // no JSON: 7, an error, or octal
		`{"prompt_tokens":7,"prompt_tokens":010}`:             unsaid(7, 0, 1),
		`{"prompt_tokens":007,"input_tokens":9}`:              input(9),
		`{"prompt_tokens":9007199254740993}`:                  unsaid(0, 0, 1),
		`{"prompt_tokens":18446744073709551617}`:              unsaid(0, 0, 1),
		`{"prompt_tokens":1` + strings.Repeat("0", 300) + `}`: unsaid(0, 0, 1),
		`{"prompt_tokens":"7"}`:                               unsaid(0, 0, 1),
		`{"prompt_tokens":true}`:                              unsaid(0, 0, 1),
		`{"prompt_tokens":[7]}`:                               unsaid(0, 0, 1),
		`{"prompt_tokens":{"prompt_tokens":7}}`:               unsaid(0, 0, 1),
		`[{"prompt_tokens":7}]`:                               unsaid(0, 0, 1),
		`{"input_tokens":7,"cache_read_input_tokens":-9}`:     unsaid(7, 0, 1),
		`{"prompt_tokens":-7,"input_tokens":9}`:               input(9),
		`null`:                                                unsaid(0, 0, 1),
		`{"a":` + strings.Repeat("[",
			2000) + strings.Repeat("]", 2000) + `}`: {TextEvents: 1, TextBytes: 1, Failure: Malformed},
	} {
		body := `{` + text + `,"usage":` + usage + `}`
		want.Bytes = int64(len(body))
		require.Equal(t, want, scan(jsonType, body, 0), usage)
		require.Equal(t, want, scan(jsonType, body, 1), usage)
	}
}

// What is deeper than all rows has none, though the name "result" leads from the root to the root.
func TestNoCountIsBelowTheDeepestRow(t *testing.T) {
	nest := func(n int, inner string) string {
		return `{"choices":[{"text":"x"}],` + strings.Repeat(`"result":{`, n) + inner + strings.Repeat(`}`, n+1)
	}
	const text = `"usage":{"prompt_tokens":7}`
	u := scan(jsonType, nest(3, text), 0)
	require.True(t, u.InputKnown)
	require.EqualValues(t, 7, u.Input)
	for n := range 20 {
		u := scan(jsonType, nest(n, `"usage":{},"prompt_tokens":7`), 0)
		require.Zero(t, u.Input, n)
		require.False(t, u.InputKnown, n)
	}
}

// A total has what is in no part, and stands in for a part that is missing. A later 0 or null
// replaces no count, and 0 beside text is none.
func TestTotalsFillMissingParts(t *testing.T) {
	one := Usage{TextEvents: 1, TextBytes: 1}
	input := func(n int64) Usage { return Usage{Input: n, InputKnown: true, TextEvents: 1, TextBytes: 1} }
	both := func(input, output int64) Usage { return said(input, output, 1, 1) }
	output := func(n int64) Usage { return Usage{Output: n, OutputKnown: true, TextEvents: 1, TextBytes: 1} }
	sum := func(n int64) Usage { return Usage{Total: n, TextEvents: 1, TextBytes: 1} }
	for _, step := range []struct {
		usage string // of OpenAI's: I is the input, O the output and T the total
		want  Usage
	}{
		{`I:7,O:9,T:20`, both(7, 13)},
		{`I:7,O:9,T:16`, both(7, 9)},
		{`I:7,O:9,T:3`, both(7, 9)},
		{`I:7,O:9,T:-1`, both(7, 9)},
		{`I:7,O:9,T:null`, both(7, 9)},
		{`I:7,T:20`, both(7, 13)},
		{`I:7,O:0,T:20`, both(7, 13)},
		{`I:7,O:-1,T:20`, both(7, 13)},
		{`I:7,T:20,T:-1`, input(7)},
		{`I:7,T:7`, input(7)},
		{`I:null,O:9,T:20`, both(11, 9)},
		{`O:9,T:3`, output(9)},
		{`T:20`, sum(20)},
		{`I:null,O:null,T:20`, sum(20)},
		{`O:0,T:20`, sum(20)},
		{`"input_tokens":7,"cache_read_input_tokens":5,"output_tokens":9,T:25`, cachedIn(both(12, 13), 5)},
		{`"inputTokens":7,"cacheReadInputTokens":50,"outputTokens":9,"totalTokens":16`,
			ofBedrock(cachedIn(both(57, 9), 50))},
		{`"inputTokens":7,"cacheReadInputTokens":50,"outputTokens":9,"totalTokens":66`,
			ofBedrock(cachedIn(both(57, 9), 50))},

		{`I:7,I:0`, input(7)},
		{`I:7,O:9,I:0,O:0`, both(7, 9)},
		{`I:7,O:9,I:null,O:null`, both(7, 9)},
		{`O:9,T:20,I:0,O:0,T:0`, both(0, 20)},

		{`I:0`, one},
		{`I:0,O:0`, one},
		{`I:0,O:0,T:0`, one},
		{`I:7,O:0,T:7`, input(7)},
		{`I:0,O:9`, both(0, 9)},

		// Fronts have the names of two APIs, and fill those of one.
		{`I:0,O:0,"input_tokens":500,"output_tokens":300`, both(500, 300)},
		{`I:0,O:0,T:0,"input_tokens":500,"output_tokens":300`, both(500, 300)},
		{`I:0,O:0,T:800,"input_tokens":500,"output_tokens":300`, both(500, 300)},
		{`I:0,O:9,"input_tokens":-1`, both(0, 9)},
	} {
		usage := strings.NewReplacer("I:", `"prompt_tokens":`, "O:", `"completion_tokens":`, "T:", `"total_tokens":`)
		body := `{"choices":[{"text":"x"}],"usage":{` + usage.Replace(step.usage) + `}}`
		step.want.Bytes = int64(len(body))
		require.Equal(t, step.want, scan(jsonType, body, 0), step.usage)
	}
}

// A total that an answer said is a floor of the estimate of input and output, also of an answer that cannot be read.
func TestATotalIsAFloorOfTheEstimate(t *testing.T) {
	whole := Usage{Total: 2000, TextEvents: 1, TextBytes: 1}
	for requestBytes, want := range map[int64][2]int64{0: {0, 2000}, 400: {100, 1900}, 8000: {2000, 1}} {
		input, output := whole.Estimate(requestBytes)
		require.Equal(t, want, [2]int64{input, output}, "a total alone")
	}
	body := `[{"choices":[{"text":"x"}],"usage":{"total_tokens":2000}},{"a" 1}]`
	u := scan(jsonType, body, 0)
	require.Equal(t, Malformed, u.Failure)
	for requestBytes, want := range map[int64][2]int64{0: {0, 2000}, 400: {100, 1900}, 8000: {2000, 16}} {
		input, output := u.Estimate(requestBytes)
		require.Equal(t, want, [2]int64{input, output}, "a total of an answer that cannot be read")
	}
}

// Counts of an answer without text may be 0, and of one with text where no API has it the
// output.
func TestCountsWithoutText(t *testing.T) {
	unknown := Usage{Input: 7, InputKnown: true, TextEvents: 1, TextBytes: 5}
	document := `,"results":[{"document":{"text":"Paris"}}]}`
	for body, want := range map[string]Usage{
		`{"usage":{"prompt_tokens":0,"completion_tokens":0}}`:                      said(0, 0, 0, 0),
		`{"usage":{"prompt_tokens":7}}`:                                            said(7, 0, 0, 0),
		`{"usage":{"total_tokens":7}}`:                                             said(7, 0, 0, 0),
		`{"usage":{"total_tokens":7}` + document:                                   said(7, 0, 1, 5),
		`{"usage":{"prompt_tokens":7,"total_tokens":7}` + document:                 said(7, 0, 1, 5),
		`{"usage":{"prompt_tokens":7,"completion_tokens":0}` + document:            said(7, 0, 1, 5),
		`{"usage":{"prompt_tokens":7}` + document:                                  unknown,
		`{"usage":{"prompt_tokens":0,"total_tokens":0}` + document:                 {TextEvents: 1, TextBytes: 5},
		`{"usage":{"prompt_tokens":7,"completion_tokens":null}}`:                   said(7, 0, 0, 0),
		`{"usage":{"prompt_tokens":7,"completion_tokens":-1}}`:                     {Input: 7, InputKnown: true},
		`{"usage":{"prompt_tokens":null,"completion_tokens":0,"total_tokens":81}}`: said(81, 0, 0, 0),
	} {
		want.Bytes = int64(len(body))
		require.Equal(t, want, scan(jsonType, body, 0), body)
	}
}

// What was read from a cache is inside the input of some APIs and beside that of others. Either way
// it is a part of Input, and so is what was written to a cache.
func TestCachesArePartsOfTheInput(t *testing.T) {
	for usage, want := range map[string]Usage{
		`"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":7}`:                     {Input: 9, CacheRead: 7},
		`"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":90}`:                    {Input: 9, CacheRead: 9},
		`"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":null}`:                  {Input: 9},
		`"prompt_tokens":9,"prompt_tokens_details":null`:                                    {Input: 9},
		`"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":7,"cached_tokens":0}`:   {Input: 9, CacheRead: 7},
		`"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":7,"cached_tokens":7.5}`: {Input: 9},
		`"prompt_tokens":9,"prompt_tokens_details":[{"cached_tokens":7}]`:                   {Input: 9},
		`"prompt_tokens":9,"input_tokens_details":{"cached_tokens":7}`:                      {Input: 9},
		`"input_tokens":9,"input_tokens_details":{"cached_tokens":7}`:                       {Input: 9, CacheRead: 7},
		`"input_tokens":9,"prompt_tokens_details":{"cached_tokens":7}`:                      {Input: 9},
		`"prompt_tokens":9,"cached_tokens":7`:                                               {Input: 9, CacheRead: 7},
		`"prompt_tokens":9,"prompt_cache_hit_tokens":7,"prompt_cache_miss_tokens":2`:        {Input: 9, CacheRead: 7},
		`"input_tokens":9,"cache_read_input_tokens":7,"cache_creation_input_tokens":5`: {
			Input: 21, CacheRead: 7, CacheWritten: 5,
		},
		`"input_tokens":0,"cache_read_input_tokens":7,"cache_creation_input_tokens":5`: {
			Input: 12, CacheRead: 7, CacheWritten: 5,
		},
		`"input_tokens":9,"cache_creation_input_tokens":5,"input_tokens_details":{"cached_tokens":90}`: {
			Input: 14, CacheRead: 14,
		},
		`"inputTokens":9,"cacheReadInputTokens":7,"cacheWriteInputTokens":5`: {
			Input: 21, CacheRead: 7, CacheWritten: 5,
		},
		`"prompt_tokens":9,"cache_read_input_tokens":7,"cache_creation_input_tokens":5`:       {Input: 9},
		`"prompt_tokens":0,"prompt_tokens_details":{"cached_tokens":7},"input_tokens":9`:      {Input: 9},
		`"total_tokens":29,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":7}`: {Input: 20},
	} {
		body := `{"choices":[{"text":"x"}],"usage":{` + usage + `}}`
		u := scan(jsonType, body, 0)
		require.Equal(t, want, Usage{Input: u.Input, CacheRead: u.CacheRead, CacheWritten: u.CacheWritten}, usage)
		require.True(t, u.InputKnown, usage)
	}
}

// The name of the model is the first that the answer says whole.
func TestModelIsReadWhereTheTablesSay(t *testing.T) {
	longest := strings.Repeat("m", maxModel)
	for body, want := range map[string]string{
		`{"model":"gpt-5"}`: "gpt-5", `{"modelVersion":"g"}`: "g", `{"message":{"model":"c"}}`: "c",
		`{"response":{"model":"r"}}`: "r", `{"result":{"model":"cf"}}`: "cf", `[{"modelVersion":"g"}]`: "g",
		`{"model":"","message":{"model":"c"}}`:              "c",
		`{"model":"a","model":"b"}`:                         "a",
		`{"model":5,"message":{"model":"c"}}`:               "c",
		`{"model":{"model":"a"}}`:                           "",
		`{"model":["a"]}`:                                   "",
		`{"model":null}`:                                    "",
		`{"a":{"model":"a"}}`:                               "",
		`{"choices":[{"model":"a"}]}`:                       "",
		`{"choices":[{"message":{"model":"a"}}]}`:           "",
		`{"m\u006fdel":"gpt\u002d5\/x"}`:                    "gpt-5/x",
		`{"model":"mod\u00e9le"}`:                           "", // what the scanner does not decode
		`{"model":"a\"b"}`:                                  "",
		`{"model":"a\u0000b","modelVersion":"gpt"}`:         "gpt",
		`{"model":"modéle"}`:                                "modéle",
		`{"model":"` + longest + `"}`:                       longest,
		`{"model":"` + longest + `m"}`:                      "",
		`{"model":"` + longest + `m","modelVersion":"gpt"}`: "gpt",
	} {
		for size := range len(body) {
			require.Equal(t, want, scan(jsonType, body, size).Model, body)
		}
		if body[0] == '{' {
			require.Equal(t, want, scan(eventsType, sse(body), 1).Model, body)
			require.Equal(t, want, scan(framesType, invoked(body), 0).Model, body)
		}
	}
	const cut = `{"model":"gpt-5"`
	require.Empty(t, scan(jsonType, cut[:len(cut)-1], 0).Model, "a name that is not whole")
	require.Equal(t, "gpt-5", scan(jsonType, cut, 0).Model)
	require.Equal(t, Foreign, scan(jsonType, cut+"}", 0).Failure, "a model alone does not tell the API")
	var s Scanner
	s.Reset(jsonType, "")
	s.Write([]byte(cut))
	require.Empty(t, s.End().Model, "nobody asked")
}

// The first bytes tell what an answer is, where its type does not.
func TestFirstBytesTellTheFormat(t *testing.T) {
	const object = `{"usage":{"prompt_tokens":1,"completion_tokens":2}}`
	types := []string{
		"application/json", "Application/JSON ;charset=utf-8", "application/x-ndjson", "application/jsonl",
		"text/event-stream", "", "text/html", "text/plain", "application/jsonx", "json", "application/octet-stream",
	}
	for _, contentType := range types {
		for _, body := range []string{
			object, " \r\n\t" + object, byteOrderMark + object, object + "\n" + object + "\n", "[" + object + "]",
			"data: " + object, "\ndata:" + object + "\n\n", byteOrderMark + "data: " + object,
			"event: x\ndata: " + object, "id: 1\rdata: " + object,
			": hello\n\ndata: " + object, "retry: 9\ndata: " + object,
		} {
			for size := range len(body) {
				want := said(1, 2, 0, 0)
				want.Bytes = int64(len(body))
				require.Equal(t, want, scan(contentType, body, size), "%s: %q", contentType, body)
			}
		}
	}
	for _, body := range []string{
		"", "<html>", "data", "datum: 1", "Data: " + object, "idle", "\xef\xbb", "\xef\xbb{}",
		"\xef\xbb\xbf<html>", "x" + object,
	} {
		for contentType, want := range map[string]Failure{
			"": UnknownType, "text/html": UnknownType, "application/grpc": UnknownType, jsonType: Malformed,
			eventsType: Foreign, linesType: Foreign,
		} {
			if hasNotBegun := body == "" || body == "data" || body == "\xef\xbb"; hasNotBegun && want == Malformed {
				want = Foreign
			}
			require.Equal(t, want, scan(contentType, body, 1).Failure, "%s: %q", contentType, body)
		}
	}
	require.Equal(t, Malformed, scan(framesType, object, 0).Failure)
	require.Equal(t, UnknownType, scan("", frame("metadata", object), 0).Failure)
	encodings := map[string]Failure{"": None, " Identity": None, "gzip": Encoded, "identity, br": Encoded}
	for encoding, want := range encodings {
		var s Scanner
		s.Reset(jsonType, encoding)
		s.Write([]byte(object))
		u := s.End()
		require.Equal(t, want, u.Failure, encoding)
	}
}

// Lines of JSON may have the type of one object, if each has its line.
func TestLinesOfOtherTypes(t *testing.T) {
	const line = `{"response":"a","prompt_eval_count":3,"eval_count":5}`
	for body, want := range map[string]Usage{
		line + "\n" + line:         said(3, 5, 2, 2),
		line + " \r\n\r\n " + line: said(3, 5, 2, 2),
		// Only of one object is it known that no output follows.
		"{\"prompt_eval_count\":3}\n{\"prompt_eval_count\":4}": {Input: 4, InputKnown: true},
		line + line:                   {Input: 3, Output: 5, TextEvents: 1, TextBytes: 1, Failure: Malformed},
		line + "\n[" + line + "]":     {Input: 3, Output: 5, TextEvents: 1, TextBytes: 1, Failure: Malformed},
		"[" + line + "]\n" + line:     {Input: 3, Output: 5, TextEvents: 1, TextBytes: 1, Failure: Malformed},
		line + "\n{\"eval_count\":9,": {Input: 3, InputKnown: true, Output: 9, TextEvents: 1, TextBytes: 1},
	} {
		want.Bytes = int64(len(body))
		for size := range len(body) {
			require.Equal(t, want, scan(jsonType, body, size), body)
		}
	}
}

// The tables of names and of nodes number their entries in a byte.
func TestTablesFitTheirNumbers(t *testing.T) {
	tree := newTree()
	require.Less(t, tree.names, 256)
	require.Less(t, tree.nodes, 256)
	for n := range tree.names {
		require.LessOrEqual(t, len(tree.spelt[n+1].text), maxName)
	}
	isTracked := func(path string) {
		const arrayAndResult = 2
		depth := strings.Count(path, ".") + strings.Count(path, "[]") + arrayAndResult
		require.Less(t, depth, trackedDepth-1, path)
	}
	for _, r := range counts {
		isTracked(r.path)
	}
	for _, r := range texts {
		isTracked(r.path)
	}
}

// Of two entries for one place the tree would have only one.
func TestTablesHaveEachPlaceOnce(t *testing.T) {
	tree := newTree()
	nodes := tree.nodes
	for i, r := range counts {
		require.Same(t, &counts[i], tree.places[tree.nodeAt(r.path)].row, r.path)
	}
	for _, m := range marks {
		require.Equal(t, m.mark, tree.places[tree.nodeAt(m.path)].mark, m.path)
	}
	for _, r := range texts {
		of, isObject := strings.CutSuffix(r.path, ".")
		at := &tree.places[tree.nodeAt(of)]
		if isObject {
			require.Equal(t, r.kind, at.object, r.path)
		} else {
			require.Equal(t, r.kind, at.kind, r.path)
		}
	}
	for _, a := range aliases {
		require.Equal(t, tree.nodeAt(a.same), tree.field(tree.nodeAt(a.object), tree.add(a.name)), "%+v", a)
	}
	for _, list := range envelope {
		for _, s := range strings.Fields(list.names) {
			require.Equal(t, list.kind, tree.kinds[tree.add(s)], s)
		}
	}
	require.Equal(t, nodes, tree.nodes, "an alias hides a path")
}

// A scanner has no memory beside itself.
func TestScannerAllocatesNothing(t *testing.T) {
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
