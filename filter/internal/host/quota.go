package host

import (
	"bytes"
	"encoding/binary"
	"unsafe"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease"
	"github.com/sluice-ratelimit/sluice/filter/internal/lease/talk"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	bufferGRPC    = 5
	streamRequest = 0
)

// quotaTalk is a configuration's talk with the quota service: talk.Client decides
// what is sent, and this is its way through the proxy, talk.Transport.
type quotaTalk struct {
	plugin  *plugin
	client  *talk.Client
	service []byte // a GrpcService message
	token   uint32 // of the open stream, 0 = none
	period  uint32 // of the ticks, ms
	quietNs int64  // when a tick last did what is done once a second
	silent  bool   // the gauge counts this worker
	message []byte
}

// newQuotaTalk returns nil if the policy has no rules of scope cluster.
func newQuotaTalk(p *plugin, pol *policy.Policy) *quotaTalk {
	if len(p.engine.Cluster.Definitions()) == 0 {
		return nil
	}
	q := &quotaTalk{plugin: p, period: tickMs, service: grpcService(pol.Quota.Cluster)}
	q.client = talk.NewClient(q, p.engine.Cluster, pol.Quota.TimeoutNs)
	return q
}

// grpcService is a GrpcService message that names a cluster of Envoy's.
func grpcService(cluster string) []byte {
	const bytesField1 = 1<<3 | 2
	inner := binary.AppendUvarint([]byte{bytesField1}, uint64(len(cluster)))
	inner = append(inner, cluster...)
	return append(binary.AppendUvarint([]byte{bytesField1}, uint64(len(inner))), inner...)
}

// wait makes a request wait whose verdict is pending. Its callback makes no call after that, so the
// context that calls act for need not be its own again: see flushFor.
func (q *quotaTalk) wait(context uint32, v *decide.Verdict) {
	q.plugin.engine.Keep(v)
	now := theProxy.Monotonic()
	q.client.Wait(context, v, now)
	q.client.Flush(now)
	q.hasten()
}

// waitLook makes a client wait that asks for its usage. It returns false if nobody can be asked.
func (q *quotaTalk) waitLook(context uint32, l *lease.Look) bool {
	now := theProxy.Monotonic()
	if !q.client.WaitLook(context, l, now) {
		return false
	}
	q.flushFor(context, now)
	return true
}

// flush sends what a callback of the context leaves to be sent: asks for what requests to come
// will need, and reports of what is held.
func (q *quotaTalk) flush(context uint32) {
	if q.plugin.engine.Cluster.HasNews() {
		q.flushFor(context, theProxy.Monotonic())
	}
}

// flushFor sends what there is to send. That makes the root context the one that calls act for, so it makes
// the callback's context that again.
func (q *quotaTalk) flushFor(context uint32, now int64) {
	q.client.Flush(now)
	q.hasten()
	importActFor(context)
}

// goOn goes on with requests that have waited, as many as one callback may, and sends what
// they leave to be sent.
func (q *quotaTalk) goOn() {
	for range talk.MaxResumed {
		w := q.client.Next()
		if w == nil {
			break
		}
		q.resume(w)
	}
	q.client.Flush(theProxy.Monotonic())
}

// resume decides a request again that has waited. It goes on unless it has to wait again.
func (q *quotaTalk) resume(w *talk.Waiter) {
	importActFor(w.ContextID)
	defer importActFor(q.plugin.context)
	arena.reset()
	if w.Look != nil {
		q.client.Done(w)
		q.plugin.sendUsage(w.Look)
		return
	}
	v := w.Verdict
	q.plugin.engine.Resume(v)
	if v.Pending {
		q.client.Wait(w.ContextID, v, theProxy.Monotonic())
		return
	}
	q.client.Done(w)
	action := q.plugin.finish(w.ContextID, v)
	q.plugin.engine.Free(v)
	if action == types.ActionContinue {
		importContinue(streamRequest)
	}
}

// forget ends the wait of a request that has ended: it never goes on.
func (q *quotaTalk) forget(context uint32) {
	if !q.client.HasWaiters() {
		return
	}
	if v := q.client.Forget(context); v != nil {
		q.plugin.engine.Free(v)
	}
}

// talkOf returns the talk of a root context.
func talkOf(root, token uint32) *quotaTalk {
	if p := pluginOf(root); p != nil && p.quota != nil && p.quota.token == token && token != 0 {
		return p.quota
	}
	return nil
}

