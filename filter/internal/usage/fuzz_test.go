package usage

import (
	"cmp"
	"encoding/json"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// model reads documents with encoding/json.
type model struct {
	counts     map[api]map[part]int64 // -1: the last value is no count
	isNumbered bool
	isOfAPI    bool // a name at the root begins a path of the tables
	isExact    bool // text has no escapes that encoding/json replaces
	isPlain    bool // no model's name has characters that a reader of names leaves out
	hasSpoken  bool
	name       string // the first of a model

	atRoot                 bool  // an object that begins here is an event
	spoken, other, again   int64 // of the present event
	events, text, repeated int64
}

var hasOddBytes = regexp.MustCompile(`[^ !#-\[\]-~]`)

var isCount = regexp.MustCompile(`^\d{1,16}$`)

// notInPath replaces what a name of the tables has not.
var notInPath = strings.NewReplacer(".", " ", "[", " ")

// fieldOf returns where the field of an object stands, and what its strings are.
func fieldOf(object, name string, in kind) (path string, k kind) {
	path, k = object+"."+notInPath.Replace(name), in
	if in == kindWritten {
		return "-", kindWritten // nowhere in the tables
	}
	for _, list := range envelope {
		if slices.Contains(strings.Fields(list.names), name) && in != kindAside {
			k = list.kind
		}
	}
	for _, a := range aliases {
		if path == a.object+"."+a.name {
			path = a.same
		}
	}
	for _, r := range texts {
		if r.path == path && r.kind != kindWrapped {
			k = r.kind
		}
	}
	return path, k
}

// isOfTables reports whether a path of the tables begins with a name.
func isOfTables(name string) bool {
	begins := func(path string) bool {
		first := strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == '[' })
		return len(first) > 0 && first[0] == name
	}
	isCount := func(r row) bool { return begins(r.path) }
	return slices.ContainsFunc(counts[:], isCount) || begins(".sequence_number") ||
		slices.ContainsFunc(texts[:], func(r text) bool { return begins(r.path) }) ||
		slices.ContainsFunc(aliases[:], func(a alias) bool { return begins(a.object + "." + a.name) })
}

// take takes the value at a path, if it is a count or has a mark.
func (m *model) take(token json.Token, path string) {
	if token == nil {
		return
	}
	for _, r := range marks {
		name, _ := token.(string)
		switch {
		case r.path != path:
		case r.mark == numbersEvents:
			m.isNumbered = true
		default:
			m.isPlain = m.isPlain && !hasOddBytes.MatchString(name)
			if len(name) <= maxModel {
				m.name = cmp.Or(m.name, name)
			}
		}
	}
	if at := slices.IndexFunc(counts[:], func(r row) bool { return r.path == path }); at >= 0 {
		m.count(token, &counts[at])
	}
}

// count takes the value of a row.
func (m *model) count(token json.Token, r *row) {
	if m.counts[r.api] == nil {
		m.counts[r.api] = map[part]int64{}
	}
	number, _ := token.(json.Number)
	n, err := strconv.ParseInt(number.String(), 10, 64)
	if err != nil || !isCount.MatchString(number.String()) || n > maxCount {
		m.counts[r.api][r.part] = -1
		return
	}
	if n > 0 || m.counts[r.api][r.part] <= 0 {
		m.counts[r.api][r.part] = n
	}
}

// addText takes bytes of text.
func (m *model) addText(k kind, n int) {
	size := int64(n)
	switch {
	case k == kindAside, size == 0:
	case k == kindLabel:
		m.addText(kindOther, max(0, n-maxLabel))
	case k == kindSpoken || k == kindWritten:
		m.spoken += size
		m.hasSpoken = true
	case m.isNumbered:
		m.again += size
	default:
		m.other += size
	}
}

// read follows one value, which stands at a path, in JSON that the model wrote or not.
func (m *model) read(d *json.Decoder, path string, k kind, isWritten bool) {
	token, _ := d.Token()
	if m.atRoot && token == json.Delim('{') {
		m.endEvent()
	}
	m.atRoot = false
	m.take(token, path)
	mark := func(n int) {
		if isWritten {
			m.addText(kindWritten, n)
		}
	}
	switch v := token.(type) {
	case string:
		m.isExact = m.isExact && !strings.ContainsRune(v, utf8.RuneError)
		m.addText(k, len(v))
		mark(2)
	case json.Number:
		mark(len(v))
	case bool:
		mark(len(strconv.FormatBool(v)))
	case nil:
		mark(len("null"))
	case json.Delim:
		isWritten = isWritten || k == kindWritten
		mark(len("{}"))
		m.readAll(d, v, path, k, isWritten)
	}
}

