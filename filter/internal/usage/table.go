package usage

// row is a place in an answer that has a count. The path is as jq writes it, from the root of the
// body, of a line or of an event. The same names in another place are something else.
type row struct {
	api  api
	path string
	part part
}

// api is a family of APIs that name their counts alike. In an answer that has
// counts of several, the first of these goes before the others: see tally.sum. Another one
// has no bits in a tally.
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
// output. Reasoning that is included in the output has no row. Another part has no bits in a tally.
type part uint8

const (
	input part = iota
	cacheRead
	cacheWritten
	toolUse
	output
	thoughts
	begunOutput // output so far, at the beginning of the answer
	total       // input and output
	cached      // of the input, where an API counts what it read from its cache inside it
	parts
)

// inputParts and outputParts have a bit for each part.
const (
	inputParts  uint64 = 1<<input | 1<<cacheRead | 1<<cacheWritten | 1<<toolUse
	outputParts uint64 = 1<<output | 1<<thoughts
)

// bedrockCounts has a bit for each count of Bedrock, among those of tally.
const bedrockCounts uint64 = (1<<parts - 1) << (api(parts) * bedrock)

// counts may be in several events: the last one is valid.
var counts = [...]row{
	{openAI, ".usage.prompt_tokens", input},
	{openAI, ".usage.completion_tokens", output},
	{openAI, ".usage.total_tokens", total},
	{openAI, ".usage.prompt_tokens_details.cached_tokens", cached},
	{openAI, ".usage.cached_tokens", cached},           // Moonshot
	{openAI, ".usage.prompt_cache_hit_tokens", cached}, // DeepSeek

	{anthropic, ".usage.input_tokens", input},
	{anthropic, ".usage.cache_read_input_tokens", cacheRead},
	{anthropic, ".usage.cache_creation_input_tokens", cacheWritten},
	{anthropic, ".usage.input_tokens_details.cached_tokens", cached}, // of responses
	{anthropic, ".usage.output_tokens", output},
	{anthropic, ".message.usage.input_tokens", input},
	{anthropic, ".message.usage.cache_read_input_tokens", cacheRead},
	{anthropic, ".message.usage.cache_creation_input_tokens", cacheWritten},
	{anthropic, ".message.usage.output_tokens", begunOutput},

	{gemini, ".usageMetadata.promptTokenCount", input},
	{gemini, ".usageMetadata.cachedContentTokenCount", cached},
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

// mark is what else than a count a place in an answer has.
type mark uint8

const (
	noMark        mark = iota
	numbersEvents      // the number of an event
	namesModel         // the name of the model that answers; the first one is valid
)

var marks = [...]struct {
	path string
	mark mark
}{
	{".sequence_number", numbersEvents}, // OpenAI's responses
	{".model", namesModel},              // OpenAI, and most others
	{".response.model", namesModel},
	{".message.model", namesModel}, // Anthropic
	{".modelVersion", namesModel},  // Gemini
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

// kind is what a string in an answer is. A string without a kind has the kind of the object or the
// array around it.
type kind uint8

const (
	kindNone    kind = iota
	kindOther        // text under a name that no table has
	kindSpoken       // text where the API has it
	kindWritten      // JSON that the model wrote: all of it is text
	kindLabel        // of the envelope
	kindAside        // not text, and neither is what it contains
	kindWrapped      // an event in base64
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
	{".choices[].text", kindSpoken},
	{".choices[].delta", kindSpoken},
	{".choices[].delta.reasoning_details", kindOther}, // which repeat the reasoning
	{".choices[].delta.thinking_blocks", kindOther},
	{".choices[].delta.provider_specific_fields", kindOther},
	{".choices[].delta.tool_calls[].function.arguments", kindWritten},
	{".choices[].delta.audio.data", kindAside},
	{".choices[].message", kindSpoken},
	{".choices[].message.reasoning_details", kindOther},
	{".choices[].message.thinking_blocks", kindOther},
	{".choices[].message.provider_specific_fields", kindOther},
	{".choices[].message.tool_calls[].function.arguments", kindWritten},
	{".choices[].message.audio.data", kindAside},

	{".output", kindSpoken}, // of responses, and Converse
	{".output[].result", kindAside},
	{".output.message.content[].toolUse.input", kindWritten},
	{".response.", kindAside}, // an event of responses, which repeats the request
	{".response.output", kindOther},
	{".response.output[].result", kindAside},
	{".item.result", kindAside},
	{".instructions", kindAside},
	{".tools", kindAside},
	{".metadata", kindAside},
	{".text.", kindAside},

	{".delta", kindSpoken}, // of all that stream text by parts of a message
	{".content", kindSpoken},
	{".content[].input", kindWritten},
	{".content[].data", kindAside},
	{".content_block", kindSpoken},
	{".content_block.input", kindWritten},
	{".content_block.data", kindAside},

	{".candidates[].content", kindSpoken},
	{".candidates[].content.parts[].functionCall.args", kindWritten},

	{".response", kindSpoken}, // Ollama
	{".thinking", kindSpoken},
	{".message", kindSpoken},
	{".message.tool_calls[].function.arguments", kindWritten},

	{".tool_calls[].parameters", kindWritten}, // Cohere, version 1
	{".tool_calls[].arguments", kindWritten},  // Cloudflare
	{".embedding", kindAside},
	{".embeddings", kindAside},
	{".data[].embedding", kindAside},
	{".data[].b64_json", kindAside},
	{".b64_json", kindAside}, // of images in events
	{".generation", kindSpoken},
	{".outputText", kindSpoken},
	{".results[].outputText", kindSpoken},
	{".chat_history", kindAside}, // of Cohere, which repeats the request
	{".texts", kindAside},
	{".bytes", kindWrapped}, // of InvokeModelWithResponseStream
}

// envelope has names of values that are not text in any place: labels, which are seldom long, and
// the text and data of others.
var envelope = [...]struct {
	kind  kind
	names string
}{
	{kindLabel,
		"call_id completionReason conversation_id created_at createTime detail done_reason effort event_type " +
			"fileUri finish_reason finishReason format generation_id id item_id language mime_type mimeType model " +
			"model_id modelVersion name native_finish_reason obfuscation object outputFormat p phase " +
			"previous_response_id prompt_cache_key provider request_id response_id responseId role safety_identifier " +
			"server_label service_tier session_id status stop stop_reason stop_sequence stopReason stopSequence " +
			"system_fingerprint timestamp tool_call_id tool_choice tool_use_id toolUseId traffic_type trafficType " +
			"truncation type uri url user verbosity version"},
	{kindAside,
		"annotations citation citationMetadata citations content_filter_results encrypted_content error " +
			"groundingMetadata image_url inline_data inlineData logprobs logprobsResult partial_image_b64 " +
			"prompt_filter_results promptFeedback safetyRatings search_results signature thought_signature " +
			"thoughtSignature token_ids usage usageMetadata x_groq"},
}
