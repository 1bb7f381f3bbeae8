package usage

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	{"English", 77, "A token bucket is a simple way to limit how often something may happen. Tokens drip into the bucket at a steady rate until it is full, and each request takes one of them out. When the bucket is empty, the request has to wait or is turned away. Because a full bucket allows a short burst, the limit is kind to clients that are quiet most of the time."},
	{"German", 86, "Ein Token-Bucket ist eine einfache Methode, um zu begrenzen, wie oft etwas geschehen darf. Die Marken tropfen gleichmäßig in den Eimer, bis er voll ist, und jede Anfrage nimmt eine davon heraus. Ist der Eimer leer, muss die Anfrage warten oder wird abgewiesen. Weil ein voller Eimer einen kurzen Ansturm zulässt, ist die Grenze freundlich zu Kunden, die meistens ruhig sind."},
	{"Chinese", 86, "令牌桶是一种限制某件事情发生频率的简单方法。令牌以固定的速度滴入桶中，直到桶满为止，每个请求都会从中取走一个。当桶空的时候，请求必须等待，或者被拒绝。因为装满的桶允许短时间的突发流量，所以这种限制对于大部分时间都很安静的客户端来说比较友好。"},
	{"Go", 81, "func (b *bucket) take(n int, now time.Time) bool {\n\tb.mu.Lock()\n\tdefer b.mu.Unlock()\n\telapsed := now.Sub(b.last).Seconds()\n\tb.tokens = min(b.burst, b.tokens+elapsed*b.rate)\n\tb.last = now\n\tif b.tokens < float64(n) {\n\t\treturn false\n\t}\n\tb.tokens -= float64(n)\n\treturn true\n}\n"},
	{"JSON", 100, "{\n  \"items\": [\n    {\"id\": 1, \"name\": \"sluice\", \"price\": 12.5, \"tags\": [\"gate\", \"water\"]},\n    {\"id\": 2, \"name\": \"bucket\", \"price\": 3.99, \"tags\": [\"water\"]},\n    {\"id\": 3, \"name\": \"lease\", \"price\": 0, \"tags\": []}\n  ],\n  \"total\": 3\n}\n"},
}

// The page says by how much estimates of output miss: of answers in one piece, of streams with
// an event a token, whole and cut after any event, and of ones that cannot be read.
func TestErrorOfEstimates(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(buildtest.Root(), "docs/answers.md"))
	require.NoError(t, err)
	for _, s := range samples {
		content, err := json.Marshal(s.text)
		require.NoError(t, err)
		whole := fmt.Sprintf(`{"id":"chatcmpl-A1","object":"chat.completion","created":1767225600,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":%s}}]}`, content)
		letters := []rune(s.text)
		var stream string
		var streamed []int // percent, after each event
		for n := range s.tokens {
			part, err := json.Marshal(string(letters[len(letters)*n/s.tokens : len(letters)*(n+1)/s.tokens]))
			require.NoError(t, err)
			stream += fmt.Sprintf("data: %s\"choices\":[{\"index\":0,\"delta\":{\"content\":%s}}],\"usage\":null}\n\n", chatChunk, part)
			streamed = append(streamed, missed(scan(eventsType, stream, 0), n+1))
		}
		for n, percent := range streamed {
			require.GreaterOrEqual(t, percent, 0, "%s, after %d events", s.name, n+1)
		}
		row := fmt.Sprintf("| %s | %+d %% | %+d %% | %.0f times |", s.name, missed(scan(jsonType, whole, 0), s.tokens), streamed[s.tokens-1],
			float64(estimated(scan("text/html", stream, 0)))/float64(s.tokens))
		require.Contains(t, string(page), strings.ReplaceAll(row, "+0 %", "0 %"))
	}
}

func estimated(u Usage) int64 {
	_, output := u.Estimate(0)
	return output
}

// missed is by how much an estimate is more than so many tokens, in percent.
func missed(u Usage, tokens int) int { return int(estimated(u)*100)/tokens - 100 }
