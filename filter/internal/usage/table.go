package usage

// row is a place in an answer: as jq writes it, from the root of the body, of a line or of
// an event. What stands elsewhere under the same names is something else.
type row struct {
	api  api
	path string
	part part
}

// api is a family of APIs that name their counts alike.
type api uint8

const (
	openAI    api = iota // chat, completions, embeddings; Azure, vLLM and others speak it
	anthropic            // and OpenAI's responses, which have the same names
	gemini
	bedrock
	ollama
	apis
)

// part is what a count is of. An API's input is the sum of what is input, likewise its
// output. Parts of one of these, such as cached tokens of OpenAI's, have no row.
type part uint8

const (
	input part = iota
	cacheRead
	cacheWritten
	toolUse
	output
	thoughts
	begun // of the output, which follows
	text  // no count
	parts
)

// inputParts and outputParts have a bit for each part.
const (
	inputParts  uint64 = 1<<input | 1<<cacheRead | 1<<cacheWritten | 1<<toolUse
	outputParts uint64 = 1<<output | 1<<thoughts
)

// rows is the table. Counts of an answer may stand in several events: the last one holds.
var rows = [...]row{
	{openAI, ".usage.prompt_tokens", input},
	{openAI, ".usage.completion_tokens", output},

	{anthropic, ".usage.input_tokens", input},
	{anthropic, ".usage.cache_read_input_tokens", cacheRead},
	{anthropic, ".usage.cache_creation_input_tokens", cacheWritten},
	{anthropic, ".usage.output_tokens", output},
	{anthropic, ".message.usage.input_tokens", input},
	{anthropic, ".message.usage.cache_read_input_tokens", cacheRead},
	{anthropic, ".message.usage.cache_creation_input_tokens", cacheWritten},
	{anthropic, ".message.usage.output_tokens", begun},
	{anthropic, ".response.usage.input_tokens", input},
	{anthropic, ".response.usage.output_tokens", output},

	{gemini, ".usageMetadata.promptTokenCount", input},
	{gemini, ".usageMetadata.toolUsePromptTokenCount", toolUse},
	{gemini, ".usageMetadata.candidatesTokenCount", output},
	{gemini, ".usageMetadata.thoughtsTokenCount", thoughts},

	{bedrock, ".usage.inputTokens", input},
	{bedrock, ".usage.cacheReadInputTokens", cacheRead},
	{bedrock, ".usage.cacheWriteInputTokens", cacheWritten},
	{bedrock, ".usage.outputTokens", output},

	{ollama, ".prompt_eval_count", input},
	{ollama, ".eval_count", output},

	{openAI, ".choices[].text", text},
	{openAI, ".choices[].delta.content", text},
	{openAI, ".choices[].delta.reasoning", text},
	{openAI, ".choices[].delta.reasoning_content", text},
	{openAI, ".choices[].delta.tool_calls[].function.arguments", text},
	{openAI, ".choices[].message.content", text},
	{openAI, ".choices[].message.reasoning", text},
	{openAI, ".choices[].message.reasoning_content", text},
	{openAI, ".choices[].message.tool_calls[].function.arguments", text},
	{openAI, ".delta", text}, // of responses, whose last event repeats it all
	{openAI, ".output[].arguments", text},
	{openAI, ".output[].content[].text", text},
	{openAI, ".output[].summary[].text", text},

	{anthropic, ".delta.text", text}, // and Bedrock's
	{anthropic, ".delta.thinking", text},
	{anthropic, ".delta.partial_json", text},
	{anthropic, ".content[].text", text},
	{anthropic, ".content[].thinking", text},

	{gemini, ".candidates[].content.parts[].text", text},

	{bedrock, ".delta.toolUse.input", text},
	{bedrock, ".delta.reasoningContent.text", text},
	{bedrock, ".output.message.content[].text", text},
	{bedrock, ".output.message.content[].reasoningContent.reasoningText.text", text},

	{ollama, ".response", text},
	{ollama, ".thinking", text},
	{ollama, ".message.content", text},
	{ollama, ".message.thinking", text},
}

// maxCount is the largest count that is taken for one: beyond it JSON's numbers are inexact.
const maxCount = 1 << 53

// A tally has a bit for each count.
var _ [64 - int(apis)*int(parts)]struct{}

// tally adds up what the rows have found.
type tally struct {
	counts  [apis * api(parts)]int64
	said    uint64 // a bit for each count that was read
	doubted uint64 // and for each whose last value was none, or that of a broken event
	ofEvent uint64 // what the present event said

	textEvents, textBytes int64
	hasText               bool // the present event
	namesOutput           bool // the answer, even if by no count
}

// beginEvent separates what follows from the event before.
func (t *tally) beginEvent() { t.ofEvent, t.hasText = 0, false }

// doubt takes back the certainty of what the present event said.
func (t *tally) doubt() { t.doubted |= t.ofEvent }

// count takes a row's number. One that is no count, given as -1, leaves the last in doubt.
func (t *tally) count(r *row, n int64) {
	place := r.api*api(parts) + api(r.part)
	bit := uint64(1) << place
	t.namesOutput = t.namesOutput || outputParts>>r.part&1 != 0
	if n < 0 || n > maxCount {
		t.doubted |= bit
		return
	}
	t.counts[place] = n
	t.said |= bit
	t.ofEvent |= bit
	t.doubted &^= bit
}

// addText takes the next n bytes of text.
func (t *tally) addText(n int) {
	if n == 0 {
		return
	}
	t.textBytes += int64(n)
	if !t.hasText {
		t.hasText = true
		t.textEvents++
	}
}

// sum adds up the parts of the first API that knows them, or else of the one that says most.
func (t *tally) sum(of uint64) (sum int64, isKnown bool) {
	for a := range apis {
		var n int64
		for p := range parts {
			if of>>p&1 != 0 {
				n += t.counts[a*api(parts)+api(p)]
			}
		}
		if bits := of << (a * api(parts)); t.said&bits != 0 && t.doubted&bits == 0 {
			return n, true
		}
		sum = max(sum, n)
	}
	return sum, false
}
