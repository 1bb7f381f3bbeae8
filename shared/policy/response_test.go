package policy_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func responseOf(t *testing.T, text string) (policy.Response, []policy.Problem) {
	t.Helper()
	p, errs := policy.Read(parse(t, rule(`,"response":`+text)))
	if p == nil {
		return policy.Response{}, errs
	}
	return p.Rules[0].Response, nil
}

func TestResponse(t *testing.T) {
	for text, want := range map[string]policy.Response{
		`{}`: policy.DefaultResponse(),
		`{"status":429,"content_type":"text/plain","grpc_status":"resource_exhausted"}`: policy.DefaultResponse(),
		`{"status":503,"body":"","grpc_status":14}`:                                     {Status: 503, GRPCStatus: 14},
		`{"status":599.0,"body":"a\tb\r\n","grpc_status":"unauthenticated"}`: {
			Status: 599, Body: policy.Template{{Text: "a\tb\r\n"}}, GRPCStatus: 16,
		},
		`{"status":400,"body":"%%RULE%%: %RULE%%RETRY_AFTER% s %%","content_type":"application/json; charset=utf-8","grpc_status":1,
		  "headers":{"X-Reason":"%RULE%","x-left":"%REMAINING%/%LIMIT% 100%%","x-fixed":"a,b"}}`: {
			Status: 400, GRPCStatus: 1, ContentType: "application/json; charset=utf-8",
			Body: policy.Template{{Text: "%RULE%: "}, {Value: policy.ValueRule}, {Value: policy.ValueRetryAfter}, {Text: " s %"}},
			Headers: []policy.ResponseHeader{
				{Name: "x-reason", Value: policy.Template{{Value: policy.ValueRule}}},
				{Name: "x-left", Value: policy.Template{{Value: policy.ValueRemaining}, {Text: "/"}, {Value: policy.ValueLimit}, {Text: " 100%"}}},
				{Name: "x-fixed", Value: policy.Template{{Text: "a,b"}}},
			},
		},
	} {
		got, errs := responseOf(t, text)
		require.Empty(t, messages(errs), text)
		require.Equal(t, want, got, text)
	}
}

// Who lacks a part of the key gets the response of the rule, but for what missing_key
// gives and a default body that names the part.
func TestResponseToAMissingKey(t *testing.T) {
	missing := policy.Template{{Text: "missing "}, {Value: policy.ValueMissing}}
	given := []policy.ResponseHeader{{Name: "x-a", Value: policy.Template{{Text: "1"}}}}
	for text, want := range map[string]policy.Response{
		`"missing_key":"deny"`:      {Status: 429, Body: missing, GRPCStatus: 8},
		`"missing_key":{"deny":{}}`: {Status: 429, Body: missing, GRPCStatus: 8},
		`"missing_key":{"deny":{"status":401,"body":"who are you?","grpc_status":"unauthenticated"}}`: {
			Status: 401, Body: policy.Template{{Text: "who are you?"}}, GRPCStatus: 16,
		},
		`"missing_key":"deny","response":{"status":503,"body":"no","content_type":"text/html","headers":{"x-a":"1"},"grpc_status":14}`: {
			Status: 503, Body: policy.Template{{Text: "no"}}, ContentType: "text/html", Headers: given, GRPCStatus: 14,
		},
		`"response":{"status":503,"content_type":"text/html","headers":{"x-a":"1"},"grpc_status":14},"missing_key":{"deny":{"headers":{"x-b":"%MISSING%"}}}`: {
			Status: 503, Body: missing, ContentType: "text/html", GRPCStatus: 14,
			Headers: []policy.ResponseHeader{{Name: "x-b", Value: policy.Template{{Value: policy.ValueMissing}}}},
		},
		`"response":{"body":"{}","content_type":"application/json"},"missing_key":{"deny":{"body":"","content_type":"text/plain"}}`: {Status: 429, GRPCStatus: 8},
	} {
		p, errs := policy.Read(parse(t, rule(`,"key":[{"header":"u"}],`+text)))
		require.Empty(t, messages(errs), text)
		require.Equal(t, policy.MissingDeny, p.Rules[0].MissingKey, text)
		require.Equal(t, &want, p.Rules[0].MissingResponse, text)
	}
	p, errs := policy.Read(parse(t, rule(`,"missing_key":"share"`)))
	require.Empty(t, messages(errs))
	require.Nil(t, p.Rules[0].MissingResponse)
}

// A template that is taken says what its text does, sign for sign.
func FuzzResponseBody(f *testing.F) {
	for _, text := range []string{"", "plain", "%RULE%", "%%RULE%%", "a%RETRY_AFTER%b%%%LIMIT%", "100%", "%REMAINING", "%rule%"} {
		f.Add(text)
	}
	names := map[policy.Placeholder]string{
		policy.ValueRule: "%RULE%", policy.ValueRetryAfter: "%RETRY_AFTER%", policy.ValueLimit: "%LIMIT%", policy.ValueRemaining: "%REMAINING%",
		policy.ValueMissing: "%MISSING%",
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "?")
		response, errs := responseOf(t, `{"body":`+string(policy.AppendString(nil, text))+`}`)
		if len(errs) > 0 {
			return
		}
		var again strings.Builder
		for _, part := range response.Body {
			again.WriteString(strings.ReplaceAll(part.Text, "%", "%%"))
			again.WriteString(names[part.Value])
		}
		require.Equal(t, text, again.String())
	})
}
