package host

import (
	"encoding/binary"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// grpcFromStatus leaves the gRPC status of a reply to the proxy.
const grpcFromStatus = -1

// stream is one request and its response.
type stream struct {
	types.DefaultHttpContext
	plugin *plugin
	// fields are what the response headers still have to carry; a denial's went
	// with its reply.
	fields []engine.Field
}

// defaultResponse is for a denial that no rule is the cause of.
var defaultResponse = policy.DefaultResponse()

// OnHttpRequestHeaders decides the request. Where that panics, the strictest
// on_error of the policy decides instead.
func (s *stream) OnHttpRequestHeaders(int, bool) (action types.Action) {
	p := s.plugin
	defer func() {
		r := recover() // only this function can: see the language specification
		if r == nil {
			return
		}
		p.panicked("request", r)
		action = types.ActionContinue
		if p.engine != nil && p.engine.DenyOnError() {
			s.fields = append(s.fields[:0], engine.Field{Name: "retry-after", Value: "1"}, engine.Field{Name: "x-envoy-ratelimited", Value: "true"})
			action = s.deny("", &defaultResponse, append(p.body[:0], defaultResponse.Body[0].Text...))
		}
	}()
	arena.reset()
	return s.decide()
}

func (s *stream) decide() types.Action {
	p := s.plugin
	s.fields = s.fields[:0]
	if p.manage != nil && p.managed() {
		return types.ActionPause
	}
	v := p.engine.Decide()
	p.tell(v)
	s.fields = p.engine.AppendFields(s.fields, v)
	if v.Allowed {
		return types.ActionContinue
	}
	return s.deny(v.DeniedBy().Name, v.Response(), v.AppendBody(p.body[:0]))
}

// deny answers in the upstream's place, with s.fields as headers.
func (s *stream) deny(rule string, response *policy.Response, body []byte) types.Action {
	p := s.plugin
	p.body = body
	p.details = append(appendWord(append(p.details[:0], "rate_limited{"...), rule), '}')
	p.headers = appendHeaders(p.headers[:0], s.fields)
	s.fields = s.fields[:0]
	theProxy.send(&reply{
		status: uint32(response.Status), details: p.details, body: body,
		headers: p.headers, grpc: int32(response.GRPCStatus),
	})
	return types.ActionPause
}

// Where the proxy keeps what it is told of a request, as filter state whose
// names have "wasm." before them.
const (
	verdictState = "sluice.verdict" // a word for access logs
	reportState  = "sluice.report"  // all of it, keys included
)

// tell lets the proxy print the verdict in access logs. It costs a call, so
// requests that every rule has simply allowed go without, unless asked for.
func (p *plugin) tell(v *engine.Verdict) {
	if v.Notable() || p.verdicts && v.Matched() {
		p.word = v.AppendWord(p.word[:0])
		setState(verdictState, p.word)
	}
	if p.trace {
		setState(reportState, v.AppendReport(nil))
	}
}

func setState(name string, value []byte) {
	if !theProxy.SetState(name, value) {
		proxywasm.LogError("sluice: the proxy takes no " + name)
	}
}

// OnHttpResponseHeaders adds what the policy's headers setting asks for.
func (s *stream) OnHttpResponseHeaders(int, bool) types.Action {
	defer s.plugin.recovered("response")
	if len(s.fields) == 0 {
		return types.ActionContinue
	}
	arena.reset()
	p := s.plugin
	if p.readUpstream(s.fields) {
		engine.Reconcile(s.fields, p.sent, p.keep, theProxy.Now())
		for i, f := range s.fields {
			if p.sent[i].Present && !p.keep[i] {
				changeHeader("remove", proxywasm.RemoveHttpResponseHeader(f.Name))
			}
		}
	}
	for _, f := range s.fields {
		changeHeader("add", proxywasm.AddHttpResponseHeader(f.Name, f.Value))
	}
	return types.ActionContinue
}

// readUpstream finds out what the upstream sent under the names of the fields,
// and reports whether that is anything.
func (p *plugin) readUpstream(fields []engine.Field) (sentAny bool) {
	p.sent, p.keep = p.sent[:0], p.keep[:0]
	for _, f := range fields {
		var sent engine.Sent
		if theProxy.HasResponseHeader(f.Name) {
			sent.Value, sent.Present = theProxy.JoinedResponseHeader(f.Name)
			sentAny = true
		}
		p.sent, p.keep = append(p.sent, sent), append(p.keep, false)
	}
	return sentAny
}

func changeHeader(what string, err error) {
	if err != nil {
		proxywasm.LogError("sluice: " + what + " a response header: " + err.Error())
	}
}

// OnHttpStreamDone makes the stream's memory ready for the next one.
func (s *stream) OnHttpStreamDone() {
	s.fields = s.fields[:0]
	s.plugin.idle = append(s.plugin.idle, s)
}

// appendWord appends a rule's name made fit for response code details, which
// access logs take for one word.
func appendWord(b []byte, name string) []byte {
	for _, r := range name {
		if r <= ' ' || r > '~' {
			r = '_'
		}
		b = append(b, byte(r))
	}
	return b
}

// appendHeaders writes headers in the ABI's form: a count, the sizes of names
// and values, then each with a zero byte behind it.
func appendHeaders(b []byte, fields []engine.Field) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(fields)))
	for _, f := range fields {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(f.Name)))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(f.Value)))
	}
	for _, f := range fields {
		b = append(append(b, f.Name...), 0)
		b = append(append(b, f.Value...), 0)
	}
	return b
}
