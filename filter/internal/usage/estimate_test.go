package usage

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// samples are texts and how many tokens they are in o200k_base, the vocabulary of OpenAI's
// models since GPT-4o, by its reference implementation.
var samples = []struct {
	name   string
	tokens int
	text   string
}{
	{
		name:   "English",
		tokens: 77,
		text: "A token bucket is a simple way to limit how often something may happen. Tokens drip into the bucket at a " +
			"steady rate until it is full, and each request takes one of them out. When the bucket is empty, the request has " +
			"to wait or is turned away. Because a full bucket allows a short burst, the limit is kind to clients that are " +
			"quiet most of the time.",
	},
	{
		name:   "German",
		tokens: 86,
		text: "Ein Token-Bucket ist eine einfache Methode, um zu begrenzen, wie oft etwas geschehen darf. Die Marken " +
			"tropfen gleichmäßig in den Eimer, bis er voll ist, und jede Anfrage nimmt eine davon heraus. Ist der Eimer " +
			"leer, muss die Anfrage warten oder wird abgewiesen. Weil ein voller Eimer einen kurzen Ansturm zulässt, ist die " +
			"Grenze freundlich zu Kunden, die meistens ruhig sind.",
	},
	{
		name:   "Chinese",
		tokens: 86,
		text: "令牌桶是一种限制某件事情发生频率的简单方法。令牌以固定的速度滴入桶中，直到桶满为止，每个请求都会从中取走一个。" +
			"当桶空的时候，请求必须等待，或者被拒绝。因为装满的桶允许短时间的突发流量，所以这种限制对于大部分时间都很安静的客户端来说比较友好。",
	},
	{
		name:   "Go",
		tokens: 81,
		text: "func (b *bucket) take(n int, now time.Time) bool {\n\tb.mu.Lock()\n\tdefer b.mu.Unlock()\n\telapsed := " +
			"now.Sub(b.last).Seconds()\n\tb.tokens = min(b.burst, b.tokens+elapsed*b.rate)\n\tb.last = now\n\tif b.tokens < " +
			"float64(n) {\n\t\treturn false\n\t}\n\tb.tokens -= float64(n)\n\treturn true\n}\n",
	},
	{
		name:   "JSON",
		tokens: 100,
		text: "{\n  \"items\": [\n    {\"id\": 1, \"name\": \"sluice\", \"price\": 12.5, \"tags\": [\"gate\", " +
			"\"water\"]},\n    {\"id\": 2, \"name\": \"bucket\", \"price\": 3.99, \"tags\": [\"water\"]},\n    {\"id\": 3, " +
			"\"name\": \"lease\", \"price\": 0, \"tags\": []}\n  ],\n  \"total\": 3\n}\n",
	},
}

// arguments are those of a tool.
const (
	arguments = `{"city":"Basel","unit":"celsius","days":[1,2,3],"note":"Say whether it rains before noon, ` +
		`and how strong the wind will be on the lake.","hourly":true}`
	argumentsTokens = 44
)

// shape is how an API sends a text, or the arguments of a tool: in one piece, and in an event of its
// stream, after all of which may come others.
type shape struct {
	name, contentType string
	ofTool            bool
	whole, event      string
	end               []string
}

func shapes(t *testing.T) (list []shape) {
	all, err := txtar.ParseFile("testdata/shapes.txtar")
	require.NoError(t, err)
	for _, f := range all.Files {
		head, lines := strings.Split(f.Name, " | "), strings.Split(strings.TrimSpace(string(f.Data)), "\n")
		s := shape{name: head[0], ofTool: head[1] == "tool", contentType: head[2], whole: lines[0], event: lines[0]}
		if len(lines) > 1 {
			s.event, s.end = lines[1], lines[2:]
		}
		list = append(list, s)
	}
	require.Len(t, list, 13)
	return list
}

// fill puts a text into a shape.
func fill(t *testing.T, shape, text string) string {
	quoted, err := json.Marshal(text)
	require.NoError(t, err)
	return strings.NewReplacer("TEXT", string(quoted), "JSON", text).Replace(shape)
}

// tokensOf divides a text into as many parts as it has tokens.
func tokensOf(text string, tokens int) (parts []string) {
	letters := []rune(text)
	for n := range tokens {
		parts = append(parts, string(letters[len(letters)*n/tokens:len(letters)*(n+1)/tokens]))
	}
	return parts
}

// stream returns the stream of a text, an event a token, and by how much the estimate misses
// after each.
func (s *shape) stream(t *testing.T, text string, tokens int) (stream string, after []int) {
	write := func(event, text string) {
		event = fill(t, event, text)
		if s.contentType == framesType {
			stream += frame("contentBlockDelta", event)
		} else {
			stream += sse(event)
		}
	}
	for n, part := range tokensOf(text, tokens) {
		write(s.event, part)
		after = append(after, missed(scan(s.contentType, stream, 0), n+1))
	}
	for _, event := range s.end {
		write(event, text)
	}
	return stream, append(after, missed(scan(s.contentType, stream, 0), tokens))
}

