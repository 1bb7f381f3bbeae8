package host

import (
	"encoding/binary"

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
		if p.engine != nil && p.engine.DenyOnError() {
			s.fields = append(s.fields[:0], engine.Field{Name: "retry-after", Value: "1"})
			action = s.deny("")
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
	return s.deny(v.DeniedBy().Name)
}

// deny answers in the upstream's place, with s.fields as headers.
func (s *stream) deny(rule string) types.Action {
	p := s.plugin
	p.details = append(appendWord(append(p.details[:0], "rate_limited{"...), rule), '}')
	p.headers = appendHeaders(p.headers[:0], s.fields)
	s.fields = s.fields[:0]
	theProxy.send(&reply{
		status: statusTooManyRequests, details: p.details, body: denialBody,
		headers: p.headers, grpc: grpcResourceExhausted,
	})
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
