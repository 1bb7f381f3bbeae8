// Package host is the filter's boundary to the proxy: the life of plugins and
// streams through the proxy-wasm SDK, and the calls of the hot path through
// imports of its own.
//
// Its invariant: host calls, pointers and SDK types stay inside, and a request
// allocates nothing but texts of its own: a client's network, the numbers in response
// headers. It decides nothing about limits. A panic ends the VM, because there is no
// recover: Envoy then answers the requests of the worker, and makes a new VM. It is the only
// package that imports the SDK; nothing in filter/internal may import it.
//
// This file has the callbacks of a request, in their order. plugin.go has the life of a
// configuration and its tick, quota.go what waits for the quota service, holds.go what
// requests hold, answer.go what is known of their answers, proxy.go and imports.go the calls.
package host

import (
	"encoding/binary"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// newest is the stream made last, and its configuration.
var newest struct {
	context uint32
	plugin  *plugin
}

// onContextCreate notes a new stream: the callback that follows is its request. The
// SDK hears of configurations alone.
//
//go:wasmexport sluice_on_context_create
func onContextCreate(context, root uint32) {
	if root == 0 {
		sdkContextCreate(context, root)
		return
	}
	newest.context, newest.plugin = context, pluginOf(root)
}

// onRequestHeaders decides the request of the newest stream: Envoy creates a
// stream when its request arrives, and hands the request over at once.
//
//go:wasmexport sluice_on_request_headers
func onRequestHeaders(context, _, end uint32) uint32 {
	if newest.plugin == nil || newest.context != context {
		proxywasm.LogCritical("sluice: a request of a stream that does not exist")
		return uint32(types.ActionContinue)
	}
	theProxy.hasBody = end == 0
	return uint32(newest.plugin.request(context))
}

// onResponseHeaders notes whether an answer has come, and adds the response's fields.
//
//go:wasmexport sluice_on_response_headers
func onResponseHeaders(context, _, end uint32) uint32 {
	if s := streams.of(context); s != nil {
		arena.reset()
		if len(s.holds) > 0 {
			s.readHeaders(end == 0)
		}
		if len(s.fields) > 0 {
			s.addFields()
		}
	}
	return uint32(types.ActionContinue)
}

// onResponseBody reads the next chunk of an answer.
//
//go:wasmexport sluice_on_response_body
func onResponseBody(context, size, _ uint32) uint32 {
	if s := streams.of(context); s != nil && s.scan != nil {
		for from := uint32(0); from < size; from += chunkBytes {
			arena.reset()
			s.scan.Write(theProxy.chunk(from, min(size-from, chunkBytes)))
		}
	}
	return uint32(types.ActionContinue)
}

// onLog settles what a stream holds: its answer is known, or will never come.
//
//go:wasmexport sluice_on_log
func onLog(context uint32) {
	if s := streams.of(context); s != nil && len(s.holds) > 0 {
		arena.reset()
		s.settle()
	}
}

// onDelete forgets a context: a stream, or a configuration. The end of a configuration is two
// callbacks of the SDK; Envoy would make the first of them for each stream, too.
//
//go:wasmexport sluice_on_delete
func onDelete(context uint32) {
	if s := streams.of(context); s != nil {
		if len(s.holds) > 0 { // the proxy has not called on_log
			arena.reset()
			s.settle()
		}
		s.forget()
	}
	for _, p := range plugins {
		if p.quota != nil {
			p.quota.forget(context)
		}
	}
	if pluginOf(context) != nil {
		sdkDone(context)
		sdkDelete(context)
	}
}

// request decides the request of a stream.
func (p *plugin) request(context uint32) types.Action {
	arena.reset()
	if planted("panic", nil) {
		panic("planted")
	}
	if p.conflicts > conflictTicks*conflictFades && !p.isSplit {
		p.split()
	}
	if len(p.lingering) > 0 { // an operation that reads a counter sees what is over
		p.endLingering(theProxy.Monotonic())
	}
	if p.manage != nil && p.managed() {
		return types.ActionPause
	}
	v := p.engine.Decide()
	if planted("panic-counted", nil) {
		panic("planted")
	}
	if v.Pending {
		p.quota.wait(context, v)
		return types.ActionPause
	}
	if p.quota != nil {
		p.quota.flush(context)
	}
	return p.finish(context, v)
}

// finish answers a request that is decided, or lets it go on.
func (p *plugin) finish(context uint32, v *decide.Verdict) types.Action {
	if p.report != noReport || p.words || respond.Notable(v) {
		p.publish(v)
	}
	p.fields, p.holds = p.fields[:0], p.holds[:0]
	if p.fieldWriter.Style != policy.HeadersNone || !v.Allowed {
		p.fields = p.fieldWriter.Append(p.fields, v)
	}
	if !v.Allowed {
		return p.deny(v)
	}
	if v.IsLook {
		return p.tellUsage(context, v)
	}
	if p.holdNs > 0 {
		p.hold(v)
	}
	if len(p.fields)+len(p.holds) > 0 {
		p.await(context)
	}
	return types.ActionContinue
}

// deny answers in the upstream's place, with p.fields as headers.
func (p *plugin) deny(v *decide.Verdict) types.Action {
	response, why := v.Response(), "rate_limited{"
	if v.LacksKey() {
		why = "missing_key{"
	}
	p.body = respond.AppendBody(p.body[:0], v)
	p.details = append(appendWord(append(p.details[:0], why...), v.DeniedBy().Name), '}')
	p.headers = appendHeaders(p.headers[:0], p.fields)
	theProxy.send(&reply{
		status: uint32(response.Status), details: p.details, body: p.body,
		headers: p.headers, grpc: int32(response.GRPCStatus),
	})
	return types.ActionPause
}

// tellUsage answers a client that asks for its own usage, once the quota service has said what is asked
// of it.
func (p *plugin) tellUsage(context uint32, v *decide.Verdict) types.Action {
	v.Release() // what rules hold that decided the look: no upstream answers it
	look := p.engine.LookAtQuota()
	if look == nil || !p.quota.waitLook(context, look) {
		p.sendUsage(nil)
	}
	return types.ActionPause
}

func (p *plugin) sendUsage(look *lease.Look) {
	p.body = p.engine.AppendUsage(p.body[:0], look)
	sendJSON(200, "sluice_usage", p.body, []respond.Field{{Name: "cache-control", Value: "no-store"}})
}

// Filter state of a request; the proxy puts "wasm." before these names.
const (
	verdictState = "sluice.verdict" // the verdict as one word
	reportState  = "sluice.report"  // the whole verdict, keys included
	briefState   = "sluice.brief"   // of each rule what it decided and the key
	settledState = "sluice.settled" // of each hold what it was charged
)

// publish makes the verdict available to access logs. It costs a call, so
// requests that every rule has simply allowed go without it, unless the node's
// metadata asks for all verdicts.
func (p *plugin) publish(v *decide.Verdict) {
	if p.report == briefReport {
		p.word = respond.AppendBriefs(p.word[:0], v)
		setState(briefState, p.word)
		return
	}
	if respond.Notable(v) || p.words && v.Matched() {
		p.word = respond.AppendWord(p.word[:0], v)
		setState(verdictState, p.word)
	}
	if p.report == wholeReport {
		setState(reportState, respond.AppendReport(nil, v))
	}
}

func setState(name string, value []byte) {
	if !theProxy.SetState(name, value) {
		proxywasm.LogError("sluice: the proxy takes no " + name)
	}
}

// addFields adds the stream's fields to the response.
func (s *stream) addFields() {
	p := s.plugin
	if p.takeUpstream(s.fields) {
		respond.Reconcile(s.fields, p.sent, theProxy.Now())
	}
	for _, f := range s.fields {
		if !theProxy.AddResponseHeader(f.Name, f.Value) {
			proxywasm.LogError("sluice: the proxy takes no " + f.Name)
		}
	}
}

// takeUpstream reads the fields of the same names that the upstream sent, takes them out
// of the response, and reports whether there were any.
func (p *plugin) takeUpstream(fields []respond.Field) (sentAny bool) {
	p.sent = p.sent[:0]
	for _, f := range fields {
		sent := ""
		if _, present := theProxy.header(mapResponseHeaders, f.Name); present {
			sent, _ = theProxy.joinedHeader("response\x00headers\x00", f.Name)
			if err := proxywasm.RemoveHttpResponseHeader(f.Name); err != nil {
				proxywasm.LogError("sluice: remove the upstream's " + f.Name + ": " + err.Error())
			}
			sentAny = true
		}
		p.sent = append(p.sent, sent)
	}
	return sentAny
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
func appendHeaders(b []byte, fields []respond.Field) []byte {
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
