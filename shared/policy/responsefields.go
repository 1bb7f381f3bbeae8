package policy

import (
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

// responseFields is "response".
var responseFields = []field[Response]{
	{
		name: "status", shape: integer(400, 599), def: "429",
		doc: "HTTP status of a denial, 400 to 599: anything less would pass for a success or send the client elsewhere. gRPC requests get 200 and grpc_status.",
		read: func(r *reader, v value, res *Response) {
			n := r.integer(v)
			res.Status = uint16(n)
		},
	},
	{
		name: "body", shape: shape{form: formText},
		doc:  `Body of a denial, at most 4096 bytes, with the placeholders of headers; "" is none, and the default is a line that says "rate limit exceeded". A gRPC client gets it as grpc-message.`,
		read: readBody,
	},
	{
		name: "content_type", shape: shape{form: formText}, def: "text/plain",
		doc:  "Content-Type of the body.",
		read: readContentType,
	},
	{
		name: "headers", shape: choice("response_headers", "an object from header names to texts"),
		doc:  "Headers of a denial, from names to texts, at most 32. %RULE%, %RETRY_AFTER%, %LIMIT% and %REMAINING% stand for values, %% for a percent sign; a header whose value is not known is left out.",
		read: readResponseHeaders,
	},
	{
		name: "grpc_status", shape: choice("grpc_status", "a gRPC status such as resource_exhausted, or its number from 1 to 16"), def: "resource_exhausted",
		doc:  "gRPC status of a denial, by name or number; never ok.",
		read: readGRPCStatus,
	},
}

func readResponse(r *reader, v value, rule *Rule) {
	readObject(r, v, responseFields, &rule.Response)
}

// readBody takes what text does not: nothing at all, tabs and ends of lines.
func readBody(r *reader, v value, res *Response) {
	if v.node.Kind != String {
		r.mismatch(v)
		return
	}
	if size := len(v.node.Text); size > MaxBodyBytes {
		r.fail(v, "must be at most "+itoa(MaxBodyBytes)+" bytes, not "+itoa(int64(size)))
		return
	}
	for _, c := range v.node.Text {
		if unicode.IsControl(c) && c != '\n' && c != '\r' && c != '\t' {
			r.fail(v, "must not hold control characters but tabs and ends of lines")
			return
		}
	}
	body, fault := parseTemplate(v.node.Text)
	if fault != "" {
		r.fail(v, fault)
		return
	}
	res.Body = body
}

func readContentType(r *reader, v value, res *Response) {
	s, ok := r.text(v)
	if !ok {
		return
	}
	media, _, _ := strings.Cut(s, ";")
	kind, sub, _ := strings.Cut(strings.TrimSpace(media), "/")
	if !isToken(kind) || !isToken(sub) || !isPrintable(s) || len(s) > MaxHeaderBytes {
		r.fail(v, "must be a media type such as application/json, not "+quote(s))
		return
	}
	if s != "text/plain" {
		res.ContentType = s
	}
}

// takenHeaders are names that a response may not give, with what to do.
var takenHeaders = []struct{ name, instead string }{
	{"content-length", "the proxy counts the body"},
	{"content-type", "use content_type"},
	{"connection", "it is about the connection, which is the proxy's"},
	{"keep-alive", "it is about the connection, which is the proxy's"},
	{"proxy-connection", "it is about the connection, which is the proxy's"},
	{"te", "it is about the connection, which is the proxy's"},
	{"trailer", "it is about the connection, which is the proxy's"},
	{"transfer-encoding", "it is about the connection, which is the proxy's"},
	{"upgrade", "it is about the connection, which is the proxy's"},
	{"host", "it belongs to requests"},
	{"date", "the proxy sets it"},
	{"server", "the proxy sets it"},
	{"grpc-status", "use grpc_status"},
	{"grpc-message", "it is the body"},
	{"retry-after", "every denial that a wait would help has it"},
	{"x-envoy-ratelimited", "every denial has it"},
	{"ratelimit", "use headers: ietf of the policy"},
	{"ratelimit-policy", "use headers: ietf of the policy"},
	{"x-ratelimit-limit", "use headers: x-ratelimit of the policy"},
	{"x-ratelimit-remaining", "use headers: x-ratelimit of the policy"},
	{"x-ratelimit-reset", "use headers: x-ratelimit of the policy"},
}

func readResponseHeaders(r *reader, v value, res *Response) {
	if v.node.Kind != Object {
		r.mismatch(v)
		return
	}
	if count := len(v.node.Fields); count > MaxResponseHeaders {
		r.fail(v, "has "+itoa(int64(count))+" headers, the most is "+itoa(MaxResponseHeaders))
		return
	}
	first := make(map[string]*Field, len(v.node.Fields))
	for i := range v.node.Fields {
		f := &v.node.Fields[i]
		at := value{node: f.Value, at: v.at.field(f.Name), shape: shape{form: formText}}
		name, fault := responseHeaderName(f.Name)
		if fault != "" {
			r.failAt(f.Line, f.Column, at.at, fault)
			continue
		}
		if first[name] != nil {
			r.duplicateField(v, f, first[name])
			continue
		}
		first[name] = f
		if s, ok := r.text(at); ok {
			res.Headers = append(res.Headers, ResponseHeader{name, readHeaderTemplate(r, at, s)})
		}
	}
}

// responseHeaderName is a header's name in lower case, or what is wrong with it.
func responseHeaderName(s string) (name, fault string) {
	if s == ":status" {
		return "", "cannot be set: use status"
	}
	if strings.HasPrefix(s, ":") || !isToken(s) {
		return "", "must be a header's name such as x-reason, not " + quote(s)
	}
	if name, fault = headerName(s); fault != "" {
		return "", fault
	}
	for _, taken := range takenHeaders {
		if taken.name == name {
			return "", "cannot be set: " + taken.instead
		}
	}
	return name, ""
}

func readHeaderTemplate(r *reader, v value, s string) Template {
	switch t, fault := parseTemplate(s); {
	case len(s) > MaxHeaderBytes:
		r.fail(v, "must be at most "+itoa(MaxHeaderBytes)+" bytes, not "+itoa(int64(len(s))))
	case !isPrintable(s):
		r.fail(v, "a header's value must be ASCII: "+quote(s))
	case strings.TrimSpace(s) != s:
		r.fail(v, "must not start or end with a space: "+quote(s))
	case fault != "":
		r.fail(v, fault)
	default:
		return t
	}
	return nil
}

// isPrintable reports whether s is ASCII without control characters.
func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// grpcStatuses by their numbers, from 0.
var grpcStatuses = []string{
	"ok", "cancelled", //nolint:misspell // gRPC's own spelling
	"unknown", "invalid_argument", "deadline_exceeded", "not_found", "already_exists",
	"permission_denied", "resource_exhausted", "failed_precondition", "aborted", "out_of_range",
	"unimplemented", "internal", "unavailable", "data_loss", "unauthenticated",
}

func readGRPCStatus(r *reader, v value, res *Response) {
	var number int64
	switch v.node.Kind {
	case Number:
		n, fault := integerOf(v.node.Text)
		if fault != nil || n < 0 || n >= int64(len(grpcStatuses)) {
			r.mismatch(v)
			return
		}
		number = n
	case String:
		number = int64(indexOf(grpcStatuses, v.node.Text))
	default:
		r.mismatch(v)
		return
	}
	switch {
	case number == 0:
		r.fail(v, "a denial cannot be ok: leave it out for resource_exhausted, or write unavailable")
	case number < 0:
		message := "must be " + v.shape.String() + ", not " + quote(v.node.Text)
		if near := nearest(v.node.Text, grpcStatuses[1:]); near != "" {
			message += ": did you mean " + quote(near) + "?"
		}
		r.fail(v, message)
	default:
		res.GRPCStatus = uint8(number)
	}
}
