package usage

import "slices"

const (
	jsonType   = "application/json"
	eventsType = "text/event-stream; charset=utf-8"
	linesType  = "application/x-ndjson"
	framesType = "application/vnd.amazon.eventstream"
)

// answer is what an API sends, and what is to be read of it.
type answer struct {
	name, contentType, body string
	want                    Usage // without Bytes, which is the body's length
}

var answers = slices.Concat(openAIAnswers, otherAnswers)

const chatChunk = `{"id":"chatcmpl-B1","object":"chat.completion.chunk","created":1767225600,"model":"gpt-5-mini","service_tier":"default","system_fingerprint":null,`

var openAIAnswers = []answer{
	{"chat", jsonType, `{
  "id": "chatcmpl-A1", "object": "chat.completion", "created": 1767225600, "model": "gpt-5-mini",
  "choices": [{"index": 0, "message": {"role": "assistant", "content": "A sluice is a gate.\nIt holds \"water\" back.", "refusal": null, "annotations": []},
    "logprobs": null, "finish_reason": "stop"}],
  "usage": {"prompt_tokens": 19, "completion_tokens": 211, "total_tokens": 230,
    "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 192, "audio_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}},
  "service_tier": "default", "system_fingerprint": null
}`, said(19, 211, 1, 42)},
	{"chat that calls a tool", jsonType, `{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function",` +
		`"function":{"name":"weather","arguments":"{\"usage\":{\"prompt_tokens\":7}}"}}]}}],"usage":{"completion_tokens":14,"prompt_tokens":91,"total_tokens":105}}`,
		said(91, 14, 1, 29)},
	{"completions", jsonType, `{"id":"cmpl-1","object":"text_completion","choices":[{"text":"\n\nIndeed","index":0,"logprobs":null,"finish_reason":"length"}],` +
		`"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}}`, said(5, 7, 1, 8)},
	{"embeddings", jsonType, `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[-0.006929283,0.0,1e-05,-4.5E+2,1]}],` +
		`"model":"text-embedding-3-small","usage":{"prompt_tokens":8,"total_tokens":8}}`, said(8, 0, 0, 0)},
	{"chat in a stream", eventsType, sse(
		chatChunk+`"choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"x8Jq"}`,
		chatChunk+`"choices":[{"index":0,"delta":{"content":"Grüß"},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"k"}`,
		chatChunk+`"choices":[{"index":0,"delta":{"content":" \ud83d\ude42 \u4e2d"},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":""}`,
		chatChunk+`"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null,"obfuscation":"Pz2"}`,
		chatChunk+`"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":12,"total_tokens":21,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}},"obfuscation":"rT"}`,
		`[DONE]`), said(9, 12, 2, 15)},
	{"chat in a stream without include_usage", eventsType, sse(
		chatChunk+`"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`,
		chatChunk+`"choices":[{"index":0,"delta":{"reasoning_content":"Hm."}}]}`,
		chatChunk+`"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"city\""}}]}}]}`,
		chatChunk+`"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`,
		`[DONE]`), unsaid(0, 0, 2, 10)},
	{"vLLM with continuous_usage_stats", eventsType, sse(
		`{"choices":[{"index":0,"delta":{"content":"A"}}],"usage":{"prompt_tokens":3,"total_tokens":4,"completion_tokens":1}}`,
		`{"choices":[{"index":0,"delta":{"content":"B"}}],"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2}}`,
		`[DONE]`), said(3, 2, 2, 2)},
	{"responses", jsonType, `{"id":"resp_1","object":"response","status":"completed","error":null,"output":[` +
		`{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"Think."}]},` +
		`{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"output_text","annotations":[],"text":"Yes."}]}],"tools":[],"usage":` +
		`{"input_tokens":36,"input_tokens_details":{"cached_tokens":30},"output_tokens":87,"output_tokens_details":{"reasoning_tokens":60},"total_tokens":123}}`,
		said(36, 87, 1, 10)},
	{"responses in a stream", eventsType, `event: response.created
data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_2","status":"in_progress","output":[],"usage":null}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_1","delta":"It","logprobs":[],"obfuscation":"aa"}

event: response.output_text.delta
data: {"type":"response.output_text.delta","sequence_number":5,"item_id":"msg_1","delta":" does.","logprobs":[],"obfuscation":"b"}

event: response.output_text.done
data: {"type":"response.output_text.done","sequence_number":6,"item_id":"msg_1","text":"It does."}

event: response.incomplete
data: {"type":"response.incomplete","sequence_number":9,"response":{"id":"resp_2","status":"incomplete","output":[{"type":"message","content":[{"type":"output_text","text":"It does."}]}],"usage":{"input_tokens":11,"input_tokens_details":{"cached_tokens":0},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":16}}}

`, said(11, 5, 2, 8)},
}

