package host

import (
	"encoding/binary"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/sluice-ratelimit/sluice/filter/internal/describe"
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// grpcFromStatus leaves the gRPC status of a reply to the proxy.
const grpcFromStatus = -1

// stream is an allowed request whose response gets fields. A denial's fields go
// with its reply.
type stream struct {
	plugin *plugin
	fields []describe.Field

	context uint32
	next    *stream // whose context is alike
}

// waiting are the streams that wait for their response, by their contexts as
// front.held counts them.
var waiting [heldSlots]*stream

// streamOf returns the stream of a context, nil if none waits.
func streamOf(context uint32) *stream {
	s := waiting[context%heldSlots]
	for s != nil && s.context != context {
		s = s.next
	}
	return s
}

// forget undoes await.
func (s *stream) forget() {
	at := &waiting[s.context%heldSlots]
	for *at != s {
		at = &(*at).next
	}
	*at, s.next = s.next, nil
	drop(s.context)
	s.plugin.idle = append(s.plugin.idle, s)
}

// asked is the configuration that the request before this one was for.
var asked *plugin

// defaultResponse is for a denial that no rule caused.
var defaultResponse = policy.DefaultResponse()

// onRequestHeaders handles the request of the newest stream: Envoy creates a
// stream when its request arrives, and hands the request over at once.
//
//go:wasmexport sluice_on_request_headers
func onRequestHeaders(context, _, _ uint32) uint32 {
	p := asked
	if p == nil || p.context != front.root {
		p = plugins[front.root]
		asked = p
	}
	if p == nil || context != front.created {
		proxywasm.LogCritical("sluice: a request of a stream that does not exist")
		return uint32(types.ActionContinue)
	}
	return uint32(p.request(context))
}

// request decides the request of a stream. If that panics, the strictest on_error
// of the policy decides instead.
func (p *plugin) request(context uint32) (action types.Action) {
	defer func() {
		r := recover() // only this function can: see the language specification
		if r == nil {
			return
		}
		p.panicked("request", r)
		action = types.ActionContinue
		if p.engine != nil && p.engine.DenyOnError() {
			p.fields = append(p.fields[:0], describe.Field{Name: "retry-after", Value: "1"},
				describe.Field{Name: "x-envoy-ratelimited", Value: "true"})
			action = p.deny("", &defaultResponse, append(p.body[:0], defaultResponse.Body[0].Text...))
		}
	}()
	arena.reset()
	if p.conflicts > conflictTicks*conflictFades && !p.isSplit {
		p.split()
	}
	return p.decide(context)
}

func (p *plugin) decide(context uint32) types.Action {
	if p.manage != nil && p.managed() {
		return types.ActionPause
	}
	v := p.engine.Decide()
	if p.quota != nil && p.quota.serve(context, v) {
		return types.ActionPause
	}
	if p.trace || p.verdicts || describe.Notable(v) {
		p.publish(v)
	}
	if v.Allowed && p.fieldWriter.Style == policy.HeadersNone {
		return types.ActionContinue
	}
	p.fields = p.fieldWriter.Append(p.fields[:0], v)
	if !v.Allowed {
		rule := v.DeniedBy()
		return p.deny(rule.Name, &rule.Response, describe.AppendBody(p.body[:0], v))
	}
	if len(p.fields) > 0 {
		p.await(context)
	}
	return types.ActionContinue
}

// await keeps the fields for the stream's response.
func (p *plugin) await(context uint32) {
	s := &stream{plugin: p}
	if n := len(p.idle); n > 0 {
		s = p.idle[n-1]
		p.idle = p.idle[:n-1]
	}
	s.fields, p.fields = p.fields, s.fields
	s.context, s.next = context, waiting[context%heldSlots]
	waiting[context%heldSlots] = s
	hold(context)
}

// deny answers in the upstream's place, with p.fields as headers.
func (p *plugin) deny(rule string, response *policy.Response, body []byte) types.Action {
	p.body = body
	p.details = append(appendWord(append(p.details[:0], "rate_limited{"...), rule), '}')
	p.headers = appendHeaders(p.headers[:0], p.fields)
	theProxy.send(&reply{
		status: uint32(response.Status), details: p.details, body: body,
		headers: p.headers, grpc: int32(response.GRPCStatus),
	})
	return types.ActionPause
}

// Filter state of a request; the proxy puts "wasm." before these names.
const (
	verdictState = "sluice.verdict" // the verdict as one word
	reportState  = "sluice.report"  // the whole verdict, keys included
	briefState   = "sluice.brief"   // of each rule what it decided and the key
)

// publish makes the verdict available to access logs. It costs a call, so
// requests that every rule has simply allowed go without it, unless the node's
// metadata asks for all verdicts.
func (p *plugin) publish(v *engine.Verdict) {
	if p.brief {
		p.word = describe.AppendBriefs(p.word[:0], v)
		setState(briefState, p.word)
		return
	}
	if describe.Notable(v) || p.verdicts && v.Matched() {
		p.word = describe.AppendWord(p.word[:0], v)
		setState(verdictState, p.word)
	}
	if p.trace {
		setState(reportState, describe.AppendReport(nil, v))
	}
}

func setState(name string, value []byte) {
	if !theProxy.SetState(name, value) {
		proxywasm.LogError("sluice: the proxy takes no " + name)
	}
}

// onResponseHeaders adds the response's fields. Envoy calls it only for contexts
// whose number is held.
//
//go:wasmexport sluice_on_response_headers
func onResponseHeaders(context uint32) uint32 {
	if s := streamOf(context); s != nil {
		s.respond()
	}
	return uint32(types.ActionContinue)
}

func (s *stream) respond() {
	defer s.plugin.recovered("response")
	arena.reset()
	p := s.plugin
	if p.readUpstream(s.fields) {
		describe.Reconcile(s.fields, p.sent, p.keep, theProxy.Now())
		for i, f := range s.fields {
			if p.sent[i].Present && !p.keep[i] {
				changeHeader("remove", proxywasm.RemoveHttpResponseHeader(f.Name))
			}
		}
	}
	for _, f := range s.fields {
		if !theProxy.AddResponseHeader(f.Name, f.Value) {
			proxywasm.LogError("sluice: the proxy takes no " + f.Name)
		}
	}
}

// readUpstream reads the fields of the same names that the upstream sent, and
// reports whether it sent any.
func (p *plugin) readUpstream(fields []describe.Field) (sentAny bool) {
	p.sent, p.keep = p.sent[:0], p.keep[:0]
	for _, f := range fields {
		var sent describe.Sent
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

// onDelete forgets a context, and reports whether it is a configuration.
//
//go:wasmexport sluice_on_delete
func onDelete(context uint32) bool {
	if s := streamOf(context); s != nil {
		s.forget()
	}
	if len(waitingFor) > 0 { // an empty map costs a call to look into, too
		if q := waitingFor[context]; q != nil {
			q.forget(context)
		}
	}
	return plugins[context] != nil
}

// appendWord appends a rule's name for response code details, which access logs
// print as one word.
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
// and values, then names and values, each followed by a zero byte.
func appendHeaders(b []byte, fields []describe.Field) []byte {
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
