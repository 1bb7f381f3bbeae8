package usage

// row is a place in an answer that has a count. The path is as jq writes it, from the root of the
// body, of a line or of an event. The same names in another place are something else.
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
	bedrock // Converse, and models behind InvokeModel
	ollama
	cohere
	cohereBilled // without what Cohere adds to a prompt
	apis
)

// part is what a row counts. An API's input is the sum of its input parts, and likewise its
// output. A part that is included in another one, such as OpenAI's cached tokens, has no row.
type part uint8

const (
	input part = iota
	cacheRead
	cacheWritten
	toolUse
	output
	thoughts
	begun // output so far, at the beginning of the answer
	total // input and output
	parts
	sequence // the number of an event, not a count of tokens
)

// inputParts and outputParts have a bit for each part.
const (
	inputParts  uint64 = 1<<input | 1<<cacheRead | 1<<cacheWritten | 1<<toolUse
	outputParts uint64 = 1<<output | 1<<thoughts
)

// counts may be in several events: the last one is valid.
var counts = [...]row{
	{openAI, ".usage.prompt_tokens", input},
	{openAI, ".usage.completion_tokens", output},
	{openAI, ".usage.total_tokens", total},
	{openAI, ".sequence_number", sequence},

	{anthropic, ".usage.input_tokens", input},
	{anthropic, ".usage.cache_read_input_tokens", cacheRead},
	{anthropic, ".usage.cache_creation_input_tokens", cacheWritten},
	{anthropic, ".usage.output_tokens", output},
	{anthropic, ".message.usage.input_tokens", input},
	{anthropic, ".message.usage.cache_read_input_tokens", cacheRead},
	{anthropic, ".message.usage.cache_creation_input_tokens", cacheWritten},
	{anthropic, ".message.usage.output_tokens", begun},

	{gemini, ".usageMetadata.promptTokenCount", input},
	{gemini, ".usageMetadata.toolUsePromptTokenCount", toolUse},
	{gemini, ".usageMetadata.candidatesTokenCount", output},
	{gemini, ".usageMetadata.thoughtsTokenCount", thoughts},
	{gemini, ".usageMetadata.totalTokenCount", total},

	{bedrock, ".usage.inputTokens", input},
	{bedrock, ".usage.cacheReadInputTokens", cacheRead},
	{bedrock, ".usage.cacheWriteInputTokens", cacheWritten},
	{bedrock, ".usage.outputTokens", output},
	{bedrock, ".usage.totalTokens", total},
	{bedrock, ".amazon-bedrock-invocationMetrics.inputTokenCount", input},
	{bedrock, ".amazon-bedrock-invocationMetrics.cacheReadInputTokenCount", cacheRead},
	{bedrock, ".amazon-bedrock-invocationMetrics.cacheWriteInputTokenCount", cacheWritten},
	{bedrock, ".amazon-bedrock-invocationMetrics.outputTokenCount", output},
	{bedrock, ".inputTextTokenCount", input}, // Titan
	{bedrock, ".results[].tokenCount", output},
	{bedrock, ".totalOutputTextTokenCount", output},
	{bedrock, ".prompt_token_count", input}, // Llama
	{bedrock, ".generation_token_count", output},

	{ollama, ".prompt_eval_count", input},
	{ollama, ".eval_count", output},

	{cohere, ".usage.tokens.input_tokens", input},
	{cohere, ".usage.tokens.output_tokens", output},
	{cohereBilled, ".usage.billed_units.input_tokens", input},
	{cohereBilled, ".usage.billed_units.output_tokens", output},
}

// alias is a name in an object that has the same under it as another path.
type alias struct{ object, name, same string }

var aliases = [...]alias{
	{".response", "usage", ".usage"},  // OpenAI's responses, in events
	{".choices[]", "usage", ".usage"}, // Moonshot
	{".x_groq", "usage", ".usage"},
	{".delta", "usage", ".usage"}, // Cohere, version 2, in events
	{"", "meta", ".usage"},        // version 1
	{".response", "meta", ".usage"},
	{"", "result", ""}, // Cloudflare
}

// kind is what a string in an answer is. A string without a kind has that of what it is in.
type kind uint8

const (
	none    kind = iota
	other        // text under a name that no table has
	spoken       // text where the API has it
	written      // JSON that the model wrote: all of it is text
	label        // of the envelope
	aside        // not text, and neither is what it contains
	wrapped      // an event in base64
)

