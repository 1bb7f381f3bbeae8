package usage

import (
	"strings"
	"testing"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

const (
	jsonType   = "application/json"
	eventsType = "text/event-stream; charset=utf-8"
	linesType  = "application/x-ndjson"
	framesType = "application/vnd.amazon.eventstream"

	chatChunk = `{"id":"chatcmpl-B1","object":"chat.completion.chunk","created":1767225600,"model":"gpt-5-mini",` +
		`"service_tier":"default","system_fingerprint":null,`
)

// answer is what an API sends, and what is to be read of it.
type answer struct {
	name, contentType, body string
	want                    Usage
}

func answers(t testing.TB) (list []answer) {
	for _, a := range buildtest.ModelAnswers(t) {
		want := Usage{
			Input: a.Input, Output: a.Output, InputKnown: a.InputKnown, OutputKnown: a.OutputKnown, Total: a.Total,
			TextEvents: a.TextEvents, TextBytes: a.TextBytes, Bytes: int64(len(a.Body)),
			CacheRead: a.CacheRead, CacheWritten: a.CacheWritten, Model: a.Model, IsBedrock: a.IsBedrock,
		}
		list = append(list, answer{a.Name, a.ContentType, a.Body, want})
	}
	return list
}

// scan reads an answer in chunks of a size, in one where that is 0.
func scan(contentType, body string, size int) Usage {
	var s Scanner
	s.Reset(contentType, "")
	s.ReadModel()
	for rest := []byte(body); len(rest) > 0; {
		n := len(rest)
		if size > 0 {
			n = min(n, size)
		}
		s.Write(rest[:n:n])
		rest = rest[n:]
	}
	return s.End()
}

// scanParts reads an answer in two chunks, of which the first ends at a byte.
func scanParts(contentType, body string, at int) Usage {
	var s Scanner
	s.Reset(contentType, "")
	s.ReadModel()
	s.Write([]byte(body[:at]))
	s.Write([]byte(body[at:]))
	return s.End()
}

// said returns a usage with both counts, beside what was counted of the text.
func said(input, output, textEvents, textBytes int64) Usage {
	return Usage{
		Input:       input,
		Output:      output,
		InputKnown:  true,
		OutputKnown: true,
		TextEvents:  textEvents,
		TextBytes:   textBytes,
	}
}

// unsaid returns a usage without counts, with what these are at least, of one event with text.
func unsaid(input, output, textBytes int64) Usage {
	return Usage{Input: input, Output: output, TextEvents: 1, TextBytes: textBytes}
}

// cachedIn returns a usage of which so many tokens were read from a cache.
func cachedIn(u Usage, read int64) Usage {
	u.CacheRead = read
	return u
}

// ofBedrock returns a usage of an answer of Bedrock's API.
func ofBedrock(u Usage) Usage {
	u.IsBedrock = true
	return u
}

// Frames of AWS' event stream: see buildtest.
var (
	frame   = buildtest.Frame
	invoked = buildtest.InvokedFrame
	sealed  = buildtest.SealedFrame
)

// sse writes an event for each document, without names.
func sse(documents ...string) string {
	return "data: " + strings.Join(documents, "\n\ndata: ") + "\n\n"
}
