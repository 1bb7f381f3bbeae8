package usage

import (
	"encoding/json"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// model reads documents with encoding/json.
type model struct {
	counts       map[api]map[part]int64 // -1: the last value is no count
	events, text int64
	isExact      bool // text has no escapes that encoding/json replaces
	hasText      bool
}

var isCount = regexp.MustCompile(`^\d{1,16}$`)

// read follows one value, which stands at a path.
func (m *model) read(d *json.Decoder, path string) {
	token, _ := d.Token()
	var r *row
	for i := range rows {
		if rows[i].path == path {
			r = &rows[i]
		}
	}
	if r != nil && r.part != text && token != nil {
		if m.counts[r.api] == nil {
			m.counts[r.api] = map[part]int64{}
		}
		number, _ := token.(json.Number)
		n, err := strconv.ParseInt(number.String(), 10, 64)
		if err != nil || !isCount.MatchString(number.String()) || n > maxCount {
			n = -1
		}
		m.counts[r.api][r.part] = n
	}
	if s, isString := token.(string); isString && r != nil && r.part == text && s != "" {
		m.text += int64(len(s))
		m.isExact = m.isExact && !strings.ContainsRune(s, utf8.RuneError)
		m.hasText = true
	}
	switch token {
	case json.Delim('{'):
		for d.More() {
			name, _ := d.Token()
			m.read(d, path+"."+strings.NewReplacer(".", " ", "[", " ").Replace(name.(string)))
		}
		_, _ = d.Token()
	case json.Delim('['):
		for d.More() {
			m.read(d, path+"[]")
		}
		_, _ = d.Token()
	}
}

// readEvent reads one value as an event.
func (m *model) readEvent(d *json.Decoder) {
	m.hasText = false
	if m.read(d, ""); m.hasText {
		m.events++
	}
}

// sum does what tally.sum does.
func (m *model) sum(base part, others ...part) (int64, bool) {
	for a := range apis {
		sum, isKnown := int64(0), false
		for _, p := range append(others, base) {
			if n, ok := m.counts[a][p]; ok && n < 0 {
				isKnown = false
				break
			} else if ok {
				sum += n
				isKnown = true
			}
		}
		if isKnown {
			return sum, true
		}
	}
	return 0, false
}

// checkBody holds that an answer reads alike however it is divided, and that what is JSON
// reads as encoding/json reads it, whatever it comes in.
func checkBody(t *testing.T, body string, r *rand.Rand) {
	for _, contentType := range []string{jsonType, eventsType, linesType, framesType} {
		whole := scan(contentType, body, 0)
		require.Equal(t, whole, scan(contentType, body, 1+r.IntN(40)), "%s: %q", contentType, body)
		require.Equal(t, whole, scanParts(contentType, body, r.IntN(len(body)+1)), "%s: %q", contentType, body)
		require.False(t, whole.Input < 0 || whole.Output < 0 || whole.TextEvents > whole.TextBytes || whole.TextBytes > whole.Bytes)
	}
	start := strings.TrimLeft(body, " \t\r\n")
	if !json.Valid([]byte(body)) || start[0] != '{' && start[0] != '[' || strings.Count(body, "[")+strings.Count(body, "{") >= maxDepth {
		return
	}
	m := model{counts: map[api]map[part]int64{}, isExact: true}
	d := json.NewDecoder(strings.NewReader(body))
	d.UseNumber()
	if start[0] == '[' {
		_, _ = d.Token()
	}
	for d.More() {
		m.readEvent(d)
	}
	u := scan(jsonType, body, 0)
	input, inputKnown := m.sum(input, cacheRead, cacheWritten, toolUse)
	output, outputKnown := m.sum(output, thoughts)
	require.Equal(t, inputKnown, u.InputKnown, body)
	if inputKnown {
		require.Equal(t, input, u.Input, body)
	}
	if outputKnown {
		require.True(t, u.OutputKnown, body)
		require.Equal(t, output, u.Output, body)
	}
	require.Equal(t, m.events, u.TextEvents, body)
	if m.isExact {
		require.Equal(t, m.text, u.TextBytes, body)
	}
	if oneLine := strings.NewReplacer("\n", " ", "\r", " ").Replace(body); start[0] == '{' {
		u.Bytes = int64(len(oneLine))
		if u.Output == 0 {
			u.OutputKnown = outputKnown // only an answer in one object leaves out that it has no output
		}
		require.Equal(t, u, scan(linesType, oneLine, 0))
		for contentType, wrapped := range map[string]string{eventsType: sse(oneLine), framesType: frame("e", body)} {
			u.Bytes = int64(len(wrapped))
			require.Equal(t, u, scan(contentType, wrapped, 1+r.IntN(40)), "%s: %q", contentType, body)
		}
	}
}

// FuzzBody begins with the answers, with some of which a few bytes are changed, and with random
// documents of names that matter.
func FuzzBody(f *testing.F) {
	r, all := rand.New(rand.NewPCG(1, 2)), answers(f)
	for _, a := range all {
		f.Add(a.body, uint64(1))
	}
	n := uint64(3000)
	if testing.Short() {
		n /= 10
	}
	for seed := range n {
		var b strings.Builder
		writeValue(&b, r, 0)
		f.Add(b.String(), seed)
		body := []byte(all[r.IntN(len(all))].body)
		for range 1 + r.IntN(3) {
			body[r.IntN(len(body))] = `{}[]",:\0e-. `[r.IntN(13)]
		}
		f.Add(string(body), seed)
	}
	f.Fuzz(func(t *testing.T, body string, seed uint64) {
		checkBody(t, body, rand.New(rand.NewPCG(seed, 0)))
	})
}

// pieces are what random documents are made of.
var pieces = []string{
	"usage", "message", "response", "usageMetadata", "choices", "delta", "content", "text", "prompt_tokens", "input_tokens", "output_tokens",
	"completion_tokens", "cache_read_input_tokens", "promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "inputTokens",
	"cacheWriteInputTokens", "prompt_eval_count", "eval_count", "usage.prompt_tokens", "us\\u0061ge", "choices[", "candidates", "parts", "toolUse",
}

// writeValue writes a random value.
func writeValue(b *strings.Builder, r *rand.Rand, depth int) {
	open, end := "{", "}"
	switch n := r.IntN(10); {
	case depth < 7 && (n < 5 || depth == 0):
		if depth > 0 && n == 4 || n == 0 {
			open, end = "[", "]"
		}
		b.WriteString(open)
		for i := range r.IntN(6) {
			if i > 0 {
				b.WriteString(", \n"[:1+r.IntN(3)])
			}
			if open == "{" {
				b.WriteString(`"` + pieces[r.IntN(len(pieces))] + `":`)
			}
			writeValue(b, r, depth+1)
		}
		b.WriteString(end)
	case n < 7:
		b.WriteString(strconv.Itoa(r.IntN(1000)))
	default:
		b.WriteString([]string{`"a\u00e9\n"`, `"text"`, `""`, "null", "true", "-3", "0", "1.5", "2e3", "9007199254740993"}[r.IntN(10)])
	}
}