// The page says by how much estimates of output miss: of texts in one piece, in streams with an
// event a token, whole and cut after any event, and of ones that are not read.
func TestErrorOfEstimates(t *testing.T) {
	page := answersPage(t)
	chat := shape{
		contentType: eventsType,
		whole:       `{"choices":[{"index":0,"message":{"role":"assistant","content":TEXT}}]}`,
		event:       chatChunk + `"choices":[{"index":0,"delta":{"content":TEXT}}],"usage":null}`,
	}
	for _, s := range samples {
		stream, streamed := chat.stream(t, s.text, s.tokens)
		for n, percent := range streamed {
			require.GreaterOrEqual(t, percent, 0, "%s, after %d events", s.name, n+1)
		}
		whole := missed(scan(jsonType, fill(t, chat.whole, s.text), 0), s.tokens)
		unread := estimated(Usage{Failure: UnknownType, Bytes: int64(len(stream))})
		row := fmt.Sprintf("| %s | %+d %% | %+d %% | %.0f times |", s.name, whole, streamed[s.tokens],
			float64(unread)/float64(s.tokens))
		require.Contains(t, page, strings.ReplaceAll(row, "+0 %", "0 %"))
	}
}

// It says so too of all shapes in which APIs send text.
func TestErrorOfShapes(t *testing.T) {
	page := answersPage(t)
	for _, s := range shapes(t) {
		text, tokens := samples[0].text, samples[0].tokens
		if s.ofTool {
			text, tokens = arguments, argumentsTokens
		}
		whole := fill(t, s.whole, text)
		streamed := missed(scan(eventsType, sse(whole), 0), tokens)
		if s.event != s.whole {
			_, after := s.stream(t, text, tokens)
			streamed = after[tokens]
		}
		row := fmt.Sprintf("| %s | %+d %% | %+d %% |", s.name, missed(scan(jsonType, whole, 0), tokens), streamed)
		assert.Contains(t, page, strings.ReplaceAll(row, "+0 %", "0 %"))
	}
}

// answersPage is the part of the page that says what is read.
func answersPage(t *testing.T) string {
	page, err := os.ReadFile(filepath.Join(buildtest.Root(), "docs/answers.md"))
	require.NoError(t, err)
	_, part, found := strings.Cut(string(page), "\n## What is read\n")
	require.True(t, found)
	part, _, _ = strings.Cut(part, "\n## ")
	return part
}

// Text costs its size wherever it stands: beside a letter where the API has text, in the arguments
// of tools whatever their names, and under names that no table has.
func TestTextAnywhere(t *testing.T) {
	const chat = `{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"x",`
	places := []string{
		chat + `"new":TEXT}}]}`, chat + `"new":{"a":[{"b":TEXT}]}}}]}`, chat + `"id":TEXT}}]}`, chat + `"type":[TEXT]}}]}`,
		chat + `"a":1},"new":TEXT}]}`, chat + `"a":1}}],"new":{"of":[TEXT]}}`,
		chat + `"tool_calls":[{"function":{"name":"f","arguments":JSON}}]}}]}`,
		`{"candidates":[{"content":{"parts":[{"text":"x"},{"functionCall":{"name":"f","args":JSON}}]}}]}`,
		`{"content":[{"type":"text","text":"x"},{"type":"tool_use","input":JSON}]}`,
		`{"response":"x","new":TEXT}`, `{"delta":"x","new":TEXT}`, `{"content":[{"text":"x","citations":[]},{"a":TEXT}]}`,
	}
	for _, s := range shapes(t) {
		places = append(places, strings.Replace(s.whole, `"content":null`, `"content":"x"`, 1))
	}
	for _, size := range []int{20_000, 4_000_000} {
		for _, place := range places {
			text := strings.Repeat("text ", size/5)
			if strings.Contains(place, "JSON") {
				part := text[:size/4]
				text = `{"id":"` + part + `","signature":"` + part + `","usage":["` + part + `"],"` + part + `":1}`
			}
			body := fill(t, place, text)
			u := scan(jsonType, body, 16384)
			require.InEpsilon(t, size/bytesPerToken, estimated(u), 0.02, "%.150s", body)
			require.Equal(t, u.TextBytes, scan(eventsType, sse(body), 0).TextBytes)
		}
	}
}

func estimated(u Usage) int64 {
	_, output := u.Estimate(0)
	return output
}

// missed is by how much an estimate is more than so many tokens, in percent.
func missed(u Usage, tokens int) int { return int(estimated(u)*100)/tokens - 100 }
