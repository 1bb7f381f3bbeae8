package host

import (
	"strconv"
	"strings"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/settle"
	"github.com/sluice-ratelimit/sluice/filter/internal/usage"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

const (
	bufferResponseBody  = 1
	mapResponseTrailers = 3
)

// maxScans is how many answers a worker reads at once. Each takes some kilobytes.
const maxScans = 16_384

// maxIdleScans is how many scanners are kept to be re-used.
const maxIdleScans = 64

var (
	scans        int  // how many it reads now
	saysWithheld bool // it is logged once that the proxy shows no bodies
)

// hold keeps what the request holds.
func (p *plugin) hold(v *decide.Verdict) {
	p.holds = v.AppendHolds(p.holds)
	identity := false
	for i := range p.holds {
		h := &p.holds[i]
		r := h.Rule.Policy
		if r.MaxHoldNs > 0 {
			h.EndNs = theProxy.Monotonic() + r.MaxHoldNs
		}
		identity = identity || r.Settle != nil && r.Settle.Identity
	}
	if !identity {
		return
	}
	if err := proxywasm.RemoveHttpRequestHeader("accept-encoding"); err != nil {
		proxywasm.LogError("sluice: remove accept-encoding: " + err.Error())
	}
}

// beginScan begins to read an answer's body where a hold asks for its usage.
func (s *stream) beginScan() {
	if s.status == statusSwitching || !s.readsUsage(s.status) {
		return
	}
	p := s.plugin
	if scans == maxScans {
		s.countUnread(func(m *decide.Metrics) { m.Unscanned++ })
		return
	}
	scans++
	if n := len(p.scans); n > 0 {
		s.scan, p.scans = p.scans[n-1], p.scans[:n-1]
	} else {
		s.scan = new(usage.Scanner)
	}
	contentType, _ := theProxy.header(mapResponseHeaders, "content-type")
	encoding, _ := theProxy.header(mapResponseHeaders, "content-encoding")
	s.scan.Reset(contentType, encoding)
}

// What the proxy says of how a response came about.
const (
	codeDetails   = "response\x00code_details"
	responseFlags = "response\x00flags"
)

// timeoutFlags are the proxy's flags of requests whose time was up: of the route or of a try, while
// nothing came, of the upstream's stream and of the connection.
const timeoutFlags = 1<<2 | 1<<16 | 1<<19 | 1<<22

// abandonedFlags are the proxy's flags of requests that it has reset at the upstream, which may
// be at work on them still: the client's connection or stream has ended or broken the
// protocol, the upstream has broken it, a time was up, or the proxy had to save memory.
const abandonedFlags = 1<<14 | 1<<28 | 1<<18 | // the client
	1<<23 | // the upstream
	timeoutFlags |
	1<<3 | 1<<25 // the proxy

// brokenFlags are the proxy's flags of a request that an upstream has taken and broken off, or
// answered with what is no answer.
const brokenFlags = 1<<4 | 1<<6 | 1<<23

// abandoned reports whether the upstream may be at work still on the stream that ends.
func abandoned() bool {
	if theProxy.amount(responseFlags)&abandonedFlags != 0 {
		return true
	}
	details, _ := theProxy.Attribute(codeDetails)
	return details == maxDuration
}

// Details of times that were up, which have no flags: of the stream, which the client may choose by
// grpc-timeout, and of the request, which the client did not send in time.
const (
	maxDuration    = "max_duration_timeout"
	requestTimeout = "request_overall_timeout"
)

// gaveUp reports whether the details are those of an answer that the proxy gives because the
// upstream has not, or not all of it: it broke off, or a time was up.
func gaveUp(details string) bool {
	switch {
	case details == "via_upstream":
		return false
	case strings.HasPrefix(details, "upstream_reset_after_response_started"):
		return true
	case strings.HasPrefix(details, "upstream_reset_before_response_started"):
		return theProxy.amount(responseFlags)&(brokenFlags|timeoutFlags) != 0
	}
	return details == maxDuration || details == requestTimeout || theProxy.amount(responseFlags)&timeoutFlags != 0
}

// hear notes whether the headers that have come are those of an answer, and begins to read its
// usage.
func (s *stream) hear(hasBody bool) {
	details, _ := theProxy.Attribute(codeDetails)
	if gaveUp(details) {
		return
	}
	s.status = theProxy.Status()
	if hasBody {
		s.beginScan()
	}
}

// statusSwitching is of an answer that is not one: its body is another protocol's.
const statusSwitching = 101

// readsUsage reports whether some hold needs the usage of an answer with that status.
func (s *stream) readsUsage(status uint16) bool {
	for i := range s.holds {
		if p := s.holds[i].Rule.Policy.Settle; p != nil && p.To.Tokens() && settle.MeetsStatus(&p.When, status) {
			return true
		}
	}
	return false
}

func (s *stream) countUnread(count func(m *decide.Metrics)) {
	for i := range s.holds {
		if r := s.holds[i].Rule; r.Policy.Settle != nil && r.Policy.Settle.To.Tokens() {
			count(&r.Metrics)
		}
	}
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

// endScan returns what the answer said of its usage, and whether it was read, be it to its
// end or to where it was cut.
func (s *stream) endScan(a *ended) (said usage.Usage, ok bool) {
	if s.scan == nil {
		return usage.Usage{}, false
	}
	method, _ := theProxy.Attribute("request\x00method") // which the proxy did not tell before
	said, ok = s.scan.End(), method != "CONNECT"         // a tunnel, whose bytes are no answer
	switch {
	case !ok:
	case said.Bytes == 0 && a.ResponseBytes() > 0:
		ok = false
		s.countUnread(func(m *decide.Metrics) { m.Withheld++ })
		if !saysWithheld {
			saysWithheld = true
			proxywasm.LogError("sluice: the proxy shows no bodies of answers: allow proxy_on_response_body in its list of capabilities")
		}
	case said.Failure != usage.None:
		s.countUnread(func(m *decide.Metrics) { m.Unread[said.Failure]++ })
	}
	scans--
	if p := s.plugin; len(p.scans) < maxIdleScans {
		p.scans = append(p.scans, s.scan)
	}
	s.scan = nil
	return said, ok
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

// settle settles each hold of the stream.
func (s *stream) settle() {
	a, redirected := ended{status: theProxy.Status()}, false
	if s.status == 0 || s.status != a.status { // a filter may hold an answer back until its time is up
		details, _ := theProxy.Attribute(codeDetails)
		redirected = details == "internal_redirect" // which is a request of its own, later
		a.gaveUp = gaveUp(details)
	}
	a.said, a.read = s.endScan(&a)
	p, now := s.plugin, theProxy.Now()
	settled := p.settled[:0]
	for i := range s.holds {
		h := &s.holds[i]
		cost, by := uint32(0), decide.ByNone
		switch r := h.Rule.Policy; {
		case redirected:
		case r.Settle != nil:
			cost, by = settle.Cost(r, h.Units, &a)
		case r.LingerNs > 0 && abandoned():
			p.linger(decide.Lingering{Hold: *h, UntilNs: theProxy.Monotonic() + r.LingerNs})
			continue
		}
		h.Settle(cost, by, now)
		if p.reports.whole {
			settled = append(settled, result.Settled{Rule: h.Rule.Policy.Name, Held: h.Units, Cost: cost, By: by.String()})
		}
	}
	if p.reports.whole {
		setState(settledState, result.AppendSettled(nil, settled))
	}
	clear(s.holds)
	p.settled, s.holds = settled[:0], s.holds[:0]
	if p.quota != nil {
		p.quota.flush(s.context)
	}
}

// linger keeps a hold until its time is over.
func (p *plugin) linger(l decide.Lingering) {
	if len(p.lingering) == 0 || l.UntilNs < p.lingersNs {
		p.lingersNs = l.UntilNs
	}
	p.lingering = append(p.lingering, l)
}

// endLingering ends what has lingered for long enough. Each request looks, because a slot that
// waits for the tick lies idle for half a second.
func (p *plugin) endLingering(monotonic int64) {
	if len(p.lingering) == 0 || monotonic < p.lingersNs {
		return
	}
	all, now := p.lingering, theProxy.Now()
	p.lingering = all[:0]
	for i := range all {
		if l := all[i]; l.UntilNs <= monotonic {
			arena.reset() // each reads a page
			l.Settle(0, decide.ByNone, now)
		} else {
			p.linger(l)
		}
	}
	clear(all[len(p.lingering):])
}

// renew renews what lingers and, of the streams, what the next portion holds: all in one tick
// would keep the worker from its requests.
func (p *plugin) renew() {
	if p.holdNs == 0 {
		return
	}
	p.endLingering(theProxy.Monotonic())
	now, monotonic, held := theProxy.Now(), theProxy.Monotonic(), p.engine.HeldNow()
	for i := range p.lingering {
		arena.reset()
		p.lingering[i].Renew(now, monotonic, held)
	}
	for range p.portion(monotonic) {
		p.renewsAt = (p.renewsAt + 1) % len(streams.buckets)
		for s := streams.buckets[p.renewsAt]; s != nil; s = s.next {
			if s.plugin != p {
				continue
			}
			for i := range s.holds {
				arena.reset() // each reads a page
				s.holds[i].Renew(now, monotonic, held)
			}
		}
	}
}

// shortestHold is the shortest of the rules' holds, 0 if none holds.
func shortestHold(rules []policy.Rule) (ns int64) {
	for i := range rules {
		if r := &rules[i]; r.Holds() && r.Mode != policy.ModeOff && (ns == 0 || r.HoldNs < ns) {
			ns = r.HoldNs
		}
	}
	return ns
}

// portion is how many buckets of streams are next. In the shortest eighth but two ticks it is all
// of them, so that each hold is renewed within its own, even if ticks are late. The shortest hold of
// all, 10 s, has an eighth of little more than a tick: in each, all are renewed.
func (p *plugin) portion(monotonic int64) int {
	all, since := len(streams.buckets), monotonic-p.renewedNs
	p.renewedNs = monotonic
	eighth := p.holdNs / limit.HoldParts
	if round := max(eighth/2, eighth-2*tickMs*1e6); since < round {
		return int(since*int64(all)/round) + 1 // fits: it is no more than all
	}
	return all
}

// ended is what the proxy knows of the answer whose stream is at its end.
type ended struct {
	said   usage.Usage
	read   bool
	status uint16
	gaveUp bool // the upstream gave no answer: what the client got is the proxy's own
}

func (a *ended) Status() uint16 {
	if a.gaveUp {
		return 0
	}
	return a.status
}

// GRPCStatus reads the header or the trailer: of an answer that was cut, or is none of gRPC's,
// the proxy has a number of its own.
func (*ended) GRPCStatus() int {
	text, present := theProxy.header(mapResponseTrailers, "grpc-status")
	if !present {
		text, present = theProxy.header(mapResponseHeaders, "grpc-status")
	}
	if n, err := strconv.ParseUint(text, 10, 16); present && err == nil {
		return int(n) // fits: 16 bits
	}
	return -1
}

func (*ended) Header(name string) (string, bool) {
	return theProxy.header(mapResponseHeaders, name)
}

func (*ended) Trailer(name string) (string, bool) {
	return theProxy.header(mapResponseTrailers, name)
}

func (*ended) HeaderValues(name string) []string {
	return theProxy.headerValues(nil, mapResponseHeaders, name)
}

// RequestBytes is what has come without the headers. What the proxy calls the request's size is
// what the client has announced.
func (*ended) RequestBytes() int64 {
	headers := sizeOfPairs(theProxy.pairs(mapRequestHeaders))
	return max(theProxy.amount("request\x00total_size")-headers, 0)
}

func (a *ended) ResponseBytes() int64 {
	if a.gaveUp {
		return 0
	}
	return theProxy.amount("response\x00size")
}

func (*ended) DurationNs() int64 { return theProxy.amount("request\x00duration") }

func (a *ended) Usage() (usage.Usage, bool) { return a.said, a.read }
