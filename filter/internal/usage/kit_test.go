package usage

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
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
			CacheRead: a.CacheRead, CacheWritten: a.CacheWritten, Model: a.Model,
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

// frame writes a frame of AWS' event stream.
func frame(event, document string) string {
	var headers []byte
	for _, h := range [][2]string{
		{":event-type", event},
		{":content-type", "application/json"},
		{":message-type", "event"},
	} {
		headers = append(headers, byte(len(h[0])))
		headers = append(headers, h[0]...)
		headers = append(headers, 7)
		headers = binary.BigEndian.AppendUint16(headers, uint16(len(h[1])))
		headers = append(headers, h[1]...)
	}
	return sealed(uint32(16+len(headers)+len(document)), uint32(len(headers)), string(headers)+document)
}

// invoked writes a frame of InvokeModelWithResponseStream.
func invoked(event string) string {
	return frame("chunk", `{"bytes":"`+base64.StdEncoding.EncodeToString([]byte(event))+`","p":"abcdefgh"}`)
}

// sealed writes lengths, content and checksums of a frame.
func sealed(all, headers uint32, content string) string {
	f := binary.BigEndian.AppendUint32(nil, all)
	f = binary.BigEndian.AppendUint32(f, headers)
	f = binary.BigEndian.AppendUint32(f, crc32.ChecksumIEEE(f))
	f = append(f, content...)
	return string(binary.BigEndian.AppendUint32(f, crc32.ChecksumIEEE(f)))
}

// sse writes an event for each document, without names.
func sse(documents ...string) string {
	return "data: " + strings.Join(documents, "\n\ndata: ") + "\n\n"
}