// maxLabel is how many bytes of a label count as a label. The rest of it is text.
const maxLabel = 256

// text is a place in an answer that has text: a string, or all strings of an object or an array. A
// path with a dot at its end is only for an object.
type text struct {
	path string
	kind kind
}

var texts = [...]text{
	{".choices[].text", spoken},
	{".choices[].delta", spoken},
	{".choices[].delta.reasoning_details", other}, // which repeat the reasoning
	{".choices[].delta.thinking_blocks", other},
	{".choices[].delta.provider_specific_fields", other},
	{".choices[].delta.tool_calls[].function.arguments", written},
	{".choices[].delta.audio.data", aside},
	{".choices[].message", spoken},
	{".choices[].message.reasoning_details", other},
	{".choices[].message.thinking_blocks", other},
	{".choices[].message.provider_specific_fields", other},
	{".choices[].message.tool_calls[].function.arguments", written},
	{".choices[].message.audio.data", aside},

	{".output", spoken}, // of responses, and Converse
	{".output[].result", aside},
	{".output.message.content[].toolUse.input", written},
	{".response.", aside}, // an event of responses, which repeats the request
	{".response.output", other},
	{".response.output[].result", aside},
	{".item.result", aside},
	{".instructions", aside},
	{".tools", aside},
	{".metadata", aside},
	{".text.", aside},

	{".delta", spoken}, // of all that stream text by parts of a message
	{".content", spoken},
	{".content[].input", written},
	{".content[].data", aside},
	{".content_block", spoken},
	{".content_block.input", written},
	{".content_block.data", aside},

	{".candidates[].content", spoken},
	{".candidates[].content.parts[].functionCall.args", written},

	{".response", spoken}, // Ollama
	{".thinking", spoken},
	{".message", spoken},
	{".message.tool_calls[].function.arguments", written},

	{".tool_calls[].parameters", written}, // Cohere, version 1
	{".tool_calls[].arguments", written},  // Cloudflare
	{".embedding", aside},
	{".embeddings", aside},
	{".data[].embedding", aside},
	{".data[].b64_json", aside},
	{".b64_json", aside}, // of images in events
	{".generation", spoken},
	{".outputText", spoken},
	{".results[].outputText", spoken},
	{".chat_history", aside}, // of Cohere, which repeats the request
	{".texts", aside},
	{".bytes", wrapped}, // of InvokeModelWithResponseStream
}

// envelope has names of values that are not text in any place: labels, which are seldom long, and
// the text and data of others.
var envelope = [...]struct {
	kind  kind
	names string
}{
	{label,
		"call_id completionReason conversation_id created_at createTime detail done_reason effort event_type " +
			"fileUri finish_reason finishReason format generation_id id item_id language mime_type mimeType model " +
			"model_id modelVersion name native_finish_reason obfuscation object outputFormat p phase " +
			"previous_response_id prompt_cache_key provider request_id response_id responseId role safety_identifier " +
			"server_label service_tier session_id status stop stop_reason stop_sequence stopReason stopSequence " +
			"system_fingerprint timestamp tool_call_id tool_choice tool_use_id toolUseId traffic_type trafficType " +
			"truncation type uri url user verbosity version"},
	{aside,
		"annotations citation citationMetadata citations content_filter_results encrypted_content error " +
			"groundingMetadata image_url inline_data inlineData logprobs logprobsResult partial_image_b64 " +
			"prompt_filter_results promptFeedback safetyRatings search_results signature thought_signature " +
			"thoughtSignature token_ids usage usageMetadata x_groq"},
}

// maxCount is the largest valid count: larger numbers are inexact in JSON.
const maxCount = 1 << 53

// A tally has a bit for each count, in 64 bits.
var _ [64 - int(apis)*int(parts)]struct{}

// tally adds up what the rows have found.
type tally struct {
	counts  [apis * api(parts)]int64
	said    uint64 // a bit for each count that was read
	doubted uint64 // and for each whose last value was not a count, or was in a broken event
	ofEvent uint64 // and for each that this event has

	textEvents, textBytes int64
	spoken, other, again  int64 // text of this event; again is what repeats earlier events
	repeated              int64 // the most text of an event that repeats others
	isNumbered            bool  // the events have numbers, so all kinds but deltas repeat others
	isKnown               bool  // the answer has something in a place where an API has it
	hasSpoken             bool  // it has text in such a place
	namesOutput           bool  // it has the name of an output count, even if not a count
}

