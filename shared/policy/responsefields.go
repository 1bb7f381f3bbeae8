package policy

import (
	"slices"
	"strings"
	"unicode"
)

const (
	// MaxBodyBytes is the longest body of a response. A gRPC client gets it as a
	// header, whose sum many clients refuse beyond 8 KiB.
	MaxBodyBytes = 4 << 10
	// MaxResponseHeaders is how many headers of its own a response may have.
	MaxResponseHeaders = 32
	// MaxHeaderBytes is the longest value of one.
	MaxHeaderBytes = 1 << 10
)

var responseObject = newObject("response", []field[Response]{
	{"status", integer(400, 599), "429", func(r *reader, v value, res *Response) { res.Status = uint16(r.integer(v)) }},
	{"body", textOf("body"), "", readBody},
	{"content_type", textShape, "text/plain", readContentType},
	{"headers", choice("response_headers"), "", readResponseHeaders},
	{"grpc_status", choice("grpc_status"), "resource_exhausted", readGRPCStatus},
	{"grpc_retry_info", boolShape, "false", func(r *reader, v value, res *Response) { res.RetryInfo = r.boolean(v) }},
})

var missingKeys = choice("missing_key", word(MissingSkip, MissingDeny, MissingShare), objectOf("missing_key"))

// missingKeyObject is "missing_key" if it is an object.
var missingKeyObject = newObject("missing_key", []field[Response]{
	{"deny", required(objectOf("response")), "", func(r *reader, v value, res *Response) {
		readObject(r, v, responseWithoutDefaults, res)
	}},
})

// responseWithoutDefaults is a response that takes what it does not give from another.
var responseWithoutDefaults = func() *object[Response] {
	bare := *responseObject
	bare.Fields = slices.Clone(bare.Fields)
	for i := range bare.Fields {
		bare.Fields[i].Default = nil
	}
	return &bare
}()

// readMissingKey reads what happens without a part of the key. A denial takes from the
// rule's response what it does not give, and the body too if that gives one.
func readMissingKey(r *reader, v value, rule *Rule) {
	response := rule.Response
	if !r.rule.givesBody {
		response.Body = Template{{Text: "missing "}, {Value: ValueMissing}}
	}
	switch v.Kind {
	case Object:
		rule.MissingKey = MissingDeny
		readObject(r, v, missingKeyObject, &response)
	case String:
		rule.MissingKey = MissingKey(r.word(v.as(FormWord)))
	default:
		r.fail(v, WrongValue)
	}
	if rule.MissingKey == MissingDeny {
		rule.MissingResponse = &response
	}
}

// readBody takes what text does not: nothing at all, tabs and ends of lines.
func readBody(r *reader, v value, res *Response) {
	isRefused := func(c rune) bool { return unicode.IsControl(c) && c != '\n' && c != '\r' && c != '\t' }
	switch {
	case v.Kind != String:
		r.fail(v, WrongValue)
	case !r.fits(v, MaxBodyBytes):
	case strings.ContainsFunc(v.Text, isRefused):
		r.fail(v, ControlChar)
	default:
		res.Body = r.template(v)
	}
}

func (r *reader) template(v value) Template {
	t, ok := parseTemplate(v.Text)
	if !ok {
		r.fail(v, BadTemplate)
	}
	return t
}

func readContentType(r *reader, v value, res *Response) {
	s, ok := r.text(v)
	if !ok {
		return
	}
	media, _, _ := strings.Cut(s, ";")
	kind, sub, _ := strings.Cut(strings.TrimSpace(media), "/")
	if !IsToken(kind) || !IsToken(sub) || !isPrintable(s) || len(s) > MaxHeaderBytes {
		r.fail(v, BadMediaType)
		return
	}
	res.ContentType = s
	if s == "text/plain" { // the proxy says it by itself
		res.ContentType = ""
	}
}

// takenHeaders are names that a response may not give: they are the proxy's,
// about the connection, or set by other fields of the policy.
var takenHeaders = []string{
	"content-length", "content-type",
	"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
	"host", "date", "server", "retry-after", "x-envoy-ratelimited",
	"grpc-status", "grpc-message", "grpc-status-details-bin",
	"ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset",
}

func readResponseHeaders(r *reader, v value, res *Response) {
	if v.Kind == Object && len(v.Fields) > MaxResponseHeaders {
		r.fail(v, TooMany, itoa(MaxResponseHeaders))
		return
	}
	res.Headers = nil
	mayName := func(name string) bool { return !slices.Contains(takenHeaders, name) }
	r.eachHeader(v, mayName, func(at value, name, s string) {
		switch {
		case !r.fits(at, MaxHeaderBytes):
		case !isPrintable(s):
			r.fail(at, NotASCII)
		case strings.TrimSpace(s) != s:
			r.fail(at, OuterSpace)
		default:
			res.Headers = append(res.Headers, ResponseHeader{name, r.template(at)})
		}
	})
}

// GRPCStatuses are the names of statuses by their numbers, from 0.
var GRPCStatuses = []string{
	"ok", "cancelled", //nolint:misspell // gRPC's own spelling
	"unknown", "invalid_argument", "deadline_exceeded", "not_found", "already_exists",
	"permission_denied", "resource_exhausted", "failed_precondition", "aborted", "out_of_range",
	"unimplemented", "internal", "unavailable", "data_loss", "unauthenticated",
}

func readGRPCStatus(r *reader, v value, res *Response) {
	switch number, ok := r.grpcStatus(v); {
	case !ok: // and reported
	case number == 0:
		r.fail(v, GRPCStatusOK)
	default:
		res.GRPCStatus = number
	}
}

// grpcStatus reads the name of a gRPC status or its number.
func (r *reader) grpcStatus(v value) (number uint8, ok bool) {
	n, ok := v.Integer()
	if v.Kind == String {
		n = int64(slices.Index(GRPCStatuses, v.Text))
		ok = n >= 0
	}
	if !ok || n < 0 || n >= int64(len(GRPCStatuses)) {
		r.fail(v, WrongValue)
		return 0, false
	}
	return uint8(n), true
}
