package host

import (
	"encoding/binary"
	"strings"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
)

const (
	statusTooManyRequests = 429
	grpcResourceExhausted = 8
	grpcFromStatus        = -1

	denialBody = "rate limit exceeded\n"
)

// stream is one request and its response.
type stream struct {
	types.DefaultHttpContext
	plugin *plugin
	// fields are what the response headers still have to carry; a denial's went
	// with its reply.
	fields []engine.Field
}

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
		if p.engine.DenyOnError() {
			theProxy.send(&reply{status: statusTooManyRequests, details: "rate_limited{}", body: denialBody, grpc: grpcResourceExhausted})
			action = types.ActionPause
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
	if p.trace {
		p.report(v)
	}
	s.fields = p.engine.AppendFields(s.fields, v)
	if v.Allowed {
		return types.ActionContinue
	}
	r := reply{
		status:  statusTooManyRequests,
		details: "rate_limited{" + detail(v.DeniedBy().Name) + "}",
		body:    denialBody,
		headers: appendHeaders(nil, s.fields),
		grpc:    grpcResourceExhausted,
	}
	s.fields = s.fields[:0]
	theProxy.send(&r)
	return types.ActionPause
}

// report lets the proxy see the whole verdict.
func (p *plugin) report(v *engine.Verdict) {
	if err := proxywasm.SetProperty([]string{"sluice.verdict"}, v.AppendReport(nil)); err != nil {
		proxywasm.LogError("sluice: report a verdict: " + err.Error())
	}
}

// OnHttpResponseHeaders adds what the policy's headers setting asks for.
func (s *stream) OnHttpResponseHeaders(int, bool) types.Action {
	defer s.plugin.recovered("response")
	for _, f := range s.fields {
		if err := proxywasm.AddHttpResponseHeader(f.Name, f.Value); err != nil {
			proxywasm.LogError("sluice: add a response header: " + err.Error())
			break
		}
	}
	return types.ActionContinue
}

// OnHttpStreamDone makes the stream's memory ready for the next one.
func (s *stream) OnHttpStreamDone() {
	s.fields = s.fields[:0]
	s.plugin.idle = append(s.plugin.idle, s)
}

// detail makes a rule's name fit for response code details, which access logs
// take for one word.
func detail(name string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '_'
		}
		return r
	}, name)
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