// onGRPCReceive takes a message of the service.
//
//go:wasmexport proxy_on_grpc_receive
func onGRPCReceive(root, token, size uint32) {
	q := talkOf(root, token)
	if q == nil {
		return
	}
	arena.reset()
	if !theProxy.buffer(bufferGRPC, size, &q.message) {
		proxywasm.LogError("sluice: the proxy gives no message of the quota service")
		return
	}
	if err := q.client.Receive(q.message, theProxy.Monotonic()); err != nil {
		proxywasm.LogError("sluice: the quota service sent what this build cannot read: " + err.Error())
	}
	q.goOn()
	q.hasten()
}

// onGRPCClose is called when the stream has ended. Envoy forgets a token only when
// this side closes it too.
//
//go:wasmexport proxy_on_grpc_close
func onGRPCClose(root, token, _ uint32) {
	q := talkOf(root, token)
	if q == nil {
		return
	}
	arena.reset()
	importGRPCClose(token)
	q.token = 0
	q.client.StreamEnded(theProxy.Monotonic())
	q.hasten()
}

// tick does what the client needs, as often as it needs it. It reports whether a second has
// passed since it last did so.
func (q *quotaTalk) tick() bool {
	now := theProxy.Monotonic()
	q.client.Tick(now)
	q.goOn()
	q.setPeriod()
	q.gauge(q.plugin.engine.Cluster.Service.Silent)
	if now-q.quietNs < tickMs*1e6 {
		return false
	}
	q.quietNs = now
	return true
}

// hasten asks for a tick as early as the client needs it. A later one is asked for in a
// tick alone: each change of the period puts the next tick off by all of it, and requests
// that often change it back and forth would put it off for ever.
func (q *quotaTalk) hasten() {
	if q.client.PeriodMs() < q.period {
		q.setPeriod()
	}
}

func (q *quotaTalk) setPeriod() {
	if period := min(q.client.PeriodMs(), tickMs); period != q.period {
		q.period = period
		if err := proxywasm.SetTickPeriodMilliSeconds(period); err != nil {
			proxywasm.LogError("sluice: set the tick period: " + err.Error())
		}
	}
}

// gauge counts this worker in rate_limit_quota_degraded while the service is silent.
func (q *quotaTalk) gauge(silent bool) {
	if silent != q.silent {
		q.silent = silent
		by := int64(1)
		if !silent {
			by = -1
		}
		must(importIncrementMetric(degraded(), by))
	}
}

func degraded() uint32 { return define(kindGauge, "rate_limit_quota_degraded") }

// isSilentByOthers reports whether other workers have found the quota service silent, and this one
// cannot know: it has no stream.
func (q *quotaTalk) isSilentByOthers() bool {
	return !q.client.IsConnected() && valueOf(degraded()) > 0
}

// end decides what still waits, and leaves what is held to another configuration of this VM,
// which reports it.
func (q *quotaTalk) end() {
	q.client.ExpireAll()
	for w := q.client.Next(); w != nil; w = q.client.Next() {
		q.resume(w)
	}
	now := theProxy.Monotonic()
	q.client.Flush(now)
	q.client.Close(now)
	q.gauge(false)
	for _, other := range plugins {
		if heir := other.quota; heir != nil && heir.mayInherit(q) {
			heir.client.Inherit(q.client)
			heir.flush(other.context)
			return
		}
	}
}

// mayInherit reports whether both configurations ask the same service about the same domain.
func (q *quotaTalk) mayInherit(from *quotaTalk) bool {
	own, other := q.plugin.engine.Policy(), from.plugin.engine.Policy()
	return own.Domain == other.Domain && bytes.Equal(q.service, from.service)
}

// Open opens a stream as the root context: one that a request opens ends with it.
func (q *quotaTalk) Open() bool {
	importActFor(q.plugin.context)
	q.token = 0
	status := importGRPCStream(unsafe.Pointer(unsafe.SliceData(q.service)), uint32(len(q.service)),
		unsafe.Pointer(unsafe.StringData(quota.Service)), uint32(len(quota.Service)),
		unsafe.Pointer(unsafe.StringData(quota.Method)), uint32(len(quota.Method)), nil, 0, unsafe.Pointer(&q.token))
	if status != statusOK {
		q.token = 0
		return false
	}
	return true
}

// Send sends a message. The proxy says that it took one also on a stream that has
// ended.
func (q *quotaTalk) Send(message []byte) bool {
	importActFor(q.plugin.context)
	return importGRPCSend(q.token, unsafe.Pointer(unsafe.SliceData(message)), uint32(len(message)), 0) == statusOK
}

// Cancel ends the stream.
func (q *quotaTalk) Cancel() {
	importActFor(q.plugin.context)
	importGRPCCancel(q.token)
	q.token = 0
}

// Random returns a random number.
func (q *quotaTalk) Random() uint32 {
	var b [4]byte
	fillRandom(b[:])
	return binary.LittleEndian.Uint32(b[:])
}