// readAll follows what is in an object or an array.
func (m *model) readAll(d *json.Decoder, open json.Delim, path string, k kind, isWritten bool) {
	if open == '{' && k == kindLabel {
		k = kindOther
	}
	for _, r := range texts {
		if open == '{' && r.path == path+"." {
			k = r.kind
		}
	}
	for n := 0; d.More(); n++ {
		if isWritten {
			m.addText(kindWritten, min(n, 1)) // a comma
		}
		if open == '[' {
			m.read(d, path+"[]", k, isWritten)
			continue
		}
		name, _ := d.Token()
		m.isExact = m.isExact && !strings.ContainsRune(name.(string), utf8.RuneError)
		if path == "" {
			m.isOfAPI = m.isOfAPI || isOfTables(name.(string))
		}
		if isWritten {
			m.addText(kindWritten, len(name.(string))+len(`"":`))
		}
		field, of := fieldOf(path, name.(string), k)
		m.read(d, field, of, isWritten)
	}
	_, _ = d.Token()
}

// readItem reads an answer, or an item of one in an array.
func (m *model) readItem(d *json.Decoder) {
	m.atRoot = true
	m.read(d, "", kindOther, false)
}

func (m *model) endEvent() {
	if n := max(m.spoken, m.other); n > 0 {
		m.events++
		m.text += n
	}
	m.repeated = max(m.repeated, m.again)
	m.spoken, m.other = 0, 0
	m.again = 0
}

// sum does what tally.sum does, of counts above 0.
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
		if isKnown && sum > 0 {
			return sum, true
		}
	}
	return 0, false
}

// check compares what a document said with what the model read.
func (m *model) check(t *testing.T, u Usage, body string) {
	require.Equal(t, !m.isOfAPI, u.Failure == Foreign, body)
	events, text := m.events, max(m.text, m.repeated)
	if m.repeated > 0 {
		events = max(events, 1)
	}
	if m.isExact { // else a label may be longer there than it is
		require.Equal(t, events, u.TextEvents, body)
		require.Equal(t, text, u.TextBytes, body)
	}
	input, inputKnown := m.sum(input, cacheRead, cacheWritten, toolUse)
	output, outputKnown := m.sum(output, thoughts)
	all, allKnown := m.sum(total)
	if inputKnown {
		require.True(t, u.InputKnown, body)
		require.Equal(t, input, u.Input, body)
	}
	if outputKnown {
		require.True(t, u.OutputKnown, body)
		require.GreaterOrEqual(t, u.Output, output, body)
	}
	if u.OutputKnown && u.Output == 0 {
		require.False(t, m.hasSpoken, "text without tokens: %s", body)
	}
	if m.isPlain {
		require.Equal(t, m.name, u.Model, body)
	}
	m.checkCaches(t, u, body)
	m.checkBedrock(t, u, body)
	if allKnown {
		sum := u.Input + u.Output
		isUsed := u.Total == all && sum <= all || u.InputKnown && sum >= all
		saysNoInput := u.OutputKnown && u.Output >= all // a total that the output alone reaches
		require.True(t, isUsed || saysNoInput, "a total of %d: %+v, %s", all, u, body)
		require.LessOrEqual(t, sum, max(all, input+output), "more than said: %+v, %s", u, body)
	}
}

// checkCaches holds that what was read from caches and written to them is of one API, and that the
// input has room for it.
func (m *model) checkCaches(t *testing.T, u Usage, body string) {
	require.LessOrEqual(t, u.CacheRead+u.CacheWritten, u.Input, body)
	for a := range apis {
		read := max(m.counts[a][cacheRead], 0) + max(m.counts[a][cached], 0)
		written := max(m.counts[a][cacheWritten], 0)
		read = min(read, u.Input)
		if read == u.CacheRead && min(written, u.Input-read) == u.CacheWritten {
			return
		}
	}
	require.Fail(t, "of no API", "%+v: %s", u, body)
}

// checkBedrock holds that an answer is of Bedrock's API if it has a count of it.
func (m *model) checkBedrock(t *testing.T, u Usage, body string) {
	if m.counts[bedrock] == nil {
		require.False(t, u.IsBedrock, body)
	}
	for _, n := range m.counts[bedrock] {
		require.True(t, n < 0 || u.IsBedrock, body)
	}
}

