package sim

// Requests and responses. exchange.go takes a request to its response.

import (
	"cmp"
	"strconv"

	"google.golang.org/protobuf/types/known/structpb"
)

// Request is one request as the connection manager hands it to the filter:
// trusted addresses known, path normalised. Empty fields have the defaults
// named.
type Request struct {
	Method string // GET
	Scheme string // http
	Host   string // localhost
	Path   string // /

	// Headers keep their order and may repeat; those that Envoy folds into
	// one are folded.
	Headers [][2]string
	HasBody bool // the headers do not end the request

	ClientIP   string // 127.0.0.1
	ClientPort uint16

	Route string // name of the route, empty if it has none

	// Metadata is dynamic metadata that filters before this one have set, by
	// namespace.
	Metadata map[string]*structpb.Struct

	// Properties are what else Envoy would know. Segments of a path are joined
	// with dots or zero bytes. They win over those derived from the request.
	Properties map[string][]byte

	Faults *Faults

	// Received says how much of the body has come so far. Nil = what content-length says.
	Received func() int64

	// Answered is the answer of a filter before this one. This one sees the request only when
	// it logs.
	Answered *Response

	// OnPause is called by Serve when the filter has paused the request. The worker
	// serves others from then on.
	OnPause func()
	// Gone is closed when the client disconnects: a paused request then ends.
	Gone <-chan struct{}

	// Upstream answers a request that the filter let through, as the filter left
	// it. The worker serves others meanwhile. Nil = 200.
	Upstream func(*Request) (*Response, error)
}

// Faults make host calls of one request fail.
type Faults struct {
	Get   bool // reads of shared data: internal failure
	Set   bool // writes of shared data: internal failure
	CAS   int  // number of compare-and-swap writes that mismatch first
	Clock bool // reads of the time: internal failure
}

// Response is what the client gets.
type Response struct {
	Local    bool // the filter answered, or its VM failed; not the upstream
	Reset    bool // the stream was closed, by a late answer of the filter or by the client, before the response had ended
	Status   int
	Headers  [][2]string // without :status
	Body     []byte
	Trailers [][2]string
	Details  string // response code details
	Flags    uint64 // response flags, as the attribute has them

	GRPCStatus int               // of grpc-status in headers or trailers, -1 if there is none
	State      map[string]string // properties the filter set, by path joined with dots
}

// refuse is the answer where there is no VM to ask.
func refuse(r *Request) *Response {
	st := &stream{in: r}
	st.fill()
	return st.failed()
}

// fill makes the header map of the request.
func (st *stream) fill() {
	r := st.in
	st.request = append(st.request,
		[2]string{":authority", cmp.Or(r.Host, "localhost")}, [2]string{":path", cmp.Or(r.Path, "/")},
		[2]string{":method", cmp.Or(r.Method, "GET")}, [2]string{":scheme", cmp.Or(r.Scheme, "http")})
	for _, f := range r.Headers {
		st.request.add(f[0], f[1])
	}
	st.grpc = isGRPC(st.request)
}

// outgoing is the request as the filter left it.
func (st *stream) outgoing() *Request {
	out := *st.in
	out.Headers = make([][2]string, 0, len(st.request))
	for _, f := range st.request {
		switch f[0] {
		case ":method":
			out.Method = f[1]
		case ":scheme":
			out.Scheme = f[1]
		case ":authority":
			out.Host = f[1]
		case ":path":
			out.Path = f[1]
		default:
			out.Headers = append(out.Headers, f)
		}
	}
	return &out
}

// direct makes a response that no callback sees.
func (st *stream) direct(reply *localReply) *Response {
	h, body := reply.build(st.grpc)
	st.response = h
	res := &Response{Local: true, Body: body, Details: reply.details}
	res.finish(h)
	return res
}

func (st *stream) failed() *Response { return st.direct(failure()) }

func closed(details string) *Response {
	return &Response{Local: true, Reset: true, Details: details, GRPCStatus: -1}
}

// finish sets what follows from the final headers, which it copies: the guest
// may still read its own when it logs.
func (r *Response) finish(h headers) {
	r.GRPCStatus = -1
	r.Headers = make([][2]string, 0, len(h))
	for _, f := range h {
		switch f[0] {
		case ":status":
			r.Status, _ = strconv.Atoi(f[1])
			continue
		case "grpc-status":
			if code, err := strconv.Atoi(f[1]); err == nil {
				r.GRPCStatus = code
			}
		}
		r.Headers = append(r.Headers, f)
	}
}

func boolean(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