// beginEvent separates what follows from the event before.
func (t *tally) beginEvent() {
	t.ofEvent = 0
	t.spoken, t.other = 0, 0
	t.again = 0
}

// doubt takes back the certainty of what the present event said.
func (t *tally) doubt() { t.doubted |= t.ofEvent }

// count takes a row's number. One that is no count, given as -1, leaves the last in doubt.
func (t *tally) count(r *row, n int64) {
	if r.part == sequence {
		t.isNumbered = true
		return
	}
	place := r.api*api(parts) + api(r.part)
	bit := uint64(1) << place
	t.namesOutput = t.namesOutput || outputParts>>r.part&1 != 0
	if n < 0 || n > maxCount {
		t.doubted |= bit
		return
	}
	if n == 0 && t.counts[place] > 0 {
		return // servers end a stream so that have said it before
	}
	t.counts[place] = n
	t.said |= bit
	t.ofEvent |= bit
	t.doubted &^= bit
}

// addText takes the next n bytes of text. An event counts by its text where an API has text, or by
// its other text if that is more: both may be the same text.
func (t *tally) addText(k kind, n int) {
	if n == 0 {
		return
	}
	before := max(t.spoken, t.other)
	switch {
	case k != other:
		t.spoken += int64(n)
		t.hasSpoken = true
	case t.isNumbered:
		t.again += int64(n)
		t.repeated = max(t.repeated, t.again)
		return
	default:
		t.other += int64(n)
	}
	if before == 0 {
		t.textEvents++
	}
	t.textBytes += max(t.spoken, t.other) - before
}

// sum adds up the parts of the first API that has them, or else of the API with the largest sum. A
// 0 does not hide another API's count: fronts write the names of several APIs, and fill one's.
func (t *tally) sum(of uint64) (sum int64, isKnown bool) {
	for a := range apis {
		var n int64
		for p := range parts {
			if of>>p&1 != 0 {
				n += t.counts[a*api(parts)+api(p)]
			}
		}
		if bits := of << (a * api(parts)); t.said&bits != 0 && t.doubted&bits == 0 {
			if n > 0 {
				return n, true
			}
			isKnown = true
		}
		sum = max(sum, n)
	}
	return sum, isKnown && sum == 0
}

// usage returns the sums of all counts. An answer in one piece is complete.
func (t *tally) usage(inOnePiece bool) Usage {
	u := Usage{TextEvents: t.textEvents, TextBytes: max(t.textBytes, t.repeated)}
	if t.repeated > 0 {
		u.TextEvents = max(u.TextEvents, 1)
	}
	u.Input, u.InputKnown = t.sum(inputParts)
	u.Output, u.OutputKnown = t.sum(outputParts)
	all, allKnown := t.sum(1 << total)
	if u.TextEvents > 0 && u.Input+u.Output+all == 0 { // text has tokens
		u.InputKnown, u.OutputKnown = false, false
		return u
	}
	if t.hasSpoken && u.Output == 0 {
		u.OutputKnown = false
	}
	if !u.OutputKnown {
		begun, _ := t.sum(1 << begun)
		u.Output = max(u.Output, begun)
	}
	isInput := inOnePiece && !t.hasSpoken // as for embeddings, which have no output
	if allKnown {
		u.addTotal(all, isInput)
	}
	if isInput && !t.namesOutput && (allKnown || u.TextEvents == 0) {
		u.OutputKnown = u.InputKnown // embeddings leave it out
	}
	return u
}

// addTotal completes the parts by a total. What it has beside them is output: some APIs count
// reasoning there alone. isInput: if it is alone, all of it is input.
func (u *Usage) addTotal(all int64, isInput bool) {
	switch {
	case u.InputKnown && all > u.Input:
		u.Output = max(u.Output, all-u.Input)
		u.OutputKnown = true
	case u.InputKnown:
	case u.OutputKnown && all > u.Output:
		u.Input = max(u.Input, all-u.Output)
		u.InputKnown = true
	case u.OutputKnown:
	case isInput:
		u.Input, u.InputKnown = all, true
	default:
		u.Total = all
	}
}
