package sim

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// localReply is an answer the filter gives in place of the upstream.
type localReply struct {
	status     int
	details    string
	body       []byte
	headers    headers
	flags      uint64
	grpcStatus int32 // -1 and all unknown numbers: by the HTTP status
}

// FailedDetails are the Response.Details of a stream whose VM failed.
const FailedDetails = "wasm_fail_stream"

// failure is what a stream gets when its VM failed.
func failure() *localReply {
	return &localReply{status: 503, details: FailedDetails, grpcStatus: 14}
}

const grpcStatusLast = 16

// build makes the response of a reply. To a gRPC request it is one with
// headers only, of status 200, and the body becomes the message.
func (l *localReply) build(grpc bool) (h headers, body []byte) {
	h = make(headers, 0, len(l.headers)+4)
	h.add(":status", strconv.Itoa(l.status))
	for _, f := range l.headers {
		h.add(strings.ToLower(f[0]), f[1])
	}
	if grpc {
		h.replaceInPlace(":status", "200")
		h.replaceInPlace("content-type", "application/grpc")
		if _, ok := h.get("grpc-status"); !ok {
			code := int(l.grpcStatus)
			if code < 0 || code > grpcStatusLast {
				code = grpcStatusOf(l.status)
			}
			h.add("grpc-status", strconv.Itoa(code))
		}
		if len(l.body) > 0 {
			h.replaceInPlace("grpc-message", percentEncoded(l.body))
		}
		h.remove("content-length")
		return h, nil
	}
	if len(l.body) == 0 {
		h.remove("content-length")
		h.remove("content-type")
		return h, nil
	}
	h.replaceInPlace("content-length", strconv.Itoa(len(l.body)))
	if _, ok := h.get("content-type"); !ok {
		h.add("content-type", "text/plain")
	}
	return h, l.body
}

// replaceInPlace sets a header that occurs at most once.
func (h *headers) replaceInPlace(name, value string) {
	for i := range *h {
		if (*h)[i][0] == name {
			(*h)[i][1] = value
			return
		}
	}
	h.add(name, value)
}

// grpcStatusOf maps an HTTP status as gRPC says and Envoy does.
func grpcStatusOf(status int) int {
	switch status {
	case 400:
		return 13 // INTERNAL
	case 401:
		return 16 // UNAUTHENTICATED
	case 403:
		return 7 // PERMISSION_DENIED
	case 404:
		return 12 // UNIMPLEMENTED
	case 429, 502, 503, 504:
		return 14 // UNAVAILABLE
	}
	return 2 // UNKNOWN
}

func percentEncoded(text []byte) string {
	var b strings.Builder
	for _, c := range text {
		if c < ' ' || c >= '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// underscored is a text fit for the details of a response.
func underscored(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return '_'
		}
		return r
	}, text)
}

// isGRPC recognizes a gRPC request by its content type.
func isGRPC(h headers) bool {
	kind, _ := h.get("content-type")
	rest, ok := strings.CutPrefix(kind, "application/grpc")
	return ok && (rest == "" || rest[0] == '+')
}