// checkBody holds that an answer reads alike however it is divided, and that what is JSON
// reads as encoding/json reads it, whatever it comes in.
func checkBody(t *testing.T, body string, r *rand.Rand) {
	for _, contentType := range []string{jsonType, eventsType, linesType, framesType, ""} {
		whole := scan(contentType, body, 0)
		require.Equal(t, whole, scan(contentType, body, 1+r.IntN(40)), "%s: %q", contentType, body)
		require.Equal(t, whole, scanParts(contentType, body, r.IntN(len(body)+1)), "%s: %q", contentType, body)
		require.False(t,
			whole.Input < 0 || whole.Output < 0 || whole.TextEvents > whole.TextBytes || whole.TextBytes > whole.Bytes)
	}
	start := strings.TrimLeft(body, " \t\r\n")
	if !json.Valid([]byte(body)) || start[0] != '{' && start[0] != '[' || strings.Count(body,
		"[")+strings.Count(body, "{") >= maxDepth {
		return
	}
	m := model{counts: map[api]map[part]int64{}, isExact: true, isPlain: true}
	d := json.NewDecoder(strings.NewReader(body))
	d.UseNumber()
	if start[0] == '[' {
		_, _ = d.Token()
	}
	for d.More() {
		m.readItem(d)
	}
	m.endEvent()
	u := scan(jsonType, body, 0)
	m.check(t, u, body)
	if start[0] == '{' {
		checkWrapped(t, body, u, r)
	}
}

// checkWrapped holds that an object reads alike in whatever it comes, save that only an answer in
// one object may leave out that it has no output, or divide a total.
func checkWrapped(t *testing.T, body string, u Usage, r *rand.Rand) {
	oneLine := strings.NewReplacer("\n", " ", "\r", " ").Replace(body)
	for _, w := range []struct{ contentType, body string }{
		{linesType, oneLine}, {eventsType, sse(oneLine)}, {framesType, frame("e", body)}, {framesType, invoked(body)},
		{"", sse(oneLine)}, {jsonType, sse(oneLine)},
	} {
		if w.contentType == framesType && strings.Contains(body, `"bytes"`) {
			continue // which may have another event
		}
		got := scan(w.contentType, w.body, 1+r.IntN(40))
		require.EqualValues(t, len(w.body), got.Bytes)
		got.Bytes = u.Bytes
		require.Equal(t, u.IsBedrock || w.contentType == framesType, got.IsBedrock, "%s: %q", w.contentType, body)
		got.IsBedrock = u.IsBedrock
		if !got.OutputKnown && u.OutputKnown && u.Output == 0 {
			got.OutputKnown = true
			if !got.InputKnown { // all that it said is a total, which may be 0
				got.Input, got.InputKnown = got.Total, true
				got.Total = 0
			}
		}
		require.Equal(t, u, got, "%s: %q", w.contentType, body)
	}
}

// FuzzBody begins with the answers, with some of which a few bytes are changed, and with random
// documents of names that matter.
func FuzzBody(f *testing.F) {
	r, all := rand.New(rand.NewPCG(1, 2)), answers(f)
	for _, a := range all {
		f.Add(a.body, uint64(1))
	}
	f.Add(`{"model":"`+strings.Repeat("\xff", maxLabel/3+1)+`"}`, uint64(1))
	f.Add(`{"usage":{"total_tokens":0}}`, uint64(1))
	f.Add(`{"usage":{"completion_tokens":1,"total_tokens":1}}`, uint64(1))
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
var pieces = strings.Fields(`usage message response usageMetadata choices delta content text prompt_tokens input_tokens
	output_tokens completion_tokens total_tokens cache_read_input_tokens promptTokenCount
	candidatesTokenCount thoughtsTokenCount totalTokenCount inputTokens cacheWriteInputTokens
	prompt_eval_count eval_count usage.prompt_tokens us\u0061ge choices[ candidates parts toolUse
	tool_calls function arguments input output item id type signature error sequence_number x_groq
	meta tokens billed_units result results bytes refusal model modelVersion cached_tokens
	prompt_tokens_details input_tokens_details cachedContentTokenCount cacheReadInputTokens`)

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
		long := `"` + strings.Repeat("long ", r.IntN(70)) + `"`
		values := []string{`"a\u00e9\n"`, `"text"`, long, "null", "true", "-3", "0", "1.5", "2e3", "9007199254740993"}
		b.WriteString(values[r.IntN(len(values))])
	}
}