const messageStart = `event: message_start
data: {"type":"message_start","message":{"id":"msg_01","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":8,"cache_creation_input_tokens":10426,"cache_read_input_tokens":300,"cache_creation":{"ephemeral_5m_input_tokens":10426,"ephemeral_1h_input_tokens":0},"output_tokens":2,"service_tier":"standard"}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}        }

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Well"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}   }

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"a\": 1"}}

`

var otherAnswers = []answer{
	{"messages", jsonType, `{"id":"msg_02","type":"message","role":"assistant","model":"claude-opus-4-5","content":[{"type":"thinking","thinking":"Hm","signature":"Eq"},` +
		`{"type":"text","text":"Hi"},{"type":"tool_use","id":"toolu_1","name":"f","input":{"usage":{"output_tokens":5}}}],"stop_reason":"tool_use","usage":` +
		`{"input_tokens":2095,"cache_creation_input_tokens":null,"cache_read_input_tokens":17,"output_tokens":503,"server_tool_use":{"web_search_requests":0}}}`,
		said(2112, 503, 1, 4)},
	{"messages in a stream", eventsType, messageStart + `event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":15}}

event: message_stop
data: {"type":"message_stop"}

`, said(10734, 15, 3, 16)},
	{"messages whose last event repeats the input", eventsType, messageStart + `event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":9,"cache_creation_input_tokens":10426,"cache_read_input_tokens":301,"output_tokens":21,"iterations":[{"input_tokens":1,"output_tokens":2}]}}

`, said(10736, 21, 3, 16)},
	{"messages that end with an error", eventsType, messageStart + `event: error
data: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}

`, Usage{Input: 10734, InputKnown: true, Output: 2, TextEvents: 3, TextBytes: 16}},
	{"Gemini", jsonType, `{"candidates": [{"content": {"parts": [{"text": "Bonjour"}, {"functionCall": {"name": "f", "args": {"text": "x"}}}], "role": "model"},
 "finishReason": "STOP", "avgLogprobs": -0.0259}], "usageMetadata": {"promptTokenCount": 220, "candidatesTokenCount": 5, "totalTokenCount": 420,
 "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 220}], "thoughtsTokenCount": 185, "toolUsePromptTokenCount": 10, "cachedContentTokenCount": 100},
 "modelVersion": "gemini-2.5-flash", "responseId": "r1"}`, said(230, 190, 1, 7)},
	{"Gemini in a stream", eventsType, "data: " + `{"candidates": [{"content": {"parts": [{"text": "One"}],"role": "model"},"index": 0}],"usageMetadata": {"promptTokenCount": 4,"totalTokenCount": 35,"thoughtsTokenCount": 31}}` +
		"\r\n\r\ndata: " + `{"candidates": [{"content": {"parts": [{"text": " two"}],"role": "model"},"finishReason": "STOP"}],"usageMetadata": {"promptTokenCount": 4,"candidatesTokenCount": 6,"totalTokenCount": 41,"thoughtsTokenCount": 31}}` +
		"\r\n\r\n", said(4, 37, 2, 7)},
	{"Gemini in an array", jsonType, `[{
  "candidates": [{"content": {"parts": [{"text": "One"}], "role": "model"}}],
  "usageMetadata": {"promptTokenCount": 4, "candidatesTokenCount": 1, "totalTokenCount": 5}
}
,
{
  "candidates": [{"content": {"parts": [{"text": " two"}], "role": "model"}, "finishReason": "STOP"}],
  "usageMetadata": {"promptTokenCount": 4, "candidatesTokenCount": 3, "totalTokenCount": 7}
}
]`, said(4, 3, 2, 7)},
	{"Gemini in an array that was cut", jsonType, `[{"candidates":[{"index":0}],"usageMetadata":{"promptTokenCount":4,"totalTokenCount":4}},`,
		Usage{Input: 4, InputKnown: true}},
	{"tool calls in an array", jsonType, `[{"choices":[{"delta":{"tool_calls":[{"function":{"strict":{"a":[{}]},"arguments":"{}"}}]}}]}]`, unsaid(0, 0, 1, 2)},
	{"Gemini that only thought", jsonType, `{"candidates":[{"content":{"role":"model"},"finishReason":"MAX_TOKENS"}],"usageMetadata":{"promptTokenCount":9,"totalTokenCount":1032,"thoughtsTokenCount":1023}}`,
		said(9, 1023, 0, 0)},
	{"Converse", jsonType, `{"metrics":{"latencyMs":551},"output":{"message":{"content":[{"reasoningContent":{"reasoningText":{"text":"Hm","signature":"s"}}},{"text":"Hello!"}],"role":"assistant"}},` +
		`"stopReason":"end_turn","usage":{"cacheReadInputTokens":70,"cacheWriteInputTokens":5,"inputTokens":13,"outputTokens":10,"totalTokens":98}}`, said(88, 10, 1, 8)},
	{"ConverseStream", framesType, frame("messageStart", `{"p":"abcdefgh","role":"assistant"}`) +
		frame("contentBlockDelta", `{"contentBlockIndex":0,"delta":{"reasoningContent":{"text":"Hm"}},"p":"abc"}`) +
		frame("contentBlockDelta", `{"contentBlockIndex":1,"delta":{"text":"Hello"},"p":"abcdefghijklmnopqrstuvwxyzABCDEFG"}`) +
		frame("contentBlockDelta", `{"contentBlockIndex":2,"delta":{"toolUse":{"input":"{\"a\":"}},"p":"a"}`) +
		frame("contentBlockStop", `{"contentBlockIndex":2,"p":"abcd"}`) + frame("messageStop", `{"p":"ab","stopReason":"end_turn"}`) + frame("empty", "") +
		frame("metadata", `{"metrics":{"latencyMs":820},"p":"abcdef","usage":{"cacheReadInputTokens":0,"cacheWriteInputTokens":4,"inputTokens":21,"outputTokens":17,"serverToolUsage":{},"totalTokens":42}}`),
		said(25, 17, 3, 12)},
	{"Ollama", linesType, `{"model":"llama3.2","created_at":"2026-01-01T00:00:00.1Z","message":{"role":"assistant","content":"","thinking":"Hm"},"done":false}
{"model":"llama3.2","created_at":"2026-01-01T00:00:00.2Z","message":{"role":"assistant","content":"Sky"},"done":false}
{"model":"llama3.2","created_at":"2026-01-01T00:00:00.3Z","message":{"role":"assistant","content":""},"done_reason":"stop","done":true,"total_duration":4883583458,"load_duration":1334875,"prompt_eval_count":26,"prompt_eval_duration":342546000,"eval_count":282,"eval_duration":4535599000}
`, said(26, 282, 2, 5)},
	{"Ollama in one object", jsonType, `{"model":"llama3.2","response":"The sky","done":true,"context":[1,2,3],"prompt_eval_count":26,"eval_count":3}`, said(26, 3, 1, 7)},
	{"embeddings of Ollama", jsonType, `{"model":"all-minilm","embeddings":[[0.01,-0.002]],"total_duration":14143917,"prompt_eval_count":8}`, said(8, 0, 0, 0)},
}
